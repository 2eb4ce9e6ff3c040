"""What a segment, the log and all beside may take is never less than what they do take."""

import numpy as np
import pytest

from dflash_cache.cache import (
    Budget,
    Cache,
    SegmentWriter,
    content_bytes,
    folder_bytes,
    most_content_bytes,
    most_log_bytes,
    most_segment_bytes,
    segment_bytes,
)
from dflash_cache.runs.extract import extract
from dflash_cache.types import SegmentPlan, TokenSequence
from tests.support.runs import extract_config


@pytest.mark.parametrize("codec", ["crc32c", "lz4", "zstd", "fp8"])
def test_no_part_of_a_cache_takes_more_than_was_foreseen_nor_segments_far_less(codec, tmp_path):
    extract(extract_config(tmp_path, codec=codec, limit=12, segment_tokens=500))
    cache = Cache.open(tmp_path / "cache")
    spec, plans = cache.spec, cache.plan
    for plan in plans:
        stored = segment_bytes(cache, plan.index)
        assert stored <= most_segment_bytes(spec, plan) <= 1.5 * stored
    assert content_bytes(cache) <= most_content_bytes(spec, plans, cache.ledger)
    log = (tmp_path / "cache" / "commits.log").stat().st_size
    assert log <= most_log_bytes(plans, 1) - 2 * (most_log_bytes(plans, 1) // 4)


def test_states_that_do_not_compress_take_no_more_than_was_foreseen(tmp_path):
    extract(extract_config(tmp_path, codec="lz4", limit=2, dtype="bfloat16"))
    spec = Cache.open(tmp_path / "cache").spec
    rng = np.random.default_rng(0)
    lengths = [1700, 1, 999]
    plan = SegmentPlan(index=0, row_ids=np.arange(3), lengths=np.array(lengths))
    writer = SegmentWriter(tmp_path / "staging", spec, 0, plan.num_tokens)
    shape = (plan.num_tokens, len(spec.target_layer_ids), spec.hidden_size)
    writer.append(rng.integers(0, 1 << 16, shape, np.uint16))
    masks = [np.ones(length, np.uint8) for length in lengths]
    writer.finish(
        [
            TokenSequence(row_id=row, input_ids=mask.astype(np.int32), loss_mask=mask)
            for row, mask in enumerate(masks)
        ]
    )
    assert folder_bytes(writer.folder) <= most_segment_bytes(spec, plan)


def test_bytes_are_promised_once_and_come_back_when_they_are_settled_or_released():
    budget = Budget(1000, 100, {7: 300})
    assert budget.free == 600
    assert budget.reserve(1, 600)
    assert not budget.reserve(2, 1)
    budget.settle(1, 450)
    assert budget.reserve(2, 150)
    assert budget.free == 0
    budget.release(7)
    assert budget.free == 300


def test_a_segment_may_be_promised_again_while_it_is_still_there():
    budget = Budget(1000, 0, {7: 300})
    assert budget.reserve(7, 400)
    budget.release(7)
    budget.settle(7, 350)
    assert budget.free == 650


def test_a_folder_larger_than_the_budget_has_less_than_nothing_free():
    budget = Budget(1000, 900, {7: 300})
    assert budget.free == -200
    assert not budget.reserve(1, 0)
