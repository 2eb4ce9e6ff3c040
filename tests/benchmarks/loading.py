"""Training from a cache against the same batches from memory, and a reader that is too slow.

    python tests/benchmarks/loading.py [--rounds 5] [--steps 20] [--rows 400] [--folder DIR]

Every round makes the same steps once from each, in turn; the first batch of each way is taken
before its clock starts. The report, JSON on stdout, has the median step times and their ratio, the
share of the time that training waited for a batch, and what a run with a slow reader reports.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.config import ExtractConfig, TrainConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import TrainingRun
from dflash_cache.train import (
    DrafterStep,
    Position,
    TrainingOrder,
    as_tensor,
    prefetch,
    prepare_ahead,
)

MASK = 4


class SlowSource:
    """A disk that takes ``delay_s`` for every segment."""

    def __init__(self, cache: Cache, delay_s: float) -> None:
        self._cache, self._delay_s = cache, delay_s

    def read(self, index, row_ids=None):
        time.sleep(self._delay_s)
        return self._cache.read(index, row_ids)


def make_step(cache: Cache, config: TrainConfig) -> DrafterStep:
    parts = cache.target
    drafter = DrafterConfig.for_target(
        parts.config,
        vocab_size=len(parts.embedding),
        num_layers=config.draft_layers,
        block_size=config.block_size,
        mask_token_id=MASK if parts.mask_token_id is None else parts.mask_token_id,
        target_layer_ids=cache.spec.target_layer_ids,
    )
    embedding = as_tensor(parts.embedding).float()
    head = embedding if parts.head is None else as_tensor(parts.head).float()
    return DrafterStep(DFlashDrafter.fresh(drafter, 0), embedding, head, config, 10_000)


def from_cache(cache: Cache, step: DrafterStep, config: TrainConfig, count: int) -> Iterator:
    """``count`` batches as a run gets them."""
    order = TrainingOrder(cache.plan, np.zeros(0, np.int64), seed=0, window_segments=4)
    with Pipeline("loading") as pipeline:
        packed = prefetch(pipeline, cache, order, Position(), config)
        batches = prepare_ahead(pipeline, packed, step.prepare, step.device)
        pipeline.start()
        yield from islice((item.batch for item in batches), count)
        batches.abort()


def timed(step: DrafterStep, batches: Iterable) -> tuple[list[float], float]:
    """Seconds of each step after the first, its wait included, and the seconds waited in all."""
    source = iter(batches)
    step.step([next(source)])
    seconds, waited_s = [], 0.0
    while True:
        began = time.perf_counter()
        batch = next(source, None)
        arrived = time.perf_counter()
        if batch is None:
            return seconds, waited_s
        step.step([batch])
        waited_s += arrived - began
        seconds.append(time.perf_counter() - began)


def compared(cache: Cache, config: TrainConfig, rounds: int, num_steps: int) -> dict[str, float]:
    step = make_step(cache, config)
    kept = list(from_cache(cache, step, config, num_steps + 1))
    seconds: dict[str, list[float]] = {"cache": [], "memory": []}
    waits = []
    for number in range(rounds):
        for way in list(seconds) if number % 2 else list(seconds)[::-1]:
            batches = from_cache(cache, step, config, num_steps + 1) if way == "cache" else kept
            found, waited_s = timed(step, batches)
            seconds[way] += found
            if way == "cache":
                waits.append(waited_s / sum(found))
    cached, memory = (statistics.median(seconds[way]) for way in ("cache", "memory"))
    return {
        "step_s_from_cache": round(cached, 4),
        "step_s_from_memory": round(memory, 4),
        "cache_of_memory": round(cached / memory, 4),
        "waiting_share": round(statistics.median(waits), 5),
    }


def throttled(cache: Cache, config: TrainConfig) -> dict[str, object]:
    """What the report of a run says whose reader takes a second and a half a segment."""
    run = TrainingRun(replace(config, steps=6, draft_layers=1, shuffle_segments=1), cache)
    began = time.perf_counter()
    with Pipeline("throttled") as pipeline:
        run.spawn(pipeline, SlowSource(cache, 1.5), lambda progress: None)
        pipeline.start()
    report = run.report(pipeline.statistics, time.perf_counter() - began)
    return {name: report[name] for name in ("waiting_share", "slow_stage")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # another core is the readers'
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        cache_folder = str(folder / "cache")
        extract(
            ExtractConfig(
                data=demo.DATA, target=str(demo.TARGET), cache=cache_folder, devices=("cpu",),
                limit=arguments.rows, segment_tokens=4096,
            )
        )  # fmt: skip
        config = TrainConfig(
            cache=cache_folder, out=folder / "run", device="cpu", draft_layers=2, block_size=8,
            anchors=48, shuffle_segments=4, holdout=0,
        )  # fmt: skip
        cache = Cache.open(cache_folder)
        report = compared(cache, config, arguments.rounds, arguments.steps)
        print(json.dumps({**report, "slow_reader": throttled(cache, config)}, indent=1))


if __name__ == "__main__":
    main()
