"""Any ragged segment round-trips bit for bit. Axes: T tokens, K layers, H hidden size."""

import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_cache.cache import CODECS, CacheSpec, SegmentWriter
from dflash_cache.cache.segment import SCALES, SMALL_ARRAYS
from dflash_cache.types import CommittedSegment, DroppedRow, TokenSequence
from tests.support.caches import SPEC, read_back


@dataclass(frozen=True)
class Ragged:
    """A segment to write, and how."""

    spec: CacheSpec
    chunk_bytes: int
    sequences: list[TokenSequence]  # as planned
    kept: list[bool]
    hidden_TKH: np.ndarray  # of the kept sequences
    scales_TK: np.ndarray | None
    cuts: list[int]  # where the appended batches end

    @property
    def kept_sequences(self) -> list[TokenSequence]:
        return [s for s, kept in zip(self.sequences, self.kept, strict=True) if kept]


def spec_of(codec: str, dtype: str, num_layers: int, hidden_size: int) -> CacheSpec:
    return replace(
        SPEC,
        target_layer_ids=tuple(range(num_layers)),
        hidden_size=hidden_size,
        vocab_size=2**31 - 1,
        dtype=dtype,
        codec=codec,
    )


@st.composite
def raggeds(draw: st.DrawFn) -> Ragged:
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    spec = spec_of(
        draw(st.sampled_from(sorted(CODECS))), dtype, draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 5, 8])),
    )  # fmt: skip
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    rows = draw(
        st.lists(st.integers(0, 2**40), min_size=len(lengths), max_size=len(lengths), unique=True)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sequences = [
        TokenSequence(
            row_id=row,
            input_ids=rng.integers(0, 2**31 - 1, length, np.int32),
            loss_mask=rng.integers(0, 2, length, np.uint8),
        )
        for row, length in zip(rows, lengths, strict=True)
    ]
    kept = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    num_tokens = sum(length for length, keep in zip(lengths, kept, strict=True) if keep)
    shape = (num_tokens, len(spec.target_layer_ids), spec.hidden_size * spec.stored_dtype.itemsize)
    raw = (
        rng.integers(0, 256, shape, np.uint8) if draw(st.booleans()) else np.zeros(shape, np.uint8)
    )
    return Ragged(
        spec,
        chunk_bytes=draw(st.integers(1, 12)) * spec.stored_token_bytes,
        sequences=sequences,
        kept=kept,
        hidden_TKH=raw.view(spec.stored_dtype),
        scales_TK=rng.random(shape[:2], np.float32) if spec.quantized else None,
        cuts=sorted(draw(st.lists(st.integers(0, num_tokens), max_size=5))),
    )


def written(folder: Path, ragged: Ragged) -> tuple[Path, CommittedSegment]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dflash_cache.cache.segment.INNER_CHUNK_BYTES", ragged.chunk_bytes)
        planned = sum(len(sequence.input_ids) for sequence in ragged.sequences)
        writer = SegmentWriter(folder, ragged.spec, 0, planned)
    for start, stop in pairwise([0, *ragged.cuts, len(ragged.hidden_TKH)]):
        scales_TK = None if ragged.scales_TK is None else ragged.scales_TK[start:stop]
        writer.append(ragged.hidden_TKH[start:stop], scales_TK)
    dropped = [
        DroppedRow(row_id=sequence.row_id, reason="non_finite", detail="layer 1, position 0")
        for sequence, kept in zip(ragged.sequences, ragged.kept, strict=True)
        if not kept
    ]
    return writer.folder, writer.finish(ragged.kept_sequences, dropped)


@settings(max_examples=60, deadline=None)
@given(ragged=raggeds())
def test_any_ragged_segment_comes_back_bit_for_bit_through_our_reader_and_plain_zarr(ragged):
    with tempfile.TemporaryDirectory() as temporary:
        folder, segment = written(Path(temporary), ragged)
        found = read_back(folder, segment, ragged.spec)
        group = zarr.open(folder, mode="r")
        hidden_TKH = np.asarray(group["hidden_states"][...])
        assert found.hidden_TKH.dtype == hidden_TKH.dtype == ragged.hidden_TKH.dtype
        assert found.hidden_TKH.shape == hidden_TKH.shape == ragged.hidden_TKH.shape
        assert found.hidden_TKH.tobytes() == hidden_TKH.tobytes() == ragged.hidden_TKH.tobytes()
        if ragged.scales_TK is not None:
            assert found.scales_TK.tobytes() == ragged.scales_TK.tobytes()
            assert np.asarray(group[SCALES][...]).tobytes() == ragged.scales_TK.tobytes()
        for name in SMALL_ARRAYS:
            np.testing.assert_array_equal(group[name][...], getattr(found, name))
    kept = ragged.kept_sequences
    assert found.row_ids.tolist() == [sequence.row_id for sequence in kept]
    pieces = zip(
        np.split(found.input_ids, found.offsets[1:-1]),
        np.split(found.loss_mask, found.offsets[1:-1]),
        strict=True,
    )
    for sequence, (ids, mask) in zip(kept, pieces, strict=False):
        np.testing.assert_array_equal(ids, sequence.input_ids)
        np.testing.assert_array_equal(mask, sequence.loss_mask)


@settings(max_examples=60, deadline=None)
@given(ragged=raggeds(), data=st.data())
def test_any_subset_of_rows_reads_as_its_part_of_the_whole(ragged, data):
    known = [sequence.row_id for sequence in ragged.sequences]
    wanted = data.draw(st.lists(st.one_of(st.sampled_from(known), st.integers(0, 2**40))))
    with tempfile.TemporaryDirectory() as temporary:
        folder, segment = written(Path(temporary), ragged)
        whole = read_back(folder, segment, ragged.spec)
        part = read_back(folder, segment, ragged.spec, np.array(wanted, np.int64))
    places = [place for place, row in enumerate(whole.row_ids.tolist()) if row in wanted]
    assert part.row_ids.tolist() == whole.row_ids[places].tolist()
    assert part.offsets.tolist() == np.cumsum([0, *np.diff(whole.offsets)[places]]).tolist()
    for name in ("hidden_TKH", "input_ids", "loss_mask", *(["scales_TK"] * ragged.spec.quantized)):
        pieces = np.split(getattr(whole, name), whole.offsets[1:-1])
        expected = b"".join(pieces[place].tobytes() for place in places)
        assert getattr(part, name).tobytes() == expected
