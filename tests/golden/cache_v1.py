"""What the caches in ``cache-v1`` hold, by formula, and how they were made, once.

    python -m tests.golden.cache_v1 FOLDER

They were written when format version 1 was. They are never made anew: tests open what was written.

Axes: T tokens, K context layers, H hidden size, V vocabulary rows.
"""

import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np

from dflash_cache.cache import (
    Cache,
    CacheSpec,
    CacheWriter,
    DatasetPart,
    PlannedPart,
    TargetParts,
    open_storage,
)
from dflash_cache.types import Array, DroppedRow, SegmentPlan, TokenSequence

FOLDER = Path(__file__).parent / "cache-v1"
DTYPES = {"crc32c": "bfloat16", "lz4": "float32", "zstd": "bfloat16", "fp8": "bfloat16"}
TIED = {"zstd"}  # no head and no final norm
KEEPING_LAST = {"zstd"}  # one more state of a token
EVICTED_ONCE = {"lz4": 1}  # this segment was committed, evicted and committed again
LAYERS, HIDDEN, VOCABULARY = (1, 4), 8, 20
CHUNK_BYTES = 256  # of an inner chunk: several in a shard of few bytes

# By dataset part: rows of each segment in the dataset's numbers, and rows that the plan left out.
SEGMENTS = (((4, 0), (5, 2, 3)), ((1, 2), (0,)))
LEFT_OUT = ((1,), ())
NUM_ROWS = (6, 3)
NOT_FINITE = {(0, 3), (1, 0)}  # (part, row), dropped by extraction: part 1's last segment is empty


def length_of(row: int) -> int:
    """Tokens of a row, by its number through both parts."""
    return 5 + row * 5 % 7


def ids_of(row: int) -> Array:
    return (np.arange(length_of(row), dtype=np.int32) * 3 + row) % VOCABULARY


def mask_of(row: int) -> Array:
    return (np.arange(length_of(row)) >= 2).astype(np.uint8)


def num_states(codec: str) -> int:
    return len(LAYERS) + (codec in KEEPING_LAST)


def _counter(row: int, num_states: int) -> Array:
    t, k, h = np.ogrid[: length_of(row), :num_states, :HIDDEN]
    return row * 31 + t * 7 + k * 3 + h * 5


def states_of(row: int, codec: str) -> Array:
    """Lossless states [T, K, H], quarters that bfloat16 holds exactly."""
    return ((_counter(row, num_states(codec)) % 61 - 30) / 4).astype(np.float32)


def codes_of(row: int) -> Array:
    """e4m3 bit patterns [T, K, H] without NaN; every other value is negative."""
    return (_counter(row, len(LAYERS)) % 127 | np.arange(HIDDEN) % 2 << 7).astype(np.uint8)


def scales_of(row: int) -> Array:
    t, k = np.ogrid[: length_of(row), : len(LAYERS)]
    return (2.0 ** -(k + t % 3)).astype(np.float32)


def stored_of(row: int, codec: str) -> Array:
    """What the array of hidden states holds of a row."""
    if codec == "fp8":
        return codes_of(row)
    return _in_dtype(states_of(row, codec), codec)


def _in_dtype(values: Array, codec: str) -> Array:
    if DTYPES[codec] == "float32":
        return values
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def target_of(codec: str) -> TargetParts:
    embedding = np.arange(VOCABULARY * HIDDEN, dtype=np.float32).reshape(VOCABULARY, HIDDEN)
    tied = codec in TIED
    return TargetParts(
        config={"hidden_size": HIDDEN, "model_type": "qwen3"},
        embedding=_in_dtype(embedding, codec),
        head=None if tied else _in_dtype(embedding[::-1].copy(), codec),
        norm=None if tied else _in_dtype(np.full(HIDDEN, 1.5, np.float32), codec),
        mask_token_id=VOCABULARY - 1,
    )


def spec_of(codec: str) -> CacheSpec:
    parts = [
        DatasetPart(
            dataset=f"dataset-{part}",
            dataset_fingerprint=f"made-up-{part}",
            num_rows=NUM_ROWS[part],
            num_segments=len(SEGMENTS[part]),
            limit=None,
            max_seq_len=64,
            too_long="truncate",
            segment_tokens=24,
            plan_seed=part,
        )
        for part in range(len(SEGMENTS))
    ]
    return CacheSpec(
        target="made-up",
        revision="",
        target_config_hash="config",
        target_weights_hash="weights",
        tokenizer_hash="tokenizer",
        chat_template_hash="none",
        target_layer_ids=LAYERS,
        keep_last=codec in KEEPING_LAST,
        num_target_layers=6,
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        dtype=DTYPES[codec],
        codec=codec,
        parts=tuple(parts),
    )


def plan_of(part: int) -> PlannedPart:
    first = sum(NUM_ROWS[:part])
    segments = [
        SegmentPlan(
            index=index,
            row_ids=np.array(rows, np.int64),
            lengths=np.array([length_of(first + row) for row in rows], np.int64),
        )
        for index, rows in enumerate(SEGMENTS[part])
    ]
    dropped = [DroppedRow(row_id=row, reason="no_loss_token") for row in LEFT_OUT[part]]
    return PlannedPart(segments=segments, dropped=dropped)


def _write_segment(writer: CacheWriter, part: int, plan: SegmentPlan) -> None:
    first, codec = sum(NUM_ROWS[:part]), writer.cache.spec.codec
    kept = [row for row in plan.row_ids.tolist() if (part, row) not in NOT_FINITE]
    lost = [row for row in plan.row_ids.tolist() if (part, row) in NOT_FINITE]
    segment = writer.segment(plan)
    for row in kept:
        scales = scales_of(first + row) if codec == "fp8" else None
        segment.append(stored_of(first + row, codec), scales)
    sequences = [
        TokenSequence(row_id=row, input_ids=ids_of(first + row), loss_mask=mask_of(first + row))
        for row in kept
    ]
    dropped = [
        DroppedRow(row_id=row, reason="non_finite", detail="layer 1, position 0") for row in lost
    ]
    writer.commit(segment.folder, segment.finish(sequences, dropped))


def write_cache(folder: Path, codec: str) -> None:
    spec, settings = spec_of(codec), {"codec": codec}
    first = CacheSpec.from_dict(spec.as_dict() | {"parts": spec.as_dict()["parts"][:1]})
    cache = Cache.create(open_storage(folder), first, settings, target_of(codec), plan_of(0))
    cache.append(spec, settings, plan_of(1))
    writer, parts = CacheWriter(cache), [part for part, of in enumerate(SEGMENTS) for _ in of]
    again = EVICTED_ONCE.get(codec)
    order = range(len(parts)) if again is None else [*range(len(parts)), again]
    for index in order:
        if index in cache.segments:
            writer.evict(index)
        part = parts[index]
        # A segment's record counts rows from its own dataset's first one.
        rows = np.array(SEGMENTS[part][index - spec.first_segments[part]], np.int64)
        lengths = np.array([length_of(row + spec.first_rows[part]) for row in rows], np.int64)
        _write_segment(writer, part, SegmentPlan(index=index, row_ids=rows, lengths=lengths))
    shutil.rmtree(folder / "staging")


if __name__ == "__main__":
    with mock.patch("dflash_cache.cache.segment.INNER_CHUNK_BYTES", CHUNK_BYTES):
        for name in DTYPES:
            write_cache(Path(sys.argv[1]) / name, name)
