"""``inspect``: what is in a cache, or in a dataset. Each loads only what it needs, and no torch."""

from pathlib import Path
from shlex import quote
from typing import Any

from dflash_cache.config import InspectConfig
from dflash_cache.errors import ConfigError
from dflash_cache.run_files import CACHE_SPEC, RUN, TRAINING


def inspect(config: InspectConfig) -> dict[str, Any]:
    """Look into a cache (``inspect_cache``) or a dataset of tokens (``inspect_dataset``)."""
    path = Path(config.cache)
    if "://" not in config.cache and not (path / CACHE_SPEC).exists():
        _require_inspectable(path)
        from dflash_cache.data import is_dataset

        if is_dataset(path):
            from .inspect_dataset import inspect_dataset

            return inspect_dataset(config)
    if config.split is not None:
        raise ConfigError(f"--split {config.split}: {config.cache} is no dataset")
    from .inspect_cache import inspect_cache

    return inspect_cache(config)


def _require_inspectable(path: Path) -> None:
    """``ConfigError`` if there is nothing at ``path``, or what another command reads."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist; name a cache, or a dataset of tokens")
    inside = next((each for each in path.absolute().parents if (each / CACHE_SPEC).is_file()), None)
    if inside is not None:
        raise ConfigError(
            f"{path} is a part of the cache {inside}; look into that: "
            f"dflash-cache inspect {quote(str(inside))}"
        )
    if not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is neither a file nor a folder")
    if (path / RUN).is_file():
        raise ConfigError(
            f"{path} is the folder of a run, and no cache; its figures are written as a page with: "
            f"dflash-cache report {quote(str(path))}"
        )
    if (path / TRAINING).is_file():
        raise ConfigError(
            f"{path} is a drafter, and no cache; measure it with: "
            f"dflash-cache evaluate --target M --drafter {quote(str(path))} --data D"
        )
