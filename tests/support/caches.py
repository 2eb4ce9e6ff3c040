"""Small caches of made-up states, without a target."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dflash_cache.cache import Cache, CacheSpec, DatasetPart, TargetParts
from dflash_cache.cache.layout import segment_folder
from dflash_cache.cache.local import LocalStorage
from dflash_cache.cache.record import read_record
from dflash_cache.cache.segment_reader import SegmentReader
from dflash_cache.types import CommittedSegment, HiddenSegment, SegmentPlan

PART = DatasetPart(
    dataset="-",
    dataset_fingerprint="-",
    num_rows=1000,
    num_segments=3,
    limit=None,
    max_seq_len=64,
    too_long="truncate",
    segment_tokens=8,
    plan_seed=0,
)
SPEC = CacheSpec(
    target="-",
    revision="-",
    target_config_hash="-",
    target_weights_hash="-",
    tokenizer_hash="-",
    chat_template_hash="-",
    target_layer_ids=(1, 4),
    keep_last=False,
    num_target_layers=8,
    hidden_size=4,
    vocab_size=20,
    dtype="float32",
    codec="lz4",
    parts=(PART,),
)

TARGET = TargetParts(
    config={"hidden_size": 4, "model_type": "qwen3"},
    embedding=np.arange(80, dtype=np.float32).reshape(20, 4),
    head=np.arange(80, dtype=np.float32).reshape(20, 4)[::-1].copy(),
    norm=np.ones(4, np.float32),
    mask_token_id=19,
)


def spec_for(plan: Sequence[SegmentPlan], num_rows: int = 1000, **changes) -> CacheSpec:
    """``SPEC`` with one dataset part of this plan."""
    part = replace(PART, num_rows=num_rows, num_segments=len(plan))
    return replace(SPEC, parts=(part,), **changes)


def read_back(
    folder: Path, segment: CommittedSegment, spec: CacheSpec, row_ids: np.ndarray | None = None
) -> HiddenSegment:
    """Read the finished segment in ``folder`` as if it were in its place in a cache."""
    with tempfile.TemporaryDirectory() as root:
        place = Path(root, segment_folder(segment.index))
        place.parent.mkdir(parents=True)
        place.symlink_to(folder)
        storage = LocalStorage(Path(root))
        return SegmentReader(storage, read_record(storage, segment), spec).read(row_ids)


def assert_same_content(cache: Cache, other: Cache) -> None:
    """The same plan, the same target, and every segment's arrays equal bit for bit."""
    assert cache.segments.keys() == other.segments.keys()
    for found, expected in zip(cache.plan, other.plan, strict=True):
        assert found.row_ids.tolist() == expected.row_ids.tolist()
    assert cache.target.embedding.tobytes() == other.target.embedding.tobytes()
    assert cache.ledger == other.ledger
    for index in cache.segments:
        found, expected = cache.read(index), other.read(index)
        for name in ("row_ids", "offsets", "input_ids", "loss_mask", "hidden_TKH"):
            assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
