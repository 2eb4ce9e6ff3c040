"""Real processes under torchrun, for tests of training with several ranks.

As a script it trains as ``train_config`` says, with each rank's rows noted by step:
``ranks.py FOLDER OUT [RANK STEP FAULT]``. The fault comes at one rank after that step.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from dflash_cache.config import TrainConfig
from dflash_cache.runs.train import train
from dflash_cache.train import DrafterStep
from tests.support.runs import train_config

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120


def ranks_config(folder: Path, out: Path) -> TrainConfig:
    """Steps of four rows in two micro-batches; 34 rows an epoch, so the last step has two."""
    config = train_config(folder, batch_size=2, grad_accum=2, save_every=100)
    return replace(config, out=out)


def torchrun(script: Path, *arguments: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return subprocess.run(
        [*words, str(ranks), str(script), *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


class NotedStep:
    """Wraps ``DrafterStep.step``: appends the rows of each step to a file, then may fail."""

    def __init__(self, path: Path, fail=None, after: int = 0) -> None:
        self._inner = DrafterStep.step
        self._path, self._fail, self._after = path, fail, after
        self._steps = 0

    def __get__(self, step, owner):
        return lambda batches: self.run(step, batches)

    def run(self, step, batches):
        if self._fail and self._steps == self._after:
            self._fail()
        rows = []
        result = self._inner(step, (rows.extend(each.row_ids) or each for each in batches))
        self._steps += 1
        with self._path.open("a") as file:
            file.write(json.dumps(rows) + "\n")
        return result


def unplug() -> None:
    raise OSError("the machine was unplugged")


FAULTS = {
    "error": unplug,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def main(folder: str, out: str, rank: str = "", after: str = "0", fault: str = "") -> None:
    from dflash_cache.pipeline import stop_on_signals

    own = os.environ["RANK"]
    fail = FAULTS[fault] if rank == own else None
    DrafterStep.step = NotedStep(Path(out) / f"rows-{own}", fail, int(after))
    with stop_on_signals():
        train(ranks_config(Path(folder), Path(out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
