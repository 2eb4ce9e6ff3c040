"""A drafter on disk, in the layout that z-lab's package, vLLM and SGLang load, or speculators'."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from dflash_cache.errors import DataError
from dflash_cache.run_files import TRAINING
from dflash_cache.shapes import misfit
from dflash_cache.types import DtypeName

from .card import model_card
from .config import DrafterConfig, load_json
from .model import DFlashDrafter
from .saving import saving
from .speculators import TARGET_WEIGHTS, is_speculators, to_speculators

Layout = Literal["transformers", "speculators"]

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
# What a process leaves that is killed as it writes one of these.
_CUT_SHORT = re.compile(
    r"\.(model\.safetensors|config\.json|training\.json|README\.md)\.[0-9a-f]{32}"
)
_COMPILED = "_orig_mod."  # what torch.compile puts into the names
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def export_drafter(
    drafter: torch.nn.Module,
    folder: Path,
    training: Mapping[str, Any],
    *,
    layout: Layout = "transformers",
    dtype: DtypeName = "bfloat16",
) -> None:
    """Write configuration, weights, ``training.json`` and a model card, and check them.

    ``drafter`` is a ``DFlashDrafter``, compiled or not. ``training`` says what it was made from;
    programs that load drafters ignore it. The files are written aside and take the place of an
    earlier export whole. ``DataError`` if ``folder`` holds anything else.
    """
    _require_only_ours(folder)
    place = folder.resolve()  # of a link what it leads to
    fresh = place.with_name(f".{place.name}-writing")
    shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
    fresh.mkdir(parents=True)
    config: DrafterConfig = drafter.config  # type: ignore[assignment]
    try:
        _write_weights(drafter, fresh / WEIGHTS, dtype)
        content = _config_json(config, training, layout, dtype)
        (fresh / CONFIG).write_text(_as_json(content), encoding="utf-8")
        shutil.copymode(fresh / CONFIG, fresh / WEIGHTS)  # safetensors lets nobody else read
        for name, text in described(fresh, training, folder.absolute().name).items():
            (fresh / name).write_text(text, encoding="utf-8")
        check_export(fresh, config)
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_only_ours(folder: Path) -> None:
    ours = {WEIGHTS, CONFIG, TRAINING, CARD}
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = {name for name in there - ours if not _CUT_SHORT.fullmatch(name)}
    if foreign:
        raise DataError(f"{folder} holds other things ({', '.join(sorted(foreign))}); move them")


def _write_weights(drafter: torch.nn.Module, path: Path, dtype: DtypeName) -> None:
    weights = {
        name.replace(_COMPILED, ""): tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
        for name, tensor in drafter.state_dict().items()
    }
    with saving(path):
        save_file(weights, path, metadata={"format": "pt"})


def described(folder: Path, training: Mapping[str, Any], name: str) -> dict[str, str]:
    """Texts beside the drafter in ``folder``, by file: ``training`` for programs, and as a card.

    ``name`` is that of the folder as others have it.
    """
    content = load_json(folder)
    layout = "speculators" if is_speculators(content) else "transformers"
    config = DrafterConfig.load(folder)
    card = model_card(
        config, training, layout=layout, dtype=content.get("dtype", "bfloat16"), name=name
    )
    return {TRAINING: _as_json(training), CARD: card}


def _config_json(
    config: DrafterConfig, training: Mapping[str, Any], layout: Layout, dtype: DtypeName
) -> dict[str, Any]:
    content = config.to_json(dtype)
    if layout == "transformers":
        return content
    target = training.get("cache", {}).get("target")
    return to_speculators(content, target, training.get("target_architectures", ()))


def check_export(folder: Path, config: DrafterConfig) -> None:
    """Read ``folder`` again: ``DataError`` unless it is the drafter of ``config``, whole.

    Engines do not do it: some ignore weights that they do not know, and do not report missing ones.
    """
    found = DrafterConfig.load(folder)
    if found != config:
        raise DataError(f"{folder / CONFIG}: read again it gives {found}, expected {config}")
    content = load_json(folder)
    _check_weights(folder / WEIGHTS, config, dtype=content["dtype"])


def load_drafter(
    folder: Path, dtype: torch.dtype = torch.float32, config: DrafterConfig | None = None
) -> DFlashDrafter:
    """Load a drafter of ours, of z-lab's or of speculators', in eval mode.

    ``config`` is what ``folder`` holds, where it was read before. ``DataError`` names weights that
    are missing, too many or of another shape: engines would not report them.
    """
    config = config or DrafterConfig.load(folder)
    path = folder / WEIGHTS
    theirs = TARGET_WEIGHTS if is_speculators(load_json(folder)) else frozenset()
    _check_weights(path, config, ignored=theirs)
    weights = {name: value for name, value in load_file(path).items() if name not in theirs}
    drafter = DFlashDrafter.fresh(config, seed=0)
    drafter.load_state_dict(weights)
    return drafter.to(dtype).eval()


def _check_weights(
    path: Path,
    config: DrafterConfig,
    *,
    dtype: str | None = None,
    ignored: frozenset[str] = frozenset(),
) -> None:
    """``DataError`` naming what differs from the weights of ``config``; no tensor is loaded."""
    with torch.device("meta"):
        drafter = DFlashDrafter(config)
    expected = {name: list(value.shape) for name, value in drafter.state_dict().items()}
    found = _stored(path)
    names = set(found) - ignored
    faults = {
        "missing weights": sorted(set(expected) - names),
        "unexpected weights": sorted(names - set(expected)),
        "weights of another shape": [
            f"{name} {found[name][0]}, expected {expected[name]}"
            for name in sorted(names & set(expected))
            if found[name][0] != expected[name]
        ],
        f"weights of another dtype than {CONFIG}'s {dtype}": [
            f"{name} {found[name][1]}"
            for name in sorted(names)
            if dtype not in (None, found[name][1])
        ],
    }
    lines = [f"{what}: {', '.join(names[:5])}" for what, names in faults.items() if names]
    if lines:
        raise DataError(f"{path}: " + "; ".join(lines))


def _stored(path: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and dtype of each tensor in ``path``."""
    if not path.is_file():
        raise DataError(f"{path.parent} has no {WEIGHTS}")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: (list(part.get_shape()), _DTYPES.get(part.get_dtype(), part.get_dtype()))
                for name, part in slices.items()
            }
    except SafetensorError as error:
        raise DataError(f"{path} is no whole safetensors file ({error}); fetch it again") from error


def load_training(folder: Path) -> dict[str, Any]:
    """What ``training.json`` says of the drafter's making; empty for a drafter of others.

    ``DataError`` if it is damaged.
    """
    path = folder / TRAINING
    if not path.is_file():
        return {}
    try:
        training = json.loads(path.read_text(encoding="utf-8"))
        fault = misfit(training, {"cache?": dict, "held_out_rows?": [int]})
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault:
        raise DataError(f"{path} is damaged: {fault}. Export the drafter again")
    return dict(training)


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"
