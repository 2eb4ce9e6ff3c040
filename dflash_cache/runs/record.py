"""What a run was made from, noted in its folder, so that a resume cannot mix two runs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_cache.cache import CacheSpec, require_same_identity, write_atomically
from dflash_cache.config import TrainConfig
from dflash_cache.errors import CacheMismatchError, DataError
from dflash_cache.run_files import RUN, SETTINGS
from dflash_cache.settings import flag_of, to_json

from .start import starting_identity

# What may change between two starts of one run without changing its weights.
_FREE = {
    "cache", "out", "device", "init_from", "save_every", "keep", "keep_best", "measure_every",
    "log_every", "tracker", "prefetch_readers", "prefetch_bytes", "checkpoint_activations",
}  # fmt: skip


def _resumable_settings(config: TrainConfig, spec: CacheSpec) -> dict[str, Any]:
    """As they are read back from JSON, which has no tuples; all layers are named."""
    config = replace(config, target_layers=config.target_layers or spec.target_layer_ids)
    settings = json.loads(to_json(config))
    kept = {name: value for name, value in settings.items() if name not in _FREE}
    return kept | starting_identity(config)


def identity_of(config: TrainConfig, spec: CacheSpec) -> dict[str, Any]:
    """What a resume must agree with."""
    return {"cache": spec.as_dict(), "settings": _resumable_settings(config, spec)}


def require_same_run(config: TrainConfig, spec: CacheSpec) -> None:
    """``CacheMismatchError`` if ``config.out`` holds a run from another cache or other settings."""
    path = config.out / RUN
    if path.exists():
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{path} is damaged ({error}); start anew with another --out"
            ) from error
        _require_same_run(path, record, spec, _resumable_settings(config, spec))


def require_run_record(path: Path, record: Any) -> None:
    """``DataError`` unless ``record``, read from ``path``, says what a run was made from."""
    if not isinstance(record, dict) or not {"cache", "settings"} <= record.keys():
        raise DataError(
            f"{path} is no record of a run; restore it, or start anew with another --out"
        )


def claim_run(config: TrainConfig, record: Mapping[str, Any]) -> None:
    """Note what the run in ``config.out`` is made from: ``identity_of`` and what else it is."""
    config.out.mkdir(parents=True, exist_ok=True)
    if not (config.out / RUN).exists():
        write_atomically(config.out / RUN, json.dumps(record, indent=1).encode())
    write_atomically(config.out / SETTINGS, to_json(config).encode())


def _require_same_run(
    path: Path, record: Mapping[str, Any], spec: CacheSpec, settings: Mapping[str, Any]
) -> None:
    remedy = "Use what the run was started with, or another --out"
    require_run_record(path, record)
    require_same_identity(
        spec,
        CacheSpec.from_dict(record["cache"]),
        what=f"{path}: the run was started from another cache",
        remedy=remedy,
    )
    found = record["settings"]
    differing = [
        f"{flag_of(name)} {value}, the run has {found.get(name)}"
        for name, value in settings.items()
        if value != found.get(name)
    ]
    if differing:
        what = f"{path}: the run was started with other settings"
        raise CacheMismatchError(f"{what}:\n  " + "\n  ".join(differing) + f"\n{remedy}")
