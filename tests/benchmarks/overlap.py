"""``both --overlap`` against the longer of its phases, on devices that only sleep; and for real.

    python tests/benchmarks/overlap.py [--batches 600] [--scale 0.01667] [--rounds 3] [--folder DIR]
        [--only bound_by_target bound_by_drafter demo]

``bound_by_target``: three targets of 12 s a batch and a drafter of 3 s a batch;
``bound_by_drafter``: of 12 s and 6 s; both times ``--scale``. What sleeps is the target's forward
pass and the drafter's step. Reading rows, writing the cache, loading from it, packing batches,
checkpoints, and the measurement and export at the end are the program's own, on the demo's shapes.

Every round runs the phases in turn, then overlapped. JSON on stdout, medians over the rounds:
``overlap_of_longer``: overlapped seconds over those of the longer phase in the run in turn, by the
phases' own clocks. ``target_busy``: the share of its time that the target stage computes,
overlapped. ``loader_share``: the share of training's time without a batch when the whole cache is
there. ``demo``: the same command with the demo target and a real drafter on this CPU, overlapped
over in turn, whole commands.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash_cache import demo
from dflash_cache.config import BothConfig, ExtractConfig, TrainConfig
from dflash_cache.runs.both import both
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import Preparation
from dflash_cache.target import LayerCapture
from dflash_cache.train.step import DrafterStep, StepResult
from dflash_cache.types import DraftBatch
from tests.support.simulated_device import SimulatedCapture

ROW_TOKENS, BATCH_ROWS, NUM_TARGETS = 64, 8, 3
BATCH_TOKENS = ROW_TOKENS * BATCH_ROWS


def write_rows(folder: Path, num_rows: int) -> Path:
    """Rows of one length, so that every batch takes the same time."""
    rng = np.random.default_rng(0)
    ids = rng.integers(8, 2000, (num_rows, ROW_TOKENS), dtype=np.int32)
    mask = np.ones_like(ids, dtype=np.int8)
    rows = {"input_ids": list(ids), "loss_mask": list(mask)}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "rows")
    return folder / "rows"


def settings(data: Path, folder: Path, *, overlap: bool, **changes: Any) -> BothConfig:
    extract = ExtractConfig(
        data=data,
        target=str(demo.TARGET),
        cache=folder / "cache",
        devices=("cpu",) * changes.pop("num_targets", 1),
        **changes.pop("extract", {}),
    )
    train = TrainConfig(
        cache=folder / "cache", out=folder / "run", device="cpu", draft_layers=1, **changes
    )
    return BothConfig(extract=extract, train=train, overlap=overlap)


@contextmanager
def simulated(token_s: float, step_s: float) -> Iterator[None]:
    """Target and drafter sleep instead of computing."""

    def captures(preparation: Preparation) -> dict[str, LayerCapture]:
        (capture,) = load_captures(preparation).values()
        return {"cpu": SimulatedCapture(capture, token_s, BATCH_TOKENS)}

    def step(self: DrafterStep, batches: Iterable[DraftBatch]) -> StepResult:
        num_tokens = sum(batch.num_tokens for batch in batches)
        time.sleep(step_s)
        return StepResult(
            loss=1.0, grad_norm=1.0, lr=1e-3, block_acceptance_length=1.0, slot_accuracy=[1.0],
            num_tokens=num_tokens, num_blocks=1,
        )  # fmt: skip

    with (
        mock.patch("dflash_cache.runs.extract.load_captures", captures),
        mock.patch.object(DrafterStep, "step", step),
    ):
        yield


def run(data: Path, root: Path | None, *, overlap: bool, **changes: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=root) as folder:
        return both(settings(data, Path(folder), overlap=overlap, **changes))


def simulated_report(
    arguments: argparse.Namespace, data: Path, target_s: float, drafter_s: float
) -> dict[str, float]:
    scale = arguments.scale
    changes: dict[str, Any] = {
        "num_targets": NUM_TARGETS,
        "extract": {"segment_tokens": BATCH_TOKENS, "batch_tokens": BATCH_TOKENS},
        "batch_size": BATCH_ROWS, "block_size": 4, "anchors": 4, "epochs": 1, "holdout": BATCH_ROWS,
    }  # fmt: skip
    rounds = []
    with simulated(target_s * scale / BATCH_TOKENS, drafter_s * scale):
        for _ in range(arguments.rounds):
            turn = run(data, arguments.folder, overlap=False, **changes)
            over = run(data, arguments.folder, overlap=True, **changes)
            longer = max(turn["extract"]["wall_s"], turn["train"]["wall_s"])
            target = over["extract"]["stages"]["target"]
            rounds.append(
                {
                    "overlap_of_longer": over["train"]["wall_s"] / longer,
                    "overlap_of_in_turn": over["wall_s"] / turn["wall_s"],
                    "overlapped_s": over["train"]["wall_s"],
                    "extract_s": turn["extract"]["wall_s"],
                    "train_s": turn["train"]["wall_s"],
                    "target_busy": target["busy_s"] / sum(target.values()),
                    "loader_share": turn["train"]["waiting_share"],
                }
            )
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def demo_report(arguments: argparse.Namespace) -> dict[str, float]:
    """Real target and drafter; both ways share this machine's cores."""
    changes = {"extract": {"limit": arguments.rows}, "epochs": 1, "holdout": 16}
    ways: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds + 1):  # the first one warms up
        for overlap in (False, True) if number % 2 else (True, False):
            report = run(demo.DATA, arguments.folder, overlap=overlap, **changes)
            ways[overlap].append(report["wall_s"])
    medians = {overlap: statistics.median(seconds[1:]) for overlap, seconds in ways.items()}
    return {
        "overlap_of_in_turn": medians[True] / medians[False],
        "in_turn_s": medians[False],
        "overlapped_s": medians[True],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--scale", type=float, default=1 / 60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200, help="of the demo")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    report = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        data = write_rows(Path(folder), arguments.batches * BATCH_ROWS)
        ways = {
            "bound_by_target": lambda: simulated_report(arguments, data, 12.0, 3.0),
            "bound_by_drafter": lambda: simulated_report(arguments, data, 12.0, 6.0),
            "demo": lambda: demo_report(arguments),
        }
        for name in arguments.only or ways:
            found = ways[name]()
            report[name] = {key: float(f"{value:.4g}") for key, value in found.items()}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
