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
from dflash_cache.drafter.saving import saving
from dflash_cache.errors import ConfigError, TrainingError

from .order import Position

CHECKPOINTS = "checkpoints"  # the folder of them in a run
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
        with saving(fresh / WEIGHTS):
            save_file(weights, fresh / WEIGHTS)
        with saving(fresh / OPTIMIZER):
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
        return _newest_whole(self._folder)

    def _numbered(self) -> list[Path]:
        return _numbered(self._folder)


def load_checkpoint(
    folder: Path, step: int | None
) -> tuple[TrainingState, dict[str, torch.Tensor]]:
    """The newest whole checkpoint in ``folder``, or that of ``step``; nothing is changed there.

    ``ConfigError`` if there is none, ``TrainingError`` if it is damaged.
    """
    steps = {int(path.name[5:]): path for path in _numbered(folder)}
    if not steps:
        raise ConfigError(f"{folder} has no checkpoint yet; they come every --save-every steps")
    if step is None:
        found = _newest_whole(folder)
        assert found is not None
        return found[1], load_file(found[0] / WEIGHTS)
    if step not in steps:
        raise ConfigError(f"--step {step}: {folder} has {', '.join(map(str, sorted(steps)))}")
    if (record := _whole_record(steps[step])) is None:
        raise TrainingError(f"{steps[step]} is damaged or incomplete; choose another --step")
    return _state_of(record), load_file(steps[step] / WEIGHTS)


def _numbered(folder: Path) -> list[Path]:
    """The folders of checkpoints, newest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), reverse=True)


def _newest_whole(folder: Path) -> tuple[Path, TrainingState] | None:
    numbered = _numbered(folder)
    for path in numbered:
        if (record := _whole_record(path)) is not None:
            return path, _state_of(record)
        warnings.warn(
            f"{path} is damaged or incomplete; going back to the one before it", stacklevel=3
        )
    if numbered:
        raise TrainingError(
            f"{folder}: all {len(numbered)} checkpoints are damaged; restore one from a copy, or "
            "start anew with another --out"
        )
    return None


def _state_of(record: dict[str, Any]) -> TrainingState:
    fields = {name: record[name] for name in TrainingState.__dataclass_fields__}
    return TrainingState(**fields | {"position": Position(**record["position"])})


def load_states(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
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
