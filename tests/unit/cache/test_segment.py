"""Axes in names: T tokens, K layers, H hidden size."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zarr

from dflash_cache.cache import CODECS, CacheSpec, SegmentWriter
from dflash_cache.cache.segment import SCALES, SHARD_KEY, SMALL_ARRAYS
from dflash_cache.cache.shard import ALIGNMENT
from dflash_cache.errors import CacheCorruptError
from dflash_cache.types import CommittedSegment, TokenSequence
from tests.support.caches import SPEC, read_back

LAYERS, HIDDEN, CHUNK_TOKENS = (1, 4), 4, 4
LOSSLESS = [codec for codec in CODECS if codec != "fp8"]
BORDERS = [(1,), (3,), (4,), (5,), (1, 1, 1, 1), (3, 1, 1), (8,), (1, 7, 1), (4, 4, 4, 1)]


def spec_of(codec: str = "crc32c", dtype: str = "float32") -> CacheSpec:
    changes = {"target_layer_ids": LAYERS, "hidden_size": HIDDEN, "vocab_size": 50}
    return replace(SPEC, dtype=dtype, codec=codec, **changes)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """At most four float32 tokens a chunk."""
    monkeypatch.setattr(
        "dflash_cache.cache.segment.INNER_CHUNK_BYTES", CHUNK_TOKENS * spec_of().token_bytes
    )


def sequences_of(lengths: tuple[int, ...]) -> list[TokenSequence]:
    """Rows 100, 107, 114, ..."""
    rng = np.random.default_rng(1)
    return [
        TokenSequence(
            row_id=100 + 7 * place,
            input_ids=rng.integers(0, 50, length, np.int32),
            loss_mask=rng.integers(0, 2, length, np.uint8),
        )
        for place, length in enumerate(lengths)
    ]


def states_of(spec: CacheSpec, num_tokens: int) -> np.ndarray:
    """Any bit patterns: those of NaN and of infinity too."""
    dtype = spec.stored_dtype
    raw = np.random.default_rng(2).integers(
        0, 256, (num_tokens, len(LAYERS), HIDDEN * dtype.itemsize), np.uint8
    )
    return raw.view(dtype)


def scales_of(spec: CacheSpec, num_tokens: int) -> np.ndarray | None:
    """Different ones for each token and layer, where states have scales."""
    shape = (num_tokens, len(LAYERS))
    scales = np.random.default_rng(4).random(shape, np.float32)
    return scales if spec.quantized else None


def written(
    staging: Path, spec: CacheSpec, lengths: tuple[int, ...], hidden_TKH: np.ndarray | None = None
) -> tuple[Path, CommittedSegment]:
    num_tokens = sum(lengths)
    writer = SegmentWriter(staging, spec, 3, num_tokens)
    hidden_TKH = states_of(spec, num_tokens) if hidden_TKH is None else hidden_TKH
    writer.append(hidden_TKH, scales_of(spec, num_tokens))
    return writer.folder, writer.finish(sequences_of(lengths))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lengths", BORDERS, ids=str)
def test_token_counts_around_chunk_borders_come_back_bit_for_bit(tmp_path, lengths, codec, dtype):
    spec = spec_of(codec, dtype)
    folder, segment = written(tmp_path, spec, lengths)
    found = read_back(folder, segment, spec)
    sequences = sequences_of(lengths)
    assert found.hidden_TKH.tobytes() == states_of(spec, sum(lengths)).tobytes()
    assert found.row_ids.tolist() == [sequence.row_id for sequence in sequences]
    assert found.offsets.tolist() == np.cumsum([0, *lengths]).tolist()
    assert found.input_ids.tolist() == [i for s in sequences for i in s.input_ids.tolist()]
    assert found.loss_mask.tolist() == [m for s in sequences for m in s.loss_mask.tolist()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codec", CODECS)
def test_plain_zarr_reads_the_same_values(tmp_path, codec, dtype):
    spec = spec_of(codec, dtype)
    folder, segment = written(tmp_path, spec, (3, 1, 5))
    group, found = zarr.open(folder, mode="r"), read_back(folder, segment, spec)
    names = [*SMALL_ARRAYS, "hidden_states", *([SCALES] if codec == "fp8" else [])]
    assert sorted(name for name, _ in group.arrays()) == sorted(names)
    logical = "float8_e4m3fn" if codec == "fp8" else dtype
    assert group["hidden_states"].attrs["logical_dtype"] == logical
    assert np.asarray(group["hidden_states"][...]).tobytes() == found.hidden_TKH.tobytes()
    for name in SMALL_ARRAYS:
        np.testing.assert_array_equal(group[name][...], getattr(found, name))
    if codec == "fp8":
        np.testing.assert_array_equal(group[SCALES][...], scales_of(spec, 9))
        np.testing.assert_array_equal(found.scales_TK, scales_of(spec, 9))


@pytest.mark.parametrize("codec", LOSSLESS)
def test_all_zero_states_are_stored_as_chunks_like_any_others(tmp_path, codec):
    spec = spec_of(codec)
    zeros = np.zeros((9, len(LAYERS), HIDDEN), np.float32)
    folder, segment = written(tmp_path, spec, (8, 1), zeros)
    shard = (folder / SHARD_KEY).read_bytes()
    index = np.frombuffer(shard[-4 - 3 * 16 : -4], "<u8").reshape(3, 2)
    assert segment.num_chunks == 3
    assert index[:, 1].min() > 4  # an absent chunk has offset and size 2**64 - 1
    aligned = -(-index[:, 1].astype(int) // ALIGNMENT) * ALIGNMENT
    assert aligned.sum() + 3 * 16 + 4 == len(shard)
    assert not read_back(folder, segment, spec).hidden_TKH.any()


@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_that_lost_all_its_rows_reads_empty(tmp_path, codec):
    spec = spec_of(codec)
    writer = SegmentWriter(tmp_path, spec, 3, 10)
    segment = writer.finish([])
    found = read_back(writer.folder, segment, spec)
    assert found.hidden_TKH.shape == (0, len(LAYERS), HIDDEN)
    assert (found.offsets.tolist(), found.row_ids.tolist()) == ([0], [])
    assert zarr.open(writer.folder, mode="r")["hidden_states"].shape == (0, len(LAYERS), HIDDEN)


def test_the_callers_array_is_free_for_reuse_after_an_append(tmp_path):
    spec = spec_of()
    states = states_of(spec, 9)
    writer, buffer = SegmentWriter(tmp_path, spec, 3, 9), np.empty_like(states[:3])
    for start in (0, 3, 6):
        buffer[...] = states[start : start + 3]
        writer.append(buffer)
        buffer[...] = 0
    segment = writer.finish(sequences_of((9,)))
    assert read_back(writer.folder, segment, spec).hidden_TKH.tobytes() == states.tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_the_shard_does_not_show_in_which_batches_its_states_came(tmp_path, codec):
    spec, shards = spec_of(codec), set()
    states, scales = states_of(spec, 10), scales_of(spec, 10)  # chunks of 4, the last one padded
    for cuts in ([], [1], [4, 8], [3, 7], list(range(1, 10))):
        writer = SegmentWriter(tmp_path, spec, 3, 10)
        for start, stop in pairwise([0, *cuts, 10]):
            part = None if scales is None else scales[start:stop]
            writer.append(states[start:stop], part)
        writer.finish(sequences_of((4, 6)))
        shards.add((writer.folder / SHARD_KEY).read_bytes())
    assert len(shards) == 1


@pytest.mark.parametrize(
    "wanted", [[], [100], [107, 121], [121, 100], [999], [100, 107, 114, 121]], ids=str
)
@pytest.mark.parametrize("codec", ["lz4", "fp8"])
def test_reading_some_rows_gives_their_part_of_the_whole(tmp_path, wanted, codec):
    spec, lengths = spec_of(codec), (3, 1, 7, 2)
    folder, segment = written(tmp_path, spec, lengths)
    whole = read_back(folder, segment, spec)
    part = read_back(folder, segment, spec, np.array(wanted, np.int64))
    kept = [place for place, row in enumerate(whole.row_ids.tolist()) if row in wanted]
    assert part.row_ids.tolist() == whole.row_ids[kept].tolist()
    assert np.diff(part.offsets).tolist() == [lengths[place] for place in kept]
    for name in ("hidden_TKH", "input_ids", "loss_mask", *(["scales_TK"] * spec.quantized)):
        pieces = np.split(getattr(whole, name), whole.offsets[1:-1])
        expected = b"".join(pieces[place].tobytes() for place in kept)
        assert getattr(part, name).tobytes() == expected


def test_states_of_another_shape_or_dtype_are_refused(tmp_path):
    writer = SegmentWriter(tmp_path, spec_of(), 3, 9)
    for states in (np.zeros((2, 3, HIDDEN), np.float32), np.zeros((2, 2, HIDDEN), np.float64)):
        with pytest.raises(ValueError, match="expected"):
            writer.append(states)
    writer.abort()


@pytest.mark.parametrize("codec", CODECS)
def test_scales_are_asked_of_quantized_states_and_refused_of_others(tmp_path, codec):
    spec = spec_of(codec)
    writer = SegmentWriter(tmp_path, spec, 3, 9)
    scales = None if spec.quantized else np.ones((9, len(LAYERS)), np.float32)
    with pytest.raises(ValueError, match="scales must be given for fp8 alone"):
        writer.append(states_of(spec, 9), scales)
    writer.abort()


def test_sequences_that_do_not_match_the_appended_states_are_refused(tmp_path):
    writer = SegmentWriter(tmp_path, spec_of(), 3, 9)
    writer.append(states_of(spec_of(), 9))
    with pytest.raises(ValueError, match="9 tokens appended for sequences of 8"):
        writer.finish(sequences_of((8,)))
    writer.abort()


def test_an_aborted_segment_leaves_nothing(tmp_path):
    writer = SegmentWriter(tmp_path, spec_of(), 3, 9)
    writer.append(states_of(spec_of(), 5))
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("codec", LOSSLESS)
@pytest.mark.parametrize(("chunk", "rows"), [(0, "100"), (1, "100, 107, 114"), (2, "114")])
def test_a_flipped_bit_in_a_chunk_names_the_shard_and_the_rows_in_the_chunk(
    tmp_path, codec, chunk, rows
):
    spec = spec_of(codec)
    folder, segment = written(tmp_path, spec, (5, 1, 6))  # chunks of 4 tokens
    shard = folder / SHARD_KEY
    index = np.frombuffer(shard.read_bytes()[-4 - 3 * 16 : -4], "<u8").reshape(3, 2)
    flip(shard, int(index[chunk, 0] + index[chunk, 1] // 2))
    message = rf"{SHARD_KEY}, chunk {chunk}: .* rows {rows} \(segment 3\)"
    with pytest.raises(CacheCorruptError, match=message):
        read_back(folder, segment, spec)
    with pytest.raises(Exception, match=r"(?i)checksum"):
        zarr.open(folder, mode="r")["hidden_states"][...]
    for row in {100, 107, 114} - {int(row) for row in rows.split(", ")}:
        assert read_back(folder, segment, spec, np.array([row])).row_ids.tolist() == [row]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "expected"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "expected"),
        (lambda path: path.write_bytes(b""), "expected"),
        (lambda path: flip(path, -20), "shard's index"),
        (lambda path: flip(path, -1), "shard's index"),
    ],
    ids=["missing", "halved", "longer", "empty", "index entry", "index checksum"],
)
def test_a_damaged_shard_is_an_error_that_names_the_file_and_all_rows(tmp_path, damage, message):
    folder, segment = written(tmp_path, spec_of(), (5, 1, 6))
    damage(folder / SHARD_KEY)
    with pytest.raises(CacheCorruptError, match=rf"{SHARD_KEY}: .*{message}.*rows 100, 107, 114 "):
        read_back(folder, segment, spec_of())


def test_the_whole_shard_of_another_segment_is_found(tmp_path):
    spec = spec_of()
    folder, segment = written(tmp_path, spec, (5, 1, 6))
    other, _ = written(tmp_path, spec, (5, 1, 6), states_of(spec, 12)[::-1].copy())
    (other / SHARD_KEY).replace(folder / SHARD_KEY)
    with pytest.raises(CacheCorruptError, match=f"{SHARD_KEY}, chunk 0: .*rows 100 "):
        read_back(folder, segment, spec)


@pytest.mark.parametrize(
    "name", ["zarr.json", f"{SCALES}/c.0.0", *(f"{name}/c.0" for name in SMALL_ARRAYS)]
)
@pytest.mark.parametrize("damage", ["missing", "halved", "flipped"])
def test_a_damaged_small_array_or_record_is_an_error_that_names_the_file(tmp_path, name, damage):
    spec = spec_of("fp8")
    folder, segment = written(tmp_path, spec, (5, 1, 6))
    path = folder / name
    if damage == "missing":
        path.unlink()
    elif damage == "halved":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        flip(path, path.stat().st_size // 2)
    with pytest.raises(CacheCorruptError, match=name):
        read_back(folder, segment, spec)
