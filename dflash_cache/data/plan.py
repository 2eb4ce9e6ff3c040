"""Which rows form which segment: a pure function of lengths, seed and limits."""

import numpy as np

from dflash_cache.types import Int64Array, SegmentPlan

# Rows sorted by length together. Many batches' worth keeps a batch's padding small; the shuffle
# before keeps neighbours in the dataset apart.
WINDOW_ROWS = 4096


def plan_segments(
    row_ids: Int64Array, lengths: Int64Array, *, seed: int, segment_tokens: int
) -> list[SegmentPlan]:
    """Shuffle rows, sort windows of them by length, cut into segments, shuffle the segments.

    A segment holds at most ``segment_tokens`` tokens, or a single longer row. Every row is in
    exactly one segment.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(row_ids))
    pieces: list[Int64Array] = []
    for start in range(0, len(order), WINDOW_ROWS):
        window = order[start : start + WINDOW_ROWS]
        window = window[np.argsort(lengths[window], kind="stable")]
        pieces += _cut(window, lengths[window], segment_tokens)
    return [
        SegmentPlan(index=index, row_ids=row_ids[pieces[piece]], lengths=lengths[pieces[piece]])
        for index, piece in enumerate(rng.permutation(len(pieces)).tolist())
    ]


def _cut(rows: Int64Array, lengths: Int64Array, segment_tokens: int) -> list[Int64Array]:
    ends = np.cumsum(lengths)
    pieces, first, used = [], 0, 0
    while first < len(rows):
        last = int(np.searchsorted(ends, used + segment_tokens, side="right"))
        last = max(last, first + 1)
        pieces.append(rows[first:last])
        first, used = last, int(ends[last - 1])
    return pieces


def plan_batches(lengths: Int64Array, batch_tokens: int) -> list[slice]:
    """Cut a segment's rows, in order, into batches of at most ``batch_tokens`` padded tokens.

    A single longer row is a batch of its own.
    """
    batches, first, longest = [], 0, 0
    for row, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if row > first and longest * (row - first + 1) > batch_tokens:
            batches.append(slice(first, row))
            first, longest = row, length
    if len(lengths):
        batches.append(slice(first, len(lengths)))
    return batches
