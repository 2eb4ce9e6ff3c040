"""Checkpoints that are whole or absent, found by number."""

import json
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dflash_cache.cache import file_fingerprint, fsync_path, fsync_tree, remove_tree
from dflash_cache.errors import ConfigError, TrainingError

from .order import Position

CHECKPOINTS = "checkpoints"  # the folder of them in a run
_UNFINISHED = ".writing-"
_NAME = re.compile(r"step-\d{8}")
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Where a run stands after ``step`` optimizer steps."""

    step: int
    position: Position
    num_tokens: int
    loss_first: float
    loss_last: float


class CheckpointStore:
    """``step-00000100`` folders; each is written aside, made durable and renamed into place."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_UNFINISHED}*"):
            remove_tree(leftover)

    def save(
        self,
        state: TrainingState,
        weights: dict[str, torch.Tensor],
        optimizer: dict[str, Any],
    ) -> None:
        """Write a checkpoint and drop the oldest beyond ``keep``."""
        target = self._folder / f"step-{state.step:08d}"
        fresh = self._folder / f"{_UNFINISHED}{target.name}"
        remove_tree(fresh)
        fresh.mkdir()
        save_file(weights, fresh / WEIGHTS)
        torch.save(optimizer, fresh / OPTIMIZER)
        files = {name: file_fingerprint(fresh / name) for name in (WEIGHTS, OPTIMIZER)}
        (fresh / STATE).write_text(json.dumps(asdict(state) | {"files": files}, indent=1))
        fsync_tree(fresh)
        remove_tree(target)  # a torn one of the same step
        fresh.rename(target)
        fsync_path(self._folder)
        # Higher numbers are torn ones that this run went back behind: they do not count.
        until_now = [folder for folder in self._numbered() if folder.name <= target.name]
        for old in until_now[self._keep :]:
            remove_tree(old)

    def latest(
        self,
    ) -> tuple[TrainingState, dict[str, torch.Tensor], dict[str, Any]] | None:
        """The newest complete checkpoint; a torn one is skipped with a warning.

        None if there is none yet; ``TrainingError`` if there are some and all are torn.
        """
        if (found := _newest_whole(self._folder)) is None:
            return None
        folder, state = found
        optimizer = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        return state, load_file(folder / WEIGHTS), optimizer

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
    fields = {name: value for name, value in record.items() if name != "files"}
    return TrainingState(**fields | {"position": Position(**record["position"])})


def _whole_record(folder: Path) -> dict[str, Any] | None:
    """The content of ``state.json``; None unless the checkpoint is as it was written."""
    try:
        record: dict[str, Any] = json.loads((folder / STATE).read_text())
        for name, fingerprint in record["files"].items():
            if file_fingerprint(folder / name) != tuple(fingerprint):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record
