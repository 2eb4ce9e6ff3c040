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
from dflash_cache.errors import TrainingError

from .order import Position

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
        numbered = self._numbered()
        for folder in numbered:
            if (record := _whole_record(folder)) is None:
                warnings.warn(
                    f"{folder} is damaged or incomplete; going back to the one before it",
                    stacklevel=2,
                )
                continue
            del record["files"]
            state = TrainingState(**record | {"position": Position(**record["position"])})
            optimizer = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
            return state, load_file(folder / WEIGHTS), optimizer
        if numbered:
            raise TrainingError(
                f"{self._folder}: all {len(numbered)} checkpoints are damaged; restore one from a "
                "copy, or start anew with another --out"
            )
        return None

    def _numbered(self) -> list[Path]:
        """Newest first."""
        return sorted((p for p in self._folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


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
