"""One optimizer step of ours against the same drafter with one dense mask, on the CPU.

    python tests/benchmarks/drafter_step.py [--rounds 5] [--hidden 256,1024] [--skip-memory]

The other way is torch's scaled_dot_product_attention over all context tokens and all block tokens
at once, with a boolean mask; weights, batch, anchors, head, loss and optimizer are the same. Both
run once a round, in turn. The report, JSON on stdout, gives medians, ratios, the largest difference
of losses and gradients, peak memory (of a process each), and the floor: the multiplications that
the visible pairs and the weights ask for, at the rate of torch's matrix product measured between
the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from dflash_cache.config import TrainConfig
from dflash_cache.drafter.attention import Tile, tile_mask
from dflash_cache.drafter.config import FULL, DrafterConfig
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.train import DrafterStep
from dflash_cache.types import DraftBatch

CONTEXT, ANCHORS, BLOCK, LAYERS, FEATURES, VOCABULARY = 2048, 256, 16, 5, 5, 4096
WAYS = ("ours", "dense")


@dataclass(frozen=True)
class DenseAttention:
    """Every block over every token, with what it may not see masked."""

    mask: torch.Tensor  # bool [Q, T + Q]

    def __call__(self, query, context, block, sees):
        key, value = (torch.cat(pair).transpose(0, 1) for pair in zip(context, block, strict=True))
        output = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key[None],
            value[None],
            attn_mask=self.mask,
            enable_gqa=True,
        )
        return output[0].transpose(0, 1)

    def to(self, device):
        return self


def drafter_config(hidden: int) -> DrafterConfig:
    return DrafterConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=LAYERS,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, head_dim=64,
        vocab_size=VOCABULARY, max_position_embeddings=4096, rms_norm_eps=1e-6,
        rope_theta=1e6, block_size=BLOCK, mask_token_id=VOCABULARY - 1,
        target_layer_ids=tuple(range(FEATURES)), num_target_layers=8, layer_types=(FULL,) * LAYERS,
    )  # fmt: skip


def make_step(config: DrafterConfig) -> DrafterStep:
    generator = torch.Generator().manual_seed(1)
    embedding, head = torch.randn(2, VOCABULARY, config.hidden_size, generator=generator) * 0.05
    settings = TrainConfig(cache="cache", out=Path("run"), device="cpu")
    return DrafterStep(DFlashDrafter.fresh(config, 0), embedding, head, settings, 1000)


def make_batch(config: DrafterConfig) -> DraftBatch:
    generator = torch.Generator().manual_seed(2)
    return DraftBatch(
        hidden_TKH=torch.randn(CONTEXT, FEATURES, config.hidden_size, generator=generator),
        input_ids=torch.randint(0, VOCABULARY - 1, (CONTEXT,), generator=generator),
        loss_mask=torch.ones(CONTEXT, dtype=torch.bool),
        offsets=torch.tensor([0, CONTEXT]),
        anchors=torch.randperm(CONTEXT - 1, generator=generator)[:ANCHORS].sort().values,
        row_ids=(0,),
    )


def batch_for(way: str, step: DrafterStep, batch: DraftBatch) -> DraftBatch:
    prepared = step.prepare(batch)
    if way == "ours":
        return prepared
    whole = Tile(first_token=0, last_token=CONTEXT, first_block=0, last_block=ANCHORS)
    mask = tile_mask(whole, batch.anchors, BLOCK, causal=False, window=None)
    return replace(prepared, attention=DenseAttention(mask))


def differences(config: DrafterConfig) -> dict[str, float]:
    """Of the loss, relative; of the gradients, over the largest of them."""
    found = {}
    for way in WAYS:
        step = make_step(config)
        loss, _ = step.forward(batch_for(way, step, make_batch(config)))
        loss.weighted_sum.backward()
        gradients = torch.cat([p.grad.flatten() for p in step.drafter.parameters()])
        found[way] = float(loss.weighted_sum.detach()), gradients
    (ours, ours_gradients), (dense, dense_gradients) = found.values()
    gap = (ours_gradients - dense_gradients).abs().max() / dense_gradients.abs().max()
    return {"loss": abs(ours - dense) / dense, "gradients": float(gap)}


def needed_operations(config: DrafterConfig, batch: DraftBatch) -> float:
    """Multiplications and additions of one step's products: twice the forward's again backward."""
    hidden, inner = config.hidden_size, config.num_attention_heads * config.head_dim
    grouped = config.num_key_value_heads * config.head_dim
    queries = ANCHORS * BLOCK
    mlp = 3 * hidden * config.intermediate_size
    of_block = queries * (2 * hidden * inner + 2 * hidden * grouped + mlp)
    of_context = CONTEXT * 2 * hidden * grouped
    visible = BLOCK * int(batch.anchors.sum()) + queries * BLOCK
    trained = LAYERS * (of_block + of_context + visible * 2 * inner)
    projection = CONTEXT * FEATURES * hidden * hidden  # its input needs no gradient
    head = ANCHORS * (BLOCK - 1) * hidden * VOCABULARY  # frozen: its weight needs none
    return 2.0 * (3 * trained + 2 * projection + 2 * head)


def matrix_rate(hidden: int) -> float:
    """Operations a second of one product as the model has them: [4096, H] x [H, 3 H]."""
    left, right = torch.randn(ANCHORS * BLOCK, hidden), torch.randn(hidden, 3 * hidden)
    began = time.perf_counter()
    for _ in range(3):
        left @ right
    return 3 * 2.0 * left.numel() * 3 * hidden / (time.perf_counter() - began)


def timed(hidden: int, rounds: int) -> dict[str, object]:
    config = drafter_config(hidden)
    batch = make_batch(config)
    steps = {way: make_step(config) for way in WAYS}
    batches = {way: batch_for(way, steps[way], batch) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    rates = []
    for number in range(rounds + 1):
        for way in WAYS if number % 2 else reversed(WAYS):
            began = time.perf_counter()
            steps[way].step([batches[way]])
            if number:  # the first round warms up
                seconds[way].append(time.perf_counter() - began)
        rates.append(matrix_rate(hidden))
    ours, dense = (statistics.median(seconds[way]) for way in WAYS)
    rate = statistics.median(rates)
    floor = needed_operations(config, batch) / rate
    return {
        "seconds": {"ours": round(ours, 3), "dense": round(dense, 3)},
        "times_faster": round(dense / ours, 3),
        "matrix_gflops": round(rate / 1e9, 1),
        "floor_s": round(floor, 3),
        "share_of_floor": round(floor / ours, 3),
        "difference": differences(config),
    }


def peak_memory(way: str, hidden: int) -> int:
    """The highest anonymous memory [bytes] of a process that makes two steps."""
    command = [sys.executable, __file__, "--measure", way, "--hidden", str(hidden)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(way: str, hidden: int) -> int:
    """In a process of its own: sampled by a thread, since the kernel keeps no mark of RssAnon."""
    import threading

    config = drafter_config(hidden)
    step = make_step(config)
    batch = batch_for(way, step, make_batch(config))
    highest, done = _anonymous_bytes(), threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        step.step([batch])
    done.set()
    watcher.join()
    return highest


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", default="256,1024", help="hidden sizes")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(arguments.measure, int(arguments.hidden)))
        return
    report = {}
    for hidden in map(int, arguments.hidden.split(",")):
        report[f"hidden {hidden}"] = timed(hidden, arguments.rounds)
        if not arguments.skip_memory:
            peaks = {way: peak_memory(way, hidden) for way in WAYS}
            report[f"hidden {hidden}"] |= {
                "peak_bytes": peaks,
                "peak_of_dense": round(peaks["ours"] / peaks["dense"], 3),
            }
    shape = {"context": CONTEXT, "anchors": ANCHORS, "block": BLOCK, "layers": LAYERS}
    settings = shape | {"vocabulary": VOCABULARY, "threads": torch.get_num_threads()}
    print(json.dumps({"settings": settings, **report}, indent=1))


if __name__ == "__main__":
    main()
