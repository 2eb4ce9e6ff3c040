"""Where the figures of a run go: to a file always, to a tracker if one is asked for.

Another tracker is a class with ``log``, a name in ``TrainConfig.tracker`` and a line in
``trackers_for``.
"""

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from dflash_cache.cache import write_atomically
from dflash_cache.config import TrainConfig
from dflash_cache.errors import ConfigError
from dflash_cache.run_files import METRICS

Figures = Mapping[str, float | list[float]]  # a list has a figure a slot, from slot 1

TENSORBOARD = "tensorboard"


class Tracker(Protocol):
    """Takes the figures of a run as they come; steps never go back."""

    def log(self, step: int, figures: Figures) -> None: ...


class JsonLines:
    """One object a call, with its ``step``. Lines after a resumed step are cut."""

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= last_step]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    def log(self, step: int, figures: Figures) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **figures}) + "\n")


def _step_of(line: str) -> float:
    """The step that ``line`` is about; beyond all steps for a line that was cut or altered."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class TensorBoard:
    """Scalars, a list as one scalar a slot. Events after a resumed step are hidden."""

    def __init__(self, folder: Path, last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # With a purge step the first event says that those from it on were made again.
        self._writer = SummaryWriter(folder, purge_step=last_step + 1 if last_step else None)

    def log(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            if isinstance(value, list):
                for slot, share in enumerate(value, start=1):
                    self._scalar(f"{name}/slot_{slot:02d}", share, step)
            else:
                self._scalar(name, value, step)
        self._writer.flush()  # a crash keeps what was logged

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)


def require_tracker(config: TrainConfig) -> None:
    """``ConfigError`` if the tracker's package is not installed."""
    if config.tracker == "tensorboard" and find_spec("tensorboard") is None:
        raise ConfigError(
            "--tracker tensorboard: its package is not installed; run "
            "pip install 'dflash-cache[tensorboard]'"
        )


def trackers_for(config: TrainConfig, last_step: int) -> list[Tracker]:
    """Those of a run that goes on after ``last_step``."""
    trackers: list[Tracker] = [JsonLines(config.out / METRICS, last_step)]
    if config.tracker == "tensorboard":
        trackers.append(TensorBoard(config.out / TENSORBOARD, last_step))
    return trackers
