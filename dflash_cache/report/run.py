"""What a run's folder says, finished or not."""

import json
from collections.abc import Mapping
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
from dflash_cache.shapes import NUMBER, misfit

Record = dict[str, Any]
_RUN = {"cache": dict, "settings": dict, "num_rows": int, "held_out_rows": [int]}
_TRAINING = {"steps": int, "block_acceptance_length?": NUMBER, "slot_accuracy?": [NUMBER]}
_LOGGED = {
    "step": int,
    "loss": NUMBER,
    "tokens": int,
    "block_acceptance_length": NUMBER,
    "slot_accuracy": [NUMBER],
    **dict.fromkeys(("lr?", "tokens_per_s?", "waiting_share?"), NUMBER),
}
_MEASURED = {"step": int, "held_out_block_acceptance_length": NUMBER}


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
        record = _read(folder / RUN, _RUN)
        return cls(
            folder=folder,
            record=record,
            spec=CacheSpec.from_dict(record["cache"]),
            settings=_read(folder / SETTINGS),
            metrics=_lines(folder / METRICS),
            training=_read(folder / EXPORT / TRAINING, _TRAINING),
            outcome=load_outcome(folder),
            evaluation=load_evaluation(folder),
        )

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Steps, and the figure ``name`` at each, [points]; by slot [points, slots]."""
        lines = [line for line in self.metrics if name in line]
        steps = np.array([line["step"] for line in lines], np.int64)
        return steps, np.array([line[name] for line in lines], np.float64)


def _read(path: Path, shape: Mapping[str, Any] | None = None) -> Record:
    try:
        content: Record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); restore it from a copy") from error
    if fault := misfit(content, shape or {}):
        raise DataError(f"{path} is damaged: {fault}; restore it from a copy")
    return content


def _lines(path: Path) -> list[Record]:
    """The lines of ``metrics.jsonl``; the last one may just be written, and is then left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    read = []
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n"):
            try:
                figures = json.loads(line)
                fault = _fault_of_line(figures)
            except (ValueError, RecursionError) as error:
                fault = str(error)
            if fault:
                raise DataError(f"{path}, line {number}: {fault}; remove that line")
            read.append(figures)
    return read


def _fault_of_line(figures: Any) -> str | None:
    """Of ``metrics.jsonl``: a line of a step, or of held-out rows."""
    is_logged = isinstance(figures, dict) and "loss" in figures
    return misfit(figures, _LOGGED if is_logged else _MEASURED)
