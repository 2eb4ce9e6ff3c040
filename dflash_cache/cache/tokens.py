"""Which tokens of a segment are wanted, and which inner chunks they lie in."""

from collections.abc import Iterator

import numpy as np

from dflash_cache.types import Array, Int64Array


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


def pieces(
    hidden: Array, runs: list[tuple[int, int]], chunk_tokens: int
) -> Iterator[tuple[int, Array]]:
    """Each chunk to read and the array to read it into, which ``hidden`` takes its part from.

    A chunk that lies whole in a run is read into ``hidden`` itself; the caller fills each array
    before it asks for the next.
    """
    scratch, held, done = np.empty((chunk_tokens, *hidden.shape[1:]), hidden.dtype), -1, 0
    for start, stop in runs:
        for chunk in range(start // chunk_tokens, -(-stop // chunk_tokens)):
            first, last = max(start, chunk * chunk_tokens), min(stop, (chunk + 1) * chunk_tokens)
            part = hidden[done : done + last - first]
            done += last - first
            if len(part) == chunk_tokens:
                yield chunk, part
                continue
            if chunk != held:
                held = chunk
                yield chunk, scratch
            part[...] = scratch[first - chunk * chunk_tokens : last - chunk * chunk_tokens]
