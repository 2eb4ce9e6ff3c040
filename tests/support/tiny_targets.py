"""Tiny targets and datasets, and the oracle that hidden states are compared with.

Axes in names: T tokens, K layers, H hidden size.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from transformers import (
    AutoConfig,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS, MAX_POSITIONS = 512, 64, 8, 256


def _shape(vocab: int, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 128,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": tied,
    }


def _qwen3(vocab: int, tied: bool) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_shape(vocab, tied)))


def _llama(vocab: int, tied: bool) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_shape(vocab, tied)))


def _gemma3(vocab: int, tied: bool) -> PreTrainedModel:
    """Three layers in four see 32 tokens back and no further."""
    types = (["sliding_attention"] * 3 + ["full_attention"]) * 2
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**_shape(vocab, tied), sliding_window=32, layer_types=types)
    )


def _qwen3_moe(vocab: int, tied: bool) -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_shape(vocab, tied), **experts))


def _qwen3_5(vocab: int, tied: bool) -> PreTrainedModel:
    """A multimodal wrapper: six linear-attention and two full-attention layers in its text part."""
    text = _shape(vocab, tied) | {
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": 16,
    }
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    return Qwen3_5ForConditionalGeneration(config)


BUILDERS: dict[str, Callable[[int, bool], PreTrainedModel]] = {
    "qwen3": _qwen3,
    "llama": _llama,
    "gemma3": _gemma3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_5": _qwen3_5,
}


def build_target(
    family: str = "qwen3", *, seed: int = 0, vocab: int = VOCAB_SIZE, tied: bool = False
) -> PreTrainedModel:
    """A float32 model of ``family`` (a key of ``BUILDERS``) with weights drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[family](vocab, tied).float().eval()


def save_target(
    folder: Path,
    family: str = "qwen3",
    *,
    seed: int = 0,
    vocab: int = VOCAB_SIZE,
    tied: bool = False,
    max_shard_size: str = "5GB",
) -> Path:
    """Save ``build_target``'s model, without a tokenizer, to ``folder``."""
    model = build_target(family, seed=seed, vocab=vocab, tied=tied)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


NAN_TOKEN = 13


def save_spoilt_target(folder: Path) -> Path:
    """One for which every row with ``NAN_TOKEN`` has no finite state."""
    model = build_target()
    model.get_input_embeddings().weight.data[NAN_TOKEN] = float("nan")
    model.save_pretrained(folder)
    return folder


def random_rows(
    num_rows: int = 103, max_len: int = 200, vocab: int = VOCAB_SIZE, seed: int = 0
) -> datasets.Dataset:
    """Rows of 1 to ``max_len`` uniform ids; the loss mask is 1 on the second half of each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, max_len + 1, num_rows).tolist()
    ids = [rng.integers(0, vocab, length).tolist() for length in lengths]
    return rows_of(ids)


def rows_of(ids: Sequence[Sequence[int]]) -> datasets.Dataset:
    """A dataset of ``ids``, with loss on the second half of each row."""
    masks = [[int(place >= len(row) // 2) for place in range(len(row))] for row in ids]
    return datasets.Dataset.from_dict({"input_ids": list(ids), "loss_mask": masks})


def save_rows(folder: Path, rows: datasets.Dataset | None = None) -> Path:
    """Save ``rows``, or the 103 rows of ``random_rows``, for ``--data``."""
    (random_rows() if rows is None else rows).save_to_disk(folder)
    return folder


def load_plain(folder: Path) -> PreTrainedModel:
    """The float32 model in ``folder``, as the class that saved it and with none of our code."""
    architecture = AutoConfig.from_pretrained(folder).architectures[0]
    model: PreTrainedModel = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32
    )
    return model.eval()


def decoder_of(model: PreTrainedModel) -> torch.nn.Module:
    """The module that holds the decoder ``layers``."""
    return getattr(model.model, "language_model", model.model)


@torch.no_grad()
def oracle_states(
    model_folder: Path, ids: Sequence[Sequence[int]], layer_ids: Sequence[int]
) -> list[torch.Tensor]:
    """States [T, K, H] of each row of ``ids``: run alone, unpadded, float32, without a cache.

    They are taken by a forward hook on each decoder layer.
    """
    model = load_plain(model_folder)
    layers = decoder_of(model).layers
    caught: dict[int, torch.Tensor] = {}

    def catch(index: int) -> Callable[..., None]:
        def hook(_module: object, _arguments: object, output: Any) -> None:
            caught[index] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    for index in layer_ids:
        layers[index].register_forward_hook(catch(index))
    states = []
    for row in ids:
        model(input_ids=torch.tensor([row]), use_cache=False)
        states.append(torch.stack([caught[index] for index in layer_ids], dim=1))
    return states
