"""Checkpoints that are whole or absent, found by number."""

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dflash_cache.cache import digest, file_fingerprint, fsync_path, fsync_tree, remove_tree
from dflash_cache.errors import TrainingError

from .order import Position

_UNFINISHED = ".writing-"
_NAME = re.compile(r"step-\d{8}")
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
SCORE = "block_acceptance_length"  # of the held-out rows


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Where a run stands after ``step`` optimizer steps."""

    step: int
    position: Position
    num_tokens: int
    loss_first: float
    loss_last: float


class CheckpointStore:
    """``step-00000100`` folders; each is written aside, made durable and renamed into place.

    ``keep`` newest ones are kept, and with ``keep_best`` the one with the highest score too.
    """

    def __init__(self, folder: Path, keep: int, *, keep_best: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._keep_best = keep_best

    def save(
        self,
        state: TrainingState,
        weights: dict[str, torch.Tensor],
        optimizer: dict[str, Any],
        score: float | None = None,
    ) -> None:
        """Write a checkpoint and drop what need not be kept; ``score``: higher is better."""
        for leftover in self._folder.glob(f"{_UNFINISHED}*"):
            remove_tree(leftover)
        target = self._folder / f"step-{state.step:08d}"
        fresh = self._folder / f"{_UNFINISHED}{target.name}"
        fresh.mkdir(parents=True)
        save_file(weights, fresh / WEIGHTS)
        torch.save(optimizer, fresh / OPTIMIZER)
        files = {name: file_fingerprint(fresh / name) for name in (WEIGHTS, OPTIMIZER)}
        record = asdict(state) | {SCORE: score, "files": files}
        record["digest"] = _digest_of(record)
        (fresh / STATE).write_text(json.dumps(record, indent=1))
        fsync_tree(fresh)
        remove_tree(target)  # a torn one of the same step
        fresh.rename(target)
        fsync_path(self._folder)
        # Higher numbers are torn ones that this run went back behind: they do not count.
        self._drop_old([folder for folder in self._numbered() if folder.name <= target.name])

    def _drop_old(self, newest_first: list[Path]) -> None:
        old = newest_first[self._keep :]
        if self._keep_best:
            scores = {folder: _score_of(folder) for folder in newest_first}
            best = max(newest_first, key=lambda folder: scores[folder])  # the newest of equals
            old = [folder for folder in old if folder != best]
        for folder in old:
            remove_tree(folder)

    def newest(self) -> tuple[Path, TrainingState] | None:
        """The newest complete checkpoint; a torn one is skipped with a warning.

        None if there is none yet; ``TrainingError`` if there are some and all are torn.
        """
        numbered = self._numbered()
        for folder in numbered:
            if (record := _whole_record(folder)) is None:
                warnings.warn(
                    f"{folder} is damaged or incomplete; going back to the one before it",
                    stacklevel=2,
                )
                continue
            known = {name: record[name] for name in TrainingState.__dataclass_fields__}
            return folder, TrainingState(**known | {"position": Position(**record["position"])})
        if numbered:
            raise TrainingError(
                f"{self._folder}: all {len(numbered)} checkpoints are damaged; restore one from a "
                "copy, or start anew with another --out"
            )
        return None

    def _numbered(self) -> list[Path]:
        """Newest first."""
        if not self._folder.is_dir():
            return []
        return sorted((p for p in self._folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights, and the states of optimizer and schedule, of a complete checkpoint."""
    optimizer = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    return load_file(folder / WEIGHTS), optimizer


def _score_of(folder: Path) -> float:
    """Minus infinity for a checkpoint that was not measured, or cannot be read."""
    try:
        score = json.loads((folder / STATE).read_text())[SCORE]
    except (OSError, ValueError, KeyError, TypeError):
        return -math.inf
    return -math.inf if score is None else float(score)


def _whole_record(folder: Path) -> dict[str, Any] | None:
    """The content of ``state.json``; None unless the checkpoint is as it was written."""
    try:
        record: dict[str, Any] = json.loads((folder / STATE).read_text())
        if record.pop("digest") != _digest_of(record):
            return None
        for name, fingerprint in record["files"].items():
            if file_fingerprint(folder / name) != tuple(fingerprint):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record


def _digest_of(record: Mapping[str, Any]) -> str:
    return digest(json.dumps(record, sort_keys=True).encode())
