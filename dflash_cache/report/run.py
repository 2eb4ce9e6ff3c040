"""What a run's folder says, finished or not."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_cache.cache import CacheSpec
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.run_files import EXPORT, METRICS, RUN, SETTINGS, TRAINING
from dflash_cache.runs.evaluated import load_evaluation
from dflash_cache.runs.outcome import load_outcome
from dflash_cache.runs.record import require_run_record

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The content of a run's folder; what is not there yet is empty."""

    folder: Path
    record: Record  # what the run was made from
    spec: CacheSpec
    settings: Record
    metrics: list[Record]  # the lines of metrics.jsonl
    training: Record  # of the export: steps, figures of the held-out rows
    outcome: Record  # reports of the last starts, and the cache's size
    evaluation: Record  # {config, measured, report}

    @classmethod
    def load(cls, folder: Path) -> "Run":
        """``ConfigError`` if ``folder`` is no run, ``DataError`` if a file of it is damaged."""
        if not (folder / RUN).is_file():
            raise ConfigError(
                f"{folder} is no run: it has no {RUN}. Make one with: "
                f"dflash-cache train --cache C --out {folder}"
            )
        record = _read(folder / RUN)
        require_run_record(folder / RUN, record)
        return cls(
            folder=folder,
            record=record,
            spec=CacheSpec.from_dict(record["cache"]),
            settings=_read(folder / SETTINGS),
            metrics=_lines(folder / METRICS),
            training=_read(folder / EXPORT / TRAINING),
            outcome=load_outcome(folder),
            evaluation=load_evaluation(folder),
        )

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Steps, and the figure ``name`` at each, [points]; by slot [points, slots]."""
        lines = [line for line in self.metrics if name in line]
        steps = np.array([line["step"] for line in lines], np.int64)
        return steps, np.array([line[name] for line in lines], np.float64)


def _read(path: Path) -> Record:
    try:
        content: Record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); restore it from a copy") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: it holds no object; restore it from a copy")
    return content


def _lines(path: Path) -> list[Record]:
    """The lines of ``metrics.jsonl``; the last one may just be written, and is then left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    read = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            try:
                read.append(json.loads(line))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}; remove that line") from error
    return read
