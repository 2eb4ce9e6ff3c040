"""Small drafters and batches with random states, for tests that need no target."""

import torch

from dflash_cache.config import TrainConfig
from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.drafter.config import FULL, SLIDING, DrafterConfig
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.train import ALONE, DrafterStep, Ranks
from dflash_cache.types import DraftBatch

VOCAB, HIDDEN, LAYERS = 64, 32, 3
KINDS = {
    "full": (FULL, FULL),
    "sliding": (SLIDING, SLIDING),
    "mixed": (SLIDING, FULL),
}


def drafter_config(
    layer_types=KINDS["full"], *, block_size=4, window=5, **changes
) -> DrafterConfig:
    shape = {
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": len(layer_types),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": block_size,
        "mask_token_id": 63,
        "target_layer_ids": (0, 1, 2),
        "num_target_layers": 4,
        "layer_types": layer_types,
        "sliding_window": window if SLIDING in layer_types else None,
    }
    return DrafterConfig(**shape | changes)


def drafter(config: DrafterConfig, seed: int = 0) -> DFlashDrafter:
    """Weights large enough that a leak in the mask shows."""
    torch.manual_seed(seed)
    model = DFlashDrafter(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def draft_batch(lengths, anchors, seed: int = 0) -> DraftBatch:
    """Packed sequences of ``lengths``; ``anchors`` holds the positions in each sequence."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    packed = [p + int(o) for own, o in zip(anchors, offsets, strict=False) for p in own]
    return DraftBatch(
        hidden_TKH=torch.randn(tokens, LAYERS, HIDDEN, generator=generator),
        input_ids=torch.randint(0, VOCAB - 1, (tokens,), generator=generator),
        loss_mask=torch.ones(tokens, dtype=torch.bool),
        offsets=offsets,
        anchors=torch.tensor(packed, dtype=torch.int64),
        row_ids=tuple(range(len(lengths))),
    )


def embedding_and_head(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(VOCAB, HIDDEN, generator=generator),
        torch.randn(VOCAB, HIDDEN, generator=generator),
    )


def train_config(tmp_path, **changes) -> TrainConfig:
    settings = {"cache": tmp_path / "cache", "out": tmp_path / "run", "device": "cpu", "lr": 1e-2}
    return TrainConfig(**settings | changes)


def drafter_step(
    tmp_path, config: DrafterConfig, num_steps: int = 10, ranks: Ranks = ALONE, **changes
) -> DrafterStep:
    settings = train_config(tmp_path, **changes)
    return DrafterStep(drafter(config), *embedding_and_head(), settings, num_steps, ranks)


def uneven_sequences() -> list[DraftBatch]:
    """Four rows with few and with many supervised tokens, all anchors used."""
    batches = []
    for seed, supervised in enumerate((2, 100, 3, 25)):
        anchors = list(range(104 - supervised, 103))
        batch = draft_batch([104], [anchors], seed=seed)
        batch.loss_mask[: 104 - supervised] = False
        batches.append(batch)
    return batches


def block_outputs(
    model: DFlashDrafter, batch: DraftBatch, embeddings: torch.Tensor
) -> torch.Tensor:
    """One training pass: hidden states [S, B, H] of all blocks, given their input embeddings."""
    size = model.config.block_size
    starts = batch.offsets[:-1].repeat_interleave(batch.offsets.diff())
    positions = torch.arange(batch.num_tokens) - starts
    block_positions = positions[batch.anchors][:, None] + torch.arange(size)
    output = model(
        embeddings.flatten(0, 1),
        block_positions.flatten(),
        model.context(batch.hidden_TKH, positions),
        TiledAttention.plan(
            batch.offsets, batch.anchors, size, model.visibilities, blocks_per_tile=3
        ),
    )
    return output.view(len(batch.anchors), size, -1)
