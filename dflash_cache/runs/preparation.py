"""Everything about an extraction that is settled before a target is loaded."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dflash_cache.cache import (
    CODECS,
    SPEC,
    Cache,
    CacheSpec,
    DatasetPart,
    Storage,
    open_storage,
    part_number,
    require_same_identity,
)
from dflash_cache.config import ExtractConfig, PlanConfig
from dflash_cache.data import Survey, TokenRows, plan_segments, survey
from dflash_cache.drafter.config import default_target_layer_ids
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.target import TargetShape, identify_target, resolve_target
from dflash_cache.types import Int64Array, SegmentPlan

from .cluster import placements
from .devices import default_dtype, target_devices

log = logging.getLogger(__name__)
DEFAULT_CONTEXT_LAYERS = 5
DEFAULT_MAX_SEQ_LEN = 3072
_PLAN_SETTINGS = ("limit", "too_long", "on_bad_row", "segment_tokens", "plan_seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """A checked dataset, its plan, and the identity of the cache to be: one of its parts."""

    config: ExtractConfig
    storage: Storage
    devices: tuple[str, ...]
    target_folder: Path
    target_shape: TargetShape
    rows: TokenRows
    survey: Survey
    plan: Sequence[SegmentPlan]
    spec: CacheSpec


def prepare(config: ExtractConfig, *, spare_last: bool = False) -> Preparation:
    """Check target, dataset and settings; ``ConfigError`` and ``DataError`` come from here.

    ``spare_last`` leaves the last of several CUDA devices to training.
    """
    if config.engine == "ray":
        devices = placements(config.devices)
    else:
        devices = target_devices(config.devices, spare_last=spare_last, used=_runs_target(config))
    folder = resolve_target(config.target, config.revision, weights=_runs_target(config))
    shape = TargetShape.load(folder, trust_remote_code=config.trust_remote_code)
    max_seq_len = _max_seq_len(config, shape)
    rows = TokenRows.open(config.data, split=config.split, limit=config.limit)
    found = _survey(config, rows, shape.vocab_size, max_seq_len)
    _require_rows(config, rows, found)
    plan = plan_segments(
        found.row_ids, found.lengths, seed=config.plan_seed, segment_tokens=config.segment_tokens
    )
    kept = len(found.row_ids)
    log.info("%s: %d of %d rows, %d segments", config.data, kept, rows.num_rows, len(plan))
    part = DatasetPart(
        dataset=str(config.data),
        dataset_fingerprint=found.fingerprint,
        num_rows=rows.num_rows,
        num_segments=len(plan),
        max_seq_len=max_seq_len,
        **{name: getattr(config, name) for name in _PLAN_SETTINGS},
    )
    return Preparation(
        config=config,
        storage=open_storage(config.cache),
        devices=devices,
        target_folder=folder,
        target_shape=shape,
        rows=rows,
        survey=found,
        plan=plan,
        spec=_spec(config, shape, part, devices[0]),
    )


def _survey(config: ExtractConfig, rows: TokenRows, vocab_size: int, max_seq_len: int) -> Survey:
    return survey(
        rows,
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        too_long=config.too_long,
        on_bad_row=config.on_bad_row,
    )


def _runs_target(config: ExtractConfig) -> bool:
    """A plan without a probe is made from the target's configuration alone, on any machine."""
    return not isinstance(config, PlanConfig) or config.probe


def _require_rows(config: ExtractConfig, rows: TokenRows, found: Survey) -> None:
    if not len(found.row_ids):
        reasons = sorted({row.reason for row in found.dropped})
        raise DataError(
            f"--data {config.data}: none of {rows.num_rows} rows can be trained on "
            f"({', '.join(reasons) or 'it is empty'}); is loss_mask 1 on the answers' tokens?"
        )


def _spec(config: ExtractConfig, shape: TargetShape, part: DatasetPart, device: str) -> CacheSpec:
    layer_ids = config.target_layers or default_target_layer_ids(
        shape.num_layers, DEFAULT_CONTEXT_LAYERS
    )
    shape.check_layer_ids(layer_ids)
    if config.keep_last and not shape.plain_logits:
        raise ConfigError(
            f"--keep-last: {config.target} scales or caps its logits after the head, so its "
            "distribution is not known from the head's input; leave it out and train with "
            "--loss cross-entropy"
        )
    return CacheSpec(
        **asdict(identify_target(config.target, config.revision, weights=_runs_target(config))),
        target_layer_ids=layer_ids,
        keep_last=config.keep_last,
        num_target_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        dtype=default_dtype(device, config.dtype),
        codec=CODECS[config.codec].name,
        parts=(part,),
    )


def open_matching(preparation: Preparation) -> Cache | None:
    """The cache that these settings belong to, if it exists; ``CacheMismatchError`` if others'."""
    if not preparation.storage.exists(SPEC):
        return None
    cache = Cache.open(preparation.storage)
    part_in(preparation, cache)
    return cache


def part_in(preparation: Preparation, cache: Cache) -> int | None:
    """Which dataset part of ``cache`` these settings made; None if ``append`` will add it.

    ``CacheMismatchError`` names what differs where the two do not belong together.
    """
    what = f"these settings are not those that made --cache {cache.address}"
    remedy = "Use the settings that made it, or another --cache"
    form = replace(preparation.spec, parts=cache.spec.parts)
    require_same_identity(form, cache.spec, what=what, remedy=remedy)
    number = part_number(cache.spec, preparation.spec.parts[0])
    if number is None and not preparation.config.append:
        require_same_identity(
            preparation.spec,
            replace(cache.spec, parts=cache.spec.parts[-1:]),
            what=what,
            remedy=f"{remedy}. More rows are added to a cache with --append",
        )
    return number


def spec_to_be(preparation: Preparation, cache: Cache | None) -> CacheSpec:
    """Of the cache with these settings' part in it, which may be still to be added."""
    if cache is None:
        return preparation.spec
    if part_in(preparation, cache) is None:
        return replace(cache.spec, parts=(*cache.spec.parts, *preparation.spec.parts))
    return cache.spec


def rows_to_be(preparation: Preparation, cache: Cache | None) -> Int64Array:
    """All planned rows of that cache, by their numbers in it."""
    added = [] if cache else [preparation.survey.row_ids]
    if cache and part_in(preparation, cache) is None:
        added = [preparation.survey.row_ids + cache.spec.first_rows[-1]]
    there = [plan.row_ids for plan in cache.plan] if cache else []
    return np.concatenate([*there, *added])


def missing_segments(preparation: Preparation, cache: Cache | None) -> list[SegmentPlan]:
    """What is left to extract of these settings' share, with the indices of the whole cache."""
    first, done = 0, cache.segments if cache else {}
    if cache is not None:
        number = part_in(preparation, cache)
        first = cache.spec.first_segments[-1 if number is None else number]
    share, count = preparation.config.share_of_segments
    segments = [replace(plan, index=plan.index + first) for plan in preparation.plan[share::count]]
    return [plan for plan in segments if plan.index not in done]


def _max_seq_len(config: ExtractConfig, shape: TargetShape) -> int:
    limit = shape.max_position_embeddings
    if config.max_seq_len is None:
        return min(DEFAULT_MAX_SEQ_LEN, limit)
    if config.max_seq_len > limit:
        raise ConfigError(
            f"--max-seq-len {config.max_seq_len}: the target has only {limit} positions"
        )
    return config.max_seq_len
