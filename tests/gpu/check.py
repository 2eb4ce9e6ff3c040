"""What only a CUDA device can show, in one script of under four minutes; a JSON report on stdout.

    python tests/gpu/check.py            the small checks, and on CUDA a step at full size
    python tests/gpu/check.py --small    the small checks alone, on any device

The small checks compare the fused attention with the tiles, output and gradients, and the states
that cross to the host beside the next forward pass with those copied alone. At full size, the
drafter of an 8B target (5 layers, hidden 4096, context 4096, 512 anchors), a step is timed, with
its share of the matrix rate measured on the same device, with and without copies that overlap it.
This script was written without a CUDA device: its CPU part runs in the tests, the rest has not run.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import deque
from itertools import cycle, islice, repeat
from pathlib import Path

import torch

from dflash_cache import demo
from dflash_cache.config import ExtractConfig, TrainConfig
from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.drafter.config import FULL, DrafterConfig
from dflash_cache.drafter.flex import FlexAttention
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import prepare
from dflash_cache.target import BatchUnderWay, CopyStream, StagingBuffer, capture_batch
from dflash_cache.train import DrafterStep, Position, prepare_ahead
from dflash_cache.train.batches import TrainingBatch
from dflash_cache.types import DraftBatch

VISIBILITIES = [(False, None), (True, 100)]
STEPS = 8


def compare(device: torch.device) -> dict[str, float]:
    """Largest difference, fused against tiles, in float32: outputs, and gradients on CUDA."""
    generator = torch.Generator().manual_seed(0)
    offsets, size = torch.tensor([0, 300, 301, 700]), 16
    anchors = (torch.rand(700, generator=generator) < 0.05).nonzero().flatten()
    shapes = [
        (len(anchors) * size, 4, 64),
        *[(700, 2, 64)] * 2,
        *[(len(anchors) * size, 2, 64)] * 2,
    ]
    drawn = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    differences = {}
    for sees in VISIBILITIES:
        results = []
        for kind in (TiledAttention, FlexAttention):
            inputs = [tensor.clone().requires_grad_(device.type == "cuda") for tensor in drawn]
            query, key, value, own_key, own_value = inputs
            plan = kind.plan(offsets, anchors, size, [sees]).to(device)
            output = plan(query, (key, value), (own_key, own_value), sees)
            found = [output.detach()]
            if output.requires_grad:
                output.square().sum().backward()
                found += [tensor.grad for tensor in inputs]
            results.append(found)
        gaps = [float((a - b).abs().max()) for a, b in zip(*results, strict=True)]
        name = f"causal {sees[0]}, window {sees[1]}"
        differences |= {f"{name}: output": gaps[0]}
        differences |= {f"{name}: gradients": max(gaps[1:])} if gaps[1:] else {}
    return differences


def compare_states(device: torch.device, num_batches: int = 6) -> dict[str, object]:
    """The demo target's states of a few batches, sent one behind the other, against each alone."""
    with tempfile.TemporaryDirectory() as folder:
        preparation = prepare(
            ExtractConfig(
                data=demo.DATA, target=str(demo.TARGET), cache=str(Path(folder, "cache")),
                devices=(str(device),), limit=num_batches,
            )
        )  # fmt: skip
        (capture,) = load_captures(preparation).values()
        pairs = zip(preparation.survey.row_ids, preparation.survey.lengths, strict=True)
        rows = [preparation.rows.sequence(int(row), int(length)) for row, length in pairs]
    pinned = device.type == "cuda"
    longest = int(preparation.survey.lengths.max())
    buffers = [StagingBuffer.allocate(preparation.spec, longest, pinned=pinned) for _ in range(2)]
    copies, arrived = CopyStream(device), []
    under_way: deque[BatchUnderWay] = deque()
    for row, buffer in zip(rows, cycle(buffers), strict=False):
        if len(under_way) == len(buffers):  # the next takes this one's buffer
            arrived.append(states_of(under_way.popleft()))
        under_way.append(capture_batch(capture, [row], buffer, lambda: None, copies))
    arrived += map(states_of, under_way)
    alone = [capture.hidden_states([torch.from_numpy(row.input_ids).long()]) for row in rows]
    equal = [torch.equal(found, own.cpu()) for found, own in zip(arrived, alone, strict=True)]
    return {"batches": len(equal), "equal": all(equal)}


def states_of(batch: BatchUnderWay) -> torch.Tensor:
    return batch.staging.hidden_TKH[: batch.finish().num_tokens].clone()


def shape_8b() -> DrafterConfig:
    return DrafterConfig(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=5, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
        rms_norm_eps=1e-6, rope_theta=1e6, block_size=16, mask_token_id=151669,
        target_layer_ids=(1, 9, 17, 25, 33), num_target_layers=36, layer_types=(FULL,) * 5,
    )  # fmt: skip


def batch_8b(config: DrafterConfig, context: int = 4096, anchors: int = 512) -> DraftBatch:
    generator = torch.Generator().manual_seed(0)
    shape = (context, len(config.target_layer_ids), config.hidden_size)
    return DraftBatch(
        hidden_TKH=torch.randn(shape, generator=generator).bfloat16(),
        input_ids=torch.randint(0, 151000, (context,), generator=generator),
        loss_mask=torch.ones(context, dtype=torch.bool),
        offsets=torch.tensor([0, context]),
        anchors=torch.randperm(context - 1, generator=generator)[:anchors].sort().values,
        row_ids=(0,),
    )


def operations(config: DrafterConfig, batch: DraftBatch) -> float:
    """Of the products that a step needs: see tests/benchmarks/drafter_step.py."""
    hidden, head_dim = config.hidden_size, config.head_dim
    inner, grouped = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    queries = len(batch.anchors) * config.block_size
    of_query = 2 * hidden * (inner + grouped) + 3 * hidden * config.intermediate_size
    visible = config.block_size * int(batch.anchors.sum()) + queries * config.block_size
    layer = queries * of_query + batch.num_tokens * 2 * hidden * grouped + visible * 2 * inner
    projection = batch.num_tokens * len(config.target_layer_ids) * hidden * hidden
    head = len(batch.anchors) * (config.block_size - 1) * hidden * config.vocab_size
    return 2.0 * (3 * config.num_hidden_layers * layer + 2 * projection + 2 * head)


def matrix_rate(device: torch.device, size: int = 8192) -> float:
    left, right = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    left @ right
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(10):
        left @ right
    torch.cuda.synchronize(device)
    return 10 * 2.0 * size**3 / (time.perf_counter() - began)


def full_size(device: torch.device) -> dict[str, object]:
    config = shape_8b()
    generator = torch.Generator(device).manual_seed(0)
    embedding = torch.randn(
        151936, 4096, device=device, dtype=torch.bfloat16, generator=generator
    ).mul_(0.02)
    settings = TrainConfig(cache="cache", out=Path("run"), device=str(device))
    drafter = DFlashDrafter.fresh(config, 0)
    step = DrafterStep(drafter, embedding, embedding, settings, 1000)
    batch = batch_8b(config)
    resident = step.prepare(batch).to(device)
    item = TrainingBatch(batch=batch, position=Position(), ends_epoch=False)
    ways = {"resident": lambda: repeat(resident, STEPS), "copied": lambda: copied(step, item)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    step.step([resident])  # compiles
    for number in range(3):
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            seconds[name] += timed(step, ways[name](), device)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rate = matrix_rate(device)
    return {
        "step_s": {name: round(each, 4) for name, each in medians.items()},
        "copied_of_resident": round(medians["copied"] / medians["resident"], 4),
        "matrix_tflops": round(rate / 1e12, 1),
        "share_of_matrix_rate": round(operations(config, batch) / rate / medians["resident"], 4),
        "peak_bytes": torch.cuda.max_memory_allocated(device),
    }


def copied(step: DrafterStep, item: TrainingBatch):
    """The same batch, prepared, pinned and sent anew for every step, as in a run."""
    with Pipeline("check") as pipeline:
        packed = pipeline.source("packed", [item] * (STEPS + 4))
        ready = prepare_ahead(pipeline, packed, step.prepare, step.device)
        pipeline.start()
        yield from islice((each.batch for each in ready), STEPS)
        ready.abort()


def timed(step: DrafterStep, batches, device: torch.device) -> list[float]:
    """Seconds of each step but the first, waits for its batch included."""
    seconds = []
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for batch in batches:
        step.step([batch])
        torch.cuda.synchronize(device)
        now = time.perf_counter()
        seconds.append(now - began)
        began = now
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report: dict[str, object] = {
        "device": str(device),
        "difference": compare(device),
        "states": compare_states(device),
    }
    if device.type == "cuda" and not arguments.small:
        report["full_size"] = full_size(device)
    print(json.dumps(report, indent=1))
    if not report["states"]["equal"]:  # type: ignore[index]
        raise SystemExit(1)


if __name__ == "__main__":
    main()
