"""How far stored states are from those that the target computes anew.

Axes: T tokens, K context layers, H hidden size.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_cache.cache import Cache, float32_states, require_same_identity, saturated
from dflash_cache.config import InspectConfig
from dflash_cache.data import TokenRows, survey
from dflash_cache.errors import CacheIncompleteError, CacheMismatchError
from dflash_cache.target import LayerCapture, Target, identify_target, resolve_target
from dflash_cache.types import Array, HiddenSegment, Int64Array

from .devices import single_device
from .inspect_cache import stored_rows


@dataclass(slots=True)
class _Sums:
    """Over the tokens of a sample, by layer."""

    difference_K: Array
    norm_K: Array
    cosine_K: Array
    saturated_K: Array
    num_tokens: int = 0

    @classmethod
    def zero(cls, num_layers: int) -> "_Sums":
        difference, norm, cosine, largest = np.zeros((4, num_layers))
        return cls(difference, norm, cosine, largest)

    def add(self, segment: HiddenSegment, exact_TKH: Array) -> None:
        stored_TKH = float32_states(segment).astype(np.float64)
        exact_TKH = exact_TKH.astype(np.float64)
        self.difference_K += ((stored_TKH - exact_TKH) ** 2).sum((0, 2))
        self.norm_K += (exact_TKH**2).sum((0, 2))
        product_TK = (stored_TKH * exact_TKH).sum(2)
        norms_TK = np.linalg.norm(stored_TKH, axis=2) * np.linalg.norm(exact_TKH, axis=2)
        self.cosine_K += (product_TK / np.where(norms_TK > 0, norms_TK, 1)).sum(0)
        self.saturated_K += saturated(segment).mean(2).sum(0)
        self.num_tokens += len(exact_TKH)


def quality(config: InspectConfig, cache: Cache) -> dict[str, Any]:
    """Compare a sample of rows, spread over the plan, with states that the target computes anew.

    Each row is computed alone, in the cache's dtype, from the tokens in the cache. Returns rows,
    tokens and, for each layer, relative_error (norm of the difference over norm, all tokens
    together), cosine (mean over tokens) and saturated (share of values stored as the largest 8-bit
    value).
    """
    rows, _, owners = stored_rows(cache, cache.plan)
    if not len(rows):
        raise CacheIncompleteError(
            f"{cache.address} holds no sequence yet; run `dflash-cache extract` until a segment is "
            "committed"
        )
    if config.data:
        _require_dataset(config.data, cache)
    capture = _load_capture(config, cache)
    sums = _Sums.zero(cache.spec.num_states)
    sample = _spread(len(rows), config.sample)
    for row, owner in zip(rows[sample].tolist(), owners[sample].tolist(), strict=True):
        segment = cache.read(owner, np.array([row], np.int64))
        exact = capture.hidden_states([torch.from_numpy(segment.input_ids).long()])
        sums.add(segment, exact.float().cpu().numpy())
    capture.close()
    layers = [
        {
            "layer": layer,
            "relative_error": float(np.sqrt(sums.difference_K[k] / sums.norm_K[k])),
            "cosine": float(sums.cosine_K[k] / sums.num_tokens),
            "saturated": float(sums.saturated_K[k] / sums.num_tokens),
        }
        for k, layer in enumerate(cache.spec.state_names)
    ]
    return {"rows": len(sample), "tokens": sums.num_tokens, "layers": layers}


def _require_dataset(data: Path, cache: Cache) -> None:
    """``CacheMismatchError`` unless ``data`` is, by content, a dataset of ``cache``."""
    for part, settings in zip(cache.spec.parts, cache.settings, strict=True):
        found = survey(
            TokenRows.open(data, split=settings["split"], limit=part.limit),
            vocab_size=cache.spec.vocab_size,
            max_seq_len=part.max_seq_len,
            too_long=part.too_long,
            on_bad_row=part.on_bad_row,
        )
        if found.fingerprint == part.dataset_fingerprint:
            return
    raise CacheMismatchError(
        f"--data {data}: dataset_fingerprint {found.fingerprint} is that of no dataset in "
        f"{cache.address}; give one that it was made from, or leave --data out"
    )


def _load_capture(config: InspectConfig, cache: Cache) -> LayerCapture:
    """The cache's target; ``CacheMismatchError`` if it is another one now."""
    name, revision = config.target or cache.settings[0]["target"], cache.spec.revision or None
    require_same_identity(
        identify_target(name, revision),
        cache.spec,
        what=f"--target {name} is not the target that made {cache.address}",
        remedy="Name the target that made it with --target",
    )
    target = Target.load(
        resolve_target(name, revision),
        dtype=cache.spec.dtype,
        device=single_device(config.device),
        trust_remote_code=config.trust_remote_code,
    )
    return LayerCapture(target, cache.spec.target_layer_ids, keep_last=cache.spec.keep_last)


def _spread(count: int, most: int) -> Int64Array:
    """At most ``most`` of ``count`` places, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
