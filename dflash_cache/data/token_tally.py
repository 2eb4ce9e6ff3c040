"""What a pass over rows of chats came to: counts, lengths, the share of the mask."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from dflash_cache.types import Int64Array

from .tokenization import LeftOut, TokenBatch

DUPLICATE = "duplicate"
# Answers are a part of a chat; beyond these shares the mask is hardly what was meant.
LEAST_MASK_SHARE, MOST_MASK_SHARE = 0.01, 0.95


class TokenTally:
    """Counts batches as they are written. Its memory grows with the longest row, not with rows."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_tokens = 0
        self._num_loss_tokens = 0
        self._num_truncated = 0
        self._dropped: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._by_length: Int64Array = np.zeros(0, np.int64)  # [length] sequences

    def add(self, batch: TokenBatch) -> None:
        self.num_rows += batch.num_rows
        self.num_tokens += len(batch.input_ids)
        self._num_loss_tokens += int(batch.loss_mask.sum())
        self._num_truncated += int(batch.truncated.sum())
        for each in batch.left_out:
            self._dropped[each.reason] += 1
            self._examples.setdefault(each.reason, f"row {each.row}: {each.message}")
        counts = np.bincount(batch.lengths, minlength=len(self._by_length))
        counts[: len(self._by_length)] += self._by_length
        self._by_length = counts

    def reasons(self) -> str:
        """Why rows were left out, the first of each kind, in words."""
        return "; ".join(
            f"{rows} {reason} ({self._examples[reason]})" for reason, rows in self._dropped.items()
        )

    def report(self) -> dict[str, Any]:
        """Of at least one sequence."""
        share = self._num_loss_tokens / self.num_tokens
        return {
            "rows": self.num_rows,
            "sequences": int(self._by_length.sum()),
            "tokens": self.num_tokens,
            "truncated": self._num_truncated,
            "dropped": dict(self._dropped),
            "dropped_first": dict(self._examples),
            "lengths": self._lengths(),
            "mask_share": round(share, 4),
            "warnings": mask_warnings(share),
        }

    def _lengths(self) -> dict[str, int]:
        below = np.cumsum(self._by_length)
        shares = {"shortest": 0.0, "median": 0.5, "percentile_95": 0.95, "longest": 1.0}
        ranks = {name: max(1, int(np.ceil(share * below[-1]))) for name, share in shares.items()}
        return {name: int(np.searchsorted(below, rank)) for name, rank in ranks.items()}


def mask_warnings(share: float) -> list[str]:
    """What is to be said of a loss mask that is set on ``share`` of all tokens."""
    if LEAST_MASK_SHARE <= share <= MOST_MASK_SHARE:
        return []
    hint = "only plain text is meant to be so" if share > MOST_MASK_SHARE else "answers are tiny"
    return [
        f"the loss mask is 1 on {share:.2%} of all tokens: {hint}. Look at rows before you extract"
    ]


class Duplicates:
    """Rows whose tokens were there before."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def without(self, batch: TokenBatch, first_row: int) -> TokenBatch:
        """``batch`` without such rows, which are among the left-out ones then."""
        offsets = np.concatenate([[0], np.cumsum(batch.lengths)])
        rows = _kept_rows(batch, first_row)
        kept, repeated = np.ones(len(batch.lengths), bool), []
        for place, (start, stop) in enumerate(pairwise(offsets.tolist())):
            digest = xxhash.xxh3_64_intdigest(batch.input_ids[start:stop].tobytes())
            if digest in self._seen:
                kept[place] = False
                message = "its tokens are those of an earlier row"
                repeated.append(LeftOut(row=rows[place], reason=DUPLICATE, message=message))
            self._seen.add(digest)
        tokens = np.repeat(kept, batch.lengths)
        return replace(
            batch,
            input_ids=batch.input_ids[tokens],
            loss_mask=batch.loss_mask[tokens],
            lengths=batch.lengths[kept],
            truncated=batch.truncated[kept],
            categories=[each for each, keep in zip(batch.categories, kept, strict=True) if keep],
            left_out=[*batch.left_out, *repeated],
        )


def _kept_rows(batch: TokenBatch, first_row: int) -> list[int]:
    left_out = {each.row for each in batch.left_out}
    rows = range(first_row, first_row + batch.num_rows)
    return [row for row in rows if row not in left_out]
