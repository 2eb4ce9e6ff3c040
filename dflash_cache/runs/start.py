"""Where a training starts from: random weights, or those of another drafter."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_cache.cache import file_fingerprint
from dflash_cache.config import TrainConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.export import WEIGHTS, load_drafter
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import CacheMismatchError, ConfigError

# What a run may have otherwise than the drafter that it starts from: no weight depends on it.
_MAY_DIFFER = {
    "block_size", "mask_token_id", "initializer_range", "bos_token_id", "eos_token_id",
    "max_position_embeddings",
}  # fmt: skip


def starting_drafter(config: TrainConfig, shape: DrafterConfig) -> DFlashDrafter:
    """A drafter of ``shape``: fresh, or with the weights in ``--init-from``."""
    if config.init_from is None:
        return DFlashDrafter.fresh(shape, config.seed)
    found = require_same_shape(config.init_from, asdict(shape))
    drafter = load_drafter(config.init_from, config=found)
    drafter.config = shape  # the run's block size and mask token hold from here on
    return drafter.train()


def require_same_shape(folder: Path, expected: Mapping[str, Any]) -> DrafterConfig:
    """The configuration of the drafter in ``folder``.

    ``CacheMismatchError`` names each field of ``expected`` that it has otherwise, except those that
    no weight depends on.
    """
    found = DrafterConfig.load(folder, num_target_layers=expected["num_target_layers"])
    differing = [
        f"{name}: {getattr(found, name)}, the run has {value}"
        for name, value in expected.items()
        if name not in _MAY_DIFFER and getattr(found, name) != value
    ]
    if differing:
        raise CacheMismatchError(
            f"--init-from {folder} is a drafter of another shape:\n  "
            + "\n  ".join(differing)
            + "\nUse a cache and --draft-layers that fit it, or start without it"
        )
    return found


def offered_mask_token(config: TrainConfig, offered: int | None) -> int | None:
    """The mask token, unless one is named: what the drafter in ``--init-from`` was trained with."""
    if config.init_from is None:
        return offered
    return _shape_of(config.init_from).mask_token_id


def starting_identity(config: TrainConfig) -> dict[str, Any]:
    """What of ``--init-from`` a resume must find again: the weights, wherever they lie now."""
    if config.init_from is None:
        return {"init_from": None}
    mask = config.mask_token_id
    num_bytes, digest = file_fingerprint(_weights_of(config.init_from))
    return {
        "init_from": f"{num_bytes} bytes, XXH3-64 {digest}",
        "mask_token_id": offered_mask_token(config, None) if mask is None else mask,
    }


def _shape_of(folder: Path) -> DrafterConfig:
    # Only the mask token is asked for; speculators' own files do not have the number of layers.
    return DrafterConfig.load(folder, num_target_layers=0)


def _weights_of(folder: Path) -> Path:
    path = folder / WEIGHTS
    if not path.is_file():
        raise ConfigError(f"--init-from {folder} is no drafter's folder: it has no {WEIGHTS}")
    return path
