"""Checkpoints that are whole or absent, found by number."""

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .order import Position

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
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)

    def save(
        self,
        state: TrainingState,
        weights: dict[str, torch.Tensor],
        optimizer: dict[str, Any],
    ) -> None:
        """Write a checkpoint and drop the oldest beyond ``keep``."""
        target = self._folder / f"step-{state.step:08d}"
        if target.exists() and _complete(target):
            return
        shutil.rmtree(target, ignore_errors=True)
        fresh = self._folder / f".writing-{target.name}"
        fresh.mkdir()
        save_file(weights, fresh / WEIGHTS)
        torch.save(optimizer, fresh / OPTIMIZER)
        record = asdict(state) | {
            "files": {name: _sha256(fresh / name) for name in (WEIGHTS, OPTIMIZER)}
        }
        (fresh / STATE).write_text(json.dumps(record, indent=1))
        for path in (*fresh.iterdir(), fresh):
            _fsync(path)
        fresh.rename(target)
        _fsync(self._folder)
        for old in self._numbered()[self._keep :]:
            shutil.rmtree(old)

    def latest(
        self,
    ) -> tuple[TrainingState, dict[str, torch.Tensor], dict[str, Any]] | None:
        """The newest complete checkpoint; a torn one is skipped with a warning."""
        for folder in self._numbered():
            if not _complete(folder):
                warnings.warn(
                    f"{folder} is damaged or incomplete; going back to the one before it",
                    stacklevel=2,
                )
                continue
            record = json.loads((folder / STATE).read_text())
            del record["files"]
            state = TrainingState(**record | {"position": Position(**record["position"])})
            optimizer = torch.load(folder / OPTIMIZER, weights_only=True)
            return state, load_file(folder / WEIGHTS), optimizer
        return None

    def _numbered(self) -> list[Path]:
        """Newest first."""
        found = self._folder.glob("step-*")
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def _complete(folder: Path) -> bool:
    try:
        record = json.loads((folder / STATE).read_text())
        return all(_sha256(folder / name) == digest for name, digest in record["files"].items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
