"""Caches written when format version 1 was still open, and hold what was put in them."""

import numpy as np
import pytest
import torch
import zarr

from dflash_cache.cache import Cache, float32_states, verify_cache
from dflash_cache.cache.spec import FORMAT_VERSION
from dflash_cache.types import HiddenSegment
from tests.golden import cache_v1 as golden

NUM_SEGMENTS = 4
FIRST_ROWS = (0, 0, 6, 6)  # the number of the first row of each segment's part


def rows_of(index: int) -> list[int]:
    """The rows of segment ``index`` that were kept, numbered through both parts."""
    part, place = divmod(index, 2)
    rows = [row for row in golden.SEGMENTS[part][place] if (part, row) not in golden.NOT_FINITE]
    return [row + FIRST_ROWS[index] for row in rows]


def joined(of, rows: list[int], empty: np.ndarray) -> np.ndarray:
    return np.concatenate([empty, *(of(row) for row in rows)])


def assert_holds(segment: HiddenSegment, rows: list[int], codec: str) -> None:
    shape = (0, golden.num_states(codec), golden.HIDDEN)
    assert segment.row_ids.tolist() == rows
    assert np.diff(segment.offsets).tolist() == [golden.length_of(row) for row in rows]
    ids = joined(golden.ids_of, rows, np.zeros(0, np.int32))
    mask = joined(golden.mask_of, rows, np.zeros(0, np.uint8))
    np.testing.assert_array_equal(segment.input_ids, ids, strict=True)
    np.testing.assert_array_equal(segment.loss_mask, mask, strict=True)
    stored = joined(lambda row: golden.stored_of(row, codec), rows, np.zeros(shape, np.uint8))
    np.testing.assert_array_equal(segment.hidden_TKH, stored)
    if codec == "fp8":
        scales = joined(golden.scales_of, rows, np.zeros(shape[:2], np.float32))
        np.testing.assert_array_equal(segment.scales_TK, scales, strict=True)
        values = torch.from_numpy(stored.astype(np.uint8)).view(torch.float8_e4m3fn).float()
        expected = values.numpy() * scales[..., None]
    else:
        assert segment.scales_TK is None
        expected = joined(
            lambda row: golden.states_of(row, codec), rows, np.zeros(shape, np.float32)
        )
    np.testing.assert_array_equal(float32_states(segment), expected)


@pytest.mark.parametrize("codec", golden.DTYPES)
def test_every_byte_of_the_old_caches_is_as_it_was_written(codec):
    assert not (golden.FOLDER / codec / "lock").exists()  # a cache is whole without it
    assert verify_cache(golden.FOLDER / codec) == []


@pytest.mark.parametrize("codec", golden.DTYPES)
def test_old_segments_hold_the_values_that_were_put_in(codec):
    cache = Cache.open(golden.FOLDER / codec)
    assert cache.spec == golden.spec_of(codec)
    assert sorted(cache.segments) == list(range(NUM_SEGMENTS))
    assert max(segment.num_chunks for segment in cache.segments.values()) > 1
    for index in range(NUM_SEGMENTS):
        rows = rows_of(index)
        assert_holds(cache.read(index), rows, codec)
        for row in rows:
            assert_holds(cache.read(index, np.array([row])), [row], codec)


@pytest.mark.parametrize("codec", golden.DTYPES)
def test_plan_ledger_and_target_of_old_caches_are_those_that_were_put_in(codec):
    cache = Cache.open(golden.FOLDER / codec)
    planned = [plan.row_ids.tolist() for plan in cache.plan]
    assert planned == [[4, 0], [5, 2, 3], [7, 8], [6]]
    reasons = {row.row_id: row.reason for row in cache.ledger}
    assert reasons == {1: "no_loss_token", 3: "non_finite", 6: "non_finite"}
    expected = golden.target_of(codec)
    for name in ("embedding", "head", "norm"):
        found, wanted = getattr(cache.target, name), getattr(expected, name)
        assert (found is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_array_equal(found, wanted, strict=True)
    assert (cache.target.config, cache.target.mask_token_id) == (expected.config, 19)


@pytest.mark.parametrize("codec", golden.DTYPES)
def test_plain_zarr_reads_the_old_arrays(codec):
    root = zarr.open_group(golden.FOLDER / codec / "cache.zarr", mode="r")
    for index in range(NUM_SEGMENTS):
        segment = root[f"segments/{index:08d}"]
        rows = rows_of(index)
        assert (segment["row_ids"][...] + FIRST_ROWS[index]).tolist() == rows
        states, offsets = segment["hidden_states"][...], segment["offsets"][...]
        for place, row in enumerate(rows):
            own = states[offsets[place] : offsets[place + 1]]
            np.testing.assert_array_equal(own, golden.stored_of(row, codec), strict=True)


def test_a_log_with_an_eviction_in_it_is_among_the_old_caches():
    log = (golden.FOLDER / "lz4" / "commits.log").read_bytes()
    assert log.count(b'{"evicted":1}') == 1
    assert log.count(b"\n") == NUM_SEGMENTS + 2


def test_there_are_old_caches_of_the_version_that_is_written_now():
    assert FORMAT_VERSION == 1, "write caches of the new version beside these, and keep these"
    assert {path.name for path in golden.FOLDER.iterdir()} == set(golden.DTYPES)
