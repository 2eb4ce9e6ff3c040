"""Rows found again by what they hold."""

import numpy as np

from dflash_cache.types import Int64Array, RowContent

from .rows import TokenRows
from .survey import Survey


def find_rows(
    rows: TokenRows, found: Survey, wanted: set[RowContent], *, max_seq_len: int
) -> Int64Array:
    """The rows of ``found`` whose first ``max_seq_len`` tokens are among ``wanted``, ascending.

    Only rows of a wanted length are read. ``found`` may have cut rows shorter than that.
    """
    shortest_cut = min(max_seq_len, int(found.lengths.max(initial=0)))
    lengths = [min(each.num_tokens, shortest_cut) for each in wanted]
    candidates = found.row_ids[np.isin(np.minimum(found.lengths, shortest_cut), lengths)]
    same = [
        row
        for row in candidates.tolist()
        if RowContent.of(rows.sequence(row, max_seq_len).input_ids) in wanted
    ]
    return np.array(same, np.int64)
