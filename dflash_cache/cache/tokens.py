"""Which tokens of a segment are wanted, and which inner chunks they lie in."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dflash_cache.types import Array

from .shard import ALIGNMENT


def runs_of(offsets: Sequence[int], wanted: Iterable[int]) -> list[tuple[int, int]]:
    """The tokens of the sequences ``wanted``, neighbours joined, as (start, stop)."""
    runs: list[tuple[int, int]] = []
    for index in wanted:
        start, stop = offsets[index], offsets[index + 1]
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
    return runs


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """As ``numpy.empty``, at an address that keeps copies from the page cache fast.

    See ``shard.ALIGNMENT``: numpy's own large arrays begin 16 bytes behind a page's start.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


def taken(values: Array, runs: list[tuple[int, int]]) -> Array:
    """The parts of ``values`` that lie in ``runs``, end to end."""
    return np.concatenate([values[:0], *(values[start:stop] for start, stop in runs)])


class ChunkPart(NamedTuple):
    """What is wanted of one inner chunk."""

    chunk: int
    pieces: list["Piece"]  # in the chunk's order, none over another


class Piece(NamedTuple):
    """Neighbouring bytes of a chunk that are wanted."""

    offset: int  # in the chunk
    start: int  # where they go
    size: int


def chunk_parts(
    runs: Iterable[tuple[int, int]], chunk_tokens: int, token_bytes: int
) -> Iterator[ChunkPart]:
    """What to read of which chunk, each once, to have the tokens of ``runs`` end to end."""
    done = 0
    part = ChunkPart(-1, [])
    for start, stop in runs:
        for chunk in range(start // chunk_tokens, -(-stop // chunk_tokens)):
            if chunk != part.chunk:
                if part.pieces:
                    yield part
                part = ChunkPart(chunk, [])
            first = max(start, chunk * chunk_tokens)
            size = (min(stop, (chunk + 1) * chunk_tokens) - first) * token_bytes
            part.pieces.append(Piece((first - chunk * chunk_tokens) * token_bytes, done, size))
            done += size
    if part.pieces:
        yield part
