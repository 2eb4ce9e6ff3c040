"""The Python API on small caches of made-up states."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import dflash_cache
from dflash_cache import HiddenStateCache
from dflash_cache.cache import Cache, CacheWriter, PlannedPart
from dflash_cache.cache.local import LocalStorage
from dflash_cache.config import TrainConfig
from dflash_cache.errors import CacheCorruptError, ConfigError
from dflash_cache.types import DroppedRow, SegmentPlan, TokenSequence
from tests.support.caches import TARGET, spec_for

ROWS = [[10, 11], [20], [30, 31, 32], [7, 9, 8]]
DROPPED = 31  # by extraction, so that it is planned and not stored
STORED = [row for rows in ROWS for row in rows if row != DROPPED]
PLAN = [
    SegmentPlan(index=index, row_ids=np.array(rows), lengths=1 + np.array(rows) % 5)
    for index, rows in enumerate(ROWS)
]
KINDS = {"float32": ("float32", "lz4"), "bfloat16": ("bfloat16", "lz4"), "fp8": ("bfloat16", "fp8")}


def sequence_of(row):
    ids = np.arange(1 + row % 5, dtype=np.int32) + row % 7
    return TokenSequence(row_id=row, input_ids=ids, loss_mask=(ids % 2).astype(np.uint8))


def states_of(row):
    """[T, K, H], exact in bfloat16 and in 8 bits."""
    return torch.arange((1 + row % 5) * 8).reshape(-1, 2, 4).float() % 8 + row % 3


def stored(row, codec, dtype):
    if codec == "fp8":
        scales = np.full((1 + row % 5, 2), 0.5, np.float32)
        return (states_of(row) / 0.5).to(torch.float8_e4m3fn).view(torch.uint8).numpy(), scales
    if dtype == "bfloat16":
        return states_of(row).bfloat16().view(torch.uint16).numpy(), None
    return states_of(row).numpy(), None


def made(root, kind="float32", committed=4):
    """A cache with the first ``committed`` segments; its folder."""
    dtype, codec = KINDS[kind]
    root.mkdir(parents=True, exist_ok=True)
    spec = replace(spec_for(PLAN), dtype=dtype, codec=codec)
    part = PlannedPart(segments=PLAN, dropped=[])
    cache = Cache.create(LocalStorage(root), spec, {}, TARGET, part)
    writer = CacheWriter(cache)
    for plan in PLAN[:committed]:
        segment, kept = writer.segment(plan), [r for r in plan.row_ids.tolist() if r != DROPPED]
        for row in kept:
            segment.append(*stored(row, codec, dtype))
        left_out = [DroppedRow(row_id=DROPPED, reason="non_finite")]
        sequences = [sequence_of(row) for row in kept]
        writer.commit(
            segment.folder, segment.finish(sequences, left_out if DROPPED in plan.row_ids else ())
        )
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made(tmp_path_factory.mktemp("api") / "cache")


@pytest.fixture(scope="module")
def cache(folder):
    return HiddenStateCache.open(folder)


def assert_is_row(sequence, row):
    assert sequence.row_id == row
    assert sequence.input_ids.tolist() == sequence_of(row).input_ids.tolist()
    assert sequence.loss_mask.tolist() == sequence_of(row).loss_mask.astype(bool).tolist()
    assert torch.equal(sequence.hidden_TKH.float(), states_of(row))


def rows_of(sequences):
    return [sequence.row_id for sequence in sequences]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_is_given_with_its_ids_mask_and_states(kind, tmp_path):
    cache = HiddenStateCache.open(made(tmp_path, kind))
    assert len(cache) == len(STORED)
    assert cache.row_ids.tolist() == STORED
    for place, row in enumerate(STORED):
        assert_is_row(cache[place], row)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("fp8", torch.bfloat16)],
)
def test_states_have_the_dtype_of_the_extraction(kind, dtype, tmp_path):
    sequence = HiddenStateCache.open(made(tmp_path, kind))[0]
    assert sequence.hidden_TKH.dtype == dtype
    assert (sequence.input_ids.dtype, sequence.loss_mask.dtype) == (torch.int64, torch.bool)
    assert sequence.as_numpy()["hidden_TKH"].dtype == np.float32
    assert np.array_equal(sequence.as_numpy()["hidden_TKH"], states_of(10).numpy())


def test_a_place_may_be_counted_from_the_end(cache):
    assert_is_row(cache[-1], STORED[-1])


@pytest.mark.parametrize("place", [len(STORED), -len(STORED) - 1])
def test_a_place_that_is_not_there_is_an_index_error(cache, place):
    with pytest.raises(IndexError, match=rf"place {place}: .* holds {len(STORED)} sequences"):
        cache[place]


@pytest.mark.parametrize("place", [slice(0, 2), 1.0, "1", None])
def test_what_is_no_integer_is_no_place(cache, place):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        cache[place]


def test_a_segment_that_is_not_stored_is_a_key_error(cache):
    with pytest.raises(KeyError, match="holds no segment 9"):
        cache.read(9)


def test_a_sequence_is_found_by_the_number_of_its_row(cache):
    assert_is_row(cache.row(32), 32)


@pytest.mark.parametrize("row", [DROPPED, 999])
def test_a_row_that_is_not_stored_is_a_key_error(cache, row):
    with pytest.raises(KeyError, match=f"holds no row {row}"):
        cache.row(row)


def test_iteration_goes_segment_by_segment_in_the_order_of_the_cache(cache):
    by_segment = [rows_of(sequences) for sequences in cache.segments()]
    assert by_segment == [[row for row in rows if row != DROPPED] for rows in ROWS]
    for sequence, row in zip(cache, STORED, strict=True):
        assert_is_row(sequence, row)


def test_an_unfinished_cache_gives_what_is_committed(tmp_path):
    cache = HiddenStateCache.open(made(tmp_path, committed=2))
    assert not cache.complete
    assert rows_of(cache) == rows_of(cache.as_dataset()) == [10, 11, 20]


def test_a_cache_without_a_segment_is_empty(tmp_path):
    cache = HiddenStateCache.open(made(tmp_path, committed=0))
    assert (len(cache), list(cache), list(cache.as_dataset(shuffle_seed=1))) == (0, [], [])


def test_a_folder_that_is_no_cache_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no cache"):
        HiddenStateCache.open(tmp_path)


def test_damage_is_an_error_that_names_the_rows(tmp_path):
    cache = HiddenStateCache.open(made(tmp_path))
    (shard,) = (tmp_path / "cache.zarr/segments/00000001/hidden_states").glob("c*")
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CacheCorruptError, match="rows 20"):
        cache.row(20)
    assert_is_row(cache[0], 10)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 20])
def test_ranks_share_the_sequences_evenly_and_lose_none(cache, seed, num_ranks):
    shares = [
        list(cache.as_dataset(shuffle_seed=seed, window_segments=2, rank=rank, num_ranks=num_ranks))
        for rank in range(num_ranks)
    ]
    assert sorted(row for share in shares for row in rows_of(share)) == sorted(STORED)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    for sequence in (sequence for share in shares for sequence in share):
        assert_is_row(sequence, sequence.row_id)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a single core
@pytest.mark.parametrize("seed", [None, 3])
def test_workers_of_a_loader_share_what_their_rank_has(cache, seed):
    loaded = [
        sequence
        for rank in range(2)
        for sequence in DataLoader(
            cache.as_dataset(shuffle_seed=seed, rank=rank, num_ranks=2),
            batch_size=None,
            num_workers=2,
        )
    ]
    assert sorted(rows_of(loaded)) == sorted(STORED)
    for sequence in loaded:
        assert_is_row(sequence, sequence.row_id)


def test_torchrun_s_environment_tells_the_rank(cache, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rows_of(cache.as_dataset()) == STORED[1::2]


def test_a_seed_and_an_epoch_give_one_order(cache):
    dataset = cache.as_dataset(shuffle_seed=3)
    first = rows_of(dataset)
    assert first == rows_of(cache.as_dataset(shuffle_seed=3)) != STORED
    dataset.set_epoch(1)
    assert rows_of(dataset) != first
    assert sorted(rows_of(dataset)) == sorted(STORED)


def test_without_a_seed_the_order_is_that_of_the_cache(cache):
    assert rows_of(cache.as_dataset()) == STORED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 2, "num_ranks": 2}, "expected 0 to 1"),
        ({"rank": -1, "num_ranks": 1}, "expected 0 to 0"),
        ({"num_ranks": 2}, "rank None of 2: give both, or neither"),
        ({"rank": 1}, "rank 1 of None: give both, or neither"),
        ({"window_segments": 0}, "expected at least 1"),
    ],
)
def test_a_share_that_cannot_be_is_a_value_error(cache, settings, message):
    with pytest.raises(ValueError, match=message):
        cache.as_dataset(**settings)


def test_extract_takes_keywords_and_refuses_an_unknown_one():
    with pytest.raises(ConfigError, match="did you mean 'target'"):
        dflash_cache.extract(data="d", targt="t", cache="c")


def test_train_takes_a_configuration_and_keywords_win(tmp_path):
    config = TrainConfig(cache=str(tmp_path / "none"), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="other is no cache"):
        dflash_cache.train(config, cache=str(tmp_path / "other"), device="cpu")


def test_the_names_stay_functions_when_packages_of_the_same_name_are_imported():
    import dflash_cache.train.order  # as the import system does, it sets dflash_cache.train
    from dflash_cache import extract, train

    assert train is dflash_cache.train
    assert callable(extract)
    assert callable(train)


def test_the_package_itself_imports_no_torch():
    program = "import dflash_cache, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
