"""A drafter on disk in the layout that z-lab's package, vLLM and SGLang load."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dflash_cache.errors import DataError

from .config import DrafterConfig
from .model import DFlashDrafter

WEIGHTS, CONFIG, TRAINING = "model.safetensors", "config.json", "training.json"


def export_drafter(drafter: DFlashDrafter, folder: Path, training: Mapping[str, Any]) -> None:
    """Write ``config.json``, bfloat16 weights and ``training.json``, and load them again.

    ``training`` says what the drafter was made from; serving engines ignore it. The files are
    written aside and take the place of an earlier export whole. ``DataError`` if ``folder`` holds
    anything else.
    """
    ours = {WEIGHTS, CONFIG, TRAINING}
    foreign = {path.name for path in folder.iterdir()} - ours if folder.exists() else set()
    if foreign:
        raise DataError(f"{folder} holds other things ({', '.join(sorted(foreign))}); move them")
    fresh = folder.with_name(f".{folder.name}-writing")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    save_file(weights, fresh / WEIGHTS, metadata={"format": "pt"})
    _write_json(fresh / CONFIG, drafter.config.to_json("bfloat16"))
    _write_json(fresh / TRAINING, training)
    load_drafter(fresh)
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)


def load_drafter(folder: Path, dtype: torch.dtype = torch.float32) -> DFlashDrafter:
    """Load an export of ours or of z-lab's, in eval mode.

    ``DataError`` names weights that are missing or too many: engines would not report them.
    """
    drafter = DFlashDrafter(DrafterConfig.load(folder))
    path = folder / WEIGHTS
    if not path.is_file():
        raise DataError(f"{folder} has no {WEIGHTS}")
    with safe_open(path, framework="pt") as file:
        found = set(file.keys())
    expected = set(drafter.state_dict())
    if found != expected:
        raise DataError(
            f"{path}: missing weights {sorted(expected - found)[:5]}, "
            f"unexpected weights {sorted(found - expected)[:5]}"
        )
    drafter.load_state_dict(load_file(path))
    return drafter.to(dtype).eval()


def load_training(folder: Path) -> dict[str, Any]:
    """What ``training.json`` says of the drafter's making; empty for a drafter of others."""
    path = folder / TRAINING
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
