"""Which tokens of a segment are wanted, and which inner chunks they lie in."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dflash_cache.types import Array, Int64Array

READ_BYTES = 16 << 20  # in one call, or one request to an object store


def runs_of(offsets: Int64Array, wanted: Int64Array) -> list[tuple[int, int]]:
    """The tokens of the sequences ``wanted``, neighbours joined, as (start, stop)."""
    runs: list[tuple[int, int]] = []
    for index in wanted.tolist():
        start, stop = int(offsets[index]), int(offsets[index + 1])
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
    return runs


def taken(values: Array, runs: list[tuple[int, int]]) -> Array:
    """The parts of ``values`` that lie in ``runs``, end to end."""
    return np.concatenate([values[:0], *(values[start:stop] for start, stop in runs)])


class Piece:
    """Tokens ``start:stop`` of the segment, to be read at once into ``hidden``."""

    def __init__(self, hidden: Array, start: int, stop: int, chunk_tokens: int) -> None:
        self.first_chunk = start // chunk_tokens
        self.targets: list[Array] = []
        self._partial: list[tuple[Array, Array]] = []  # what to copy where once it is decoded
        for chunk in range(self.first_chunk, -(-stop // chunk_tokens)):
            first = chunk * chunk_tokens
            part = hidden[max(first - start, 0) : first - start + chunk_tokens]
            if len(part) == chunk_tokens:
                self.targets.append(part)
                continue
            scratch = np.empty((chunk_tokens, *hidden.shape[1:]), hidden.dtype)
            self.targets.append(scratch)
            skipped = max(start - first, 0)
            self._partial.append((part, scratch[skipped : skipped + len(part)]))

    def finish(self) -> None:
        """Take the parts of chunks that do not lie whole in the piece."""
        for part, values in self._partial:
            part[...] = values


def pieces(hidden: Array, runs: list[tuple[int, int]], chunk_tokens: int) -> Iterator[Piece]:
    """What to read for ``runs``, in pieces of bounded size that end at chunk borders."""
    most = max(1, READ_BYTES // max(1, hidden[:chunk_tokens].nbytes)) * chunk_tokens
    done = 0
    for first, last in runs:
        borders = range(first - first % chunk_tokens + most, last, most)
        for start, stop in pairwise([first, *borders, last]):
            yield Piece(hidden[done : done + stop - start], start, stop, chunk_tokens)
            done += stop - start
