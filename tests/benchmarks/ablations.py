"""What three choices are worth, on the bundled demo: anchors, context layers, features at all.

    python tests/benchmarks/ablations.py [--steps 300] [--seeds 3] [--rows N] [--write]

Every way trains the same number of steps on the same rows from the same seeds; ways and seeds take
turns. Measured is the block acceptance length on the held-out rows, at the same random anchors for
all. The report, JSON on stdout, has means with 95 % intervals (Student's t over the seeds), and of
each way the difference from the usual one, seed by seed. With --write it becomes a page of the
documentation. Switches that no user would want, such as zeroed features, are in this script alone.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.config import ExtractConfig, TrainConfig
from dflash_cache.drafter.blocks import eligible_anchors
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs.extract import extract
from dflash_cache.train import (
    DrafterStep,
    Position,
    SegmentSource,
    SelectedStates,
    TrainingOrder,
    as_tensor,
    held_out_rows,
    measure_held_out,
    prefetch,
)
from dflash_cache.types import DraftBatch

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "ablations.md"
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile, by number of seeds


class ZeroStates:
    """Hidden states that say nothing."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source

    def read(self, index, row_ids=None):
        segment = self._source.read(index, row_ids)
        return replace(segment, hidden_TKH=np.zeros_like(segment.hidden_TKH))


def fixed_blocks(batch: DraftBatch, block_size: int) -> DraftBatch:
    """As many anchors or fewer, at every block's end, the same in every epoch."""
    bounds = batch.offsets.tolist()
    most = max(1, len(batch.anchors) // batch.num_sequences)
    chosen = [
        eligible_anchors(batch.loss_mask[start:stop].numpy().astype(np.uint8))[::block_size][:most]
        + start
        for start, stop in pairwise(bounds)
    ]
    return replace(batch, anchors=torch.from_numpy(np.concatenate(chosen)))


@dataclass(frozen=True)
class Way:
    """One thing done otherwise."""

    words: str
    columns: tuple[int, ...] | None = None  # of the K axis; None: all
    zero: bool = False
    fixed: bool = False

    def source(self, cache: Cache) -> SegmentSource:
        source: SegmentSource = ZeroStates(cache) if self.zero else cache
        return source if self.columns is None else SelectedStates(source, self.columns)

    def change(self, batch: DraftBatch, block_size: int) -> DraftBatch:
        return fixed_blocks(batch, block_size) if self.fixed else batch


WAYS = {
    "usual": Way("random anchors, five context layers"),
    "fixed blocks": Way("blocks laid end to end, the same in every epoch", fixed=True),
    "one layer": Way("the third of the five context layers alone", columns=(2,)),
    "no features": Way("hidden states set to zero", zero=True),
}


def make_step(cache: Cache, config: TrainConfig, way: Way) -> DrafterStep:
    parts, ids = cache.target, cache.spec.target_layer_ids
    shape = DrafterConfig.for_target(
        parts.config,
        vocab_size=len(parts.embedding),
        num_layers=config.draft_layers,
        block_size=config.block_size,
        mask_token_id=parts.mask_token_id,
        target_layer_ids=ids if way.columns is None else tuple(ids[each] for each in way.columns),
    )
    embedding = as_tensor(parts.embedding)
    head = embedding if parts.head is None else as_tensor(parts.head)
    drafter = DFlashDrafter.fresh(shape, config.seed)
    return DrafterStep(drafter, embedding, head, config, config.steps)


def trained(cache: Cache, config: TrainConfig, way: Way) -> float:
    """The held-out block acceptance length after ``config.steps`` steps."""
    plan = cache.plan
    held_out = held_out_rows(np.concatenate([each.row_ids for each in plan]), config.holdout)
    order = TrainingOrder(plan, held_out, seed=config.seed, window_segments=8)
    step, source = make_step(cache, config, way), way.source(cache)
    with Pipeline("ablation") as pipeline:
        batches = prefetch(pipeline, source, order, Position(), config)
        pipeline.start()
        for item in islice(batches, config.steps):
            step.step([way.change(item.batch, config.block_size)])
        batches.abort()
    segments = [
        (each.index, rows) for each in plan if len(rows := np.intersect1d(each.row_ids, held_out))
    ]
    sizes = config.batch_size, config.anchors
    return measure_held_out(step, source, segments, *sizes, lambda: None).block_acceptance_length


def interval(values: list[float]) -> list[float]:
    """[mean, half the width of its 95 % interval]."""
    width = STUDENT_T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return [round(statistics.mean(values), 4), round(width, 4)]


def page(report: dict, command: str) -> str:
    rows = "\n".join(
        f"| {name} | {WAYS[name].words} | {mean:.3f} ± {width:.3f} | "
        f"{report['difference'].get(name, [0, 0])[0]:+.3f} ± "
        f"{report['difference'].get(name, [0, 0])[1]:.3f} |"
        for name, (mean, width) in report["block_acceptance_length"].items()
    )
    return f"""# What the choices are worth

Three choices of the recipe, tried on the bundled demo: a tiny target, {report["rows"]} rows,
{report["steps"]} steps, {report["seeds"]} seeds. Figures are block acceptance lengths on held-out
rows (teacher-forced), means with 95 % intervals over the seeds. The last column is the difference
from the usual way, taken seed by seed.

| way | what is done | block acceptance length | difference |
|---|---|---|---|
{rows}

A small target says which way the choices point, not what they are worth for a large one.
Fixed blocks are fewer than random anchors on short rows; a row is done with them sooner. Made with:

```text
{command}
```
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3, choices=STUDENT_T)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "cache")
        extract(
            ExtractConfig(
                data=demo.DATA, target=str(demo.TARGET), cache=cache, devices=("cpu",),
                limit=arguments.rows, segment_tokens=4096, batch_tokens=4096, codec="crc32c",
            )
        )  # fmt: skip
        config = TrainConfig(
            cache=cache, out=Path(folder) / "run", device="cpu", draft_layers=2, block_size=8,
            anchors=48, steps=arguments.steps, lr=2e-3,
        )  # fmt: skip
        opened = Cache.open(cache)
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        for seed in range(arguments.seeds):
            for name, way in WAYS.items():
                found[name].append(trained(opened, replace(config, seed=seed), way))
                sys.stderr.write(f"seed {seed}, {name}: {found[name][-1]:.3f}\n")
        num_rows = sum(len(each.row_ids) for each in opened.plan)
    usual = found["usual"]
    report = {
        "rows": num_rows,
        "steps": arguments.steps,
        "seeds": arguments.seeds,
        "block_acceptance_length": {name: interval(values) for name, values in found.items()},
        "difference": {
            name: interval([a - b for a, b in zip(values, usual, strict=True)])
            for name, values in found.items()
            if name != "usual"
        },
        "wall_s": round(time.perf_counter() - began, 1),
    }
    if arguments.write:
        flags = " ".join(sys.argv[1:])
        PAGE.write_text(page(report, f"python tests/benchmarks/ablations.py {flags}"))
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
