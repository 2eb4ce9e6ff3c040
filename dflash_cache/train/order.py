"""Which rows are trained on, and in which order: pure functions of plan, seed and epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from dflash_cache.errors import ConfigError
from dflash_cache.types import Int64Array, SegmentPlan


def held_out_rows(row_ids: Int64Array, holdout: float | None) -> Int64Array:
    """The rows kept from training, ascending: those with the lowest hash of their number.

    ``holdout`` is a share below 1 or a number of rows; None is 64 rows, at most a tenth. More
    rows keep those already held out where they are.
    """
    if holdout is None:
        number = min(64, len(row_ids) // 10)
    else:
        number = round(holdout * len(row_ids)) if holdout < 1 else int(holdout)
    if number >= len(row_ids):
        raise ConfigError(f"--holdout {holdout}: leaves no row to train on, of {len(row_ids)}")
    return np.sort(row_ids[np.argsort(_hash(row_ids), kind="stable")[:number]])


def _hash(row_ids: Int64Array) -> npt.NDArray[np.uint64]:
    """splitmix64's mixing (Steele, Lea and Flood, 2014)."""
    mixed = row_ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far training has come: ``row`` planned rows of ``epoch`` are behind it."""

    epoch: int = 0
    row: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Segments that are in memory together, and their rows in training order."""

    epoch: int
    segments: tuple[int, ...]
    row_ids: Int64Array
    first_row: int  # how many planned rows of the epoch stand before these
    last: bool  # of the epoch


class TrainingOrder:
    """Epoch 0 takes the segments in plan order, as an extraction gives them; later ones shuffle.

    A segment holds rows of one length, which may be alike in more than length; so the rows of
    ``window_segments`` segments are shuffled together.
    """

    def __init__(
        self,
        plan: Sequence[SegmentPlan],
        held_out: Int64Array,
        *,
        seed: int,
        window_segments: int,
    ) -> None:
        self._rows = [segment.row_ids[~np.isin(segment.row_ids, held_out)] for segment in plan]
        self._seed = seed
        self._window_segments = window_segments
        self.num_rows = sum(len(rows) for rows in self._rows)

    def num_steps(self, *, epochs: int, batch_size: int, grad_accum: int) -> int:
        batches = -(-self.num_rows // batch_size)
        return epochs * -(-batches // grad_accum)

    def windows(self, start: Position, epochs: int | None = None) -> Iterator[Window]:
        """Windows from ``start`` on, epoch after epoch; endless unless there are ``epochs``."""
        for epoch in count(start.epoch) if epochs is None else range(start.epoch, epochs):
            yield from self._epoch(epoch, start.row if epoch == start.epoch else 0)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Window]:
        segments = [index for index, rows in enumerate(self._rows) if len(rows)]
        if epoch:
            np.random.default_rng((self._seed, epoch)).shuffle(segments)
        before = 0
        for first in range(0, len(segments), self._window_segments):
            chosen = tuple(segments[first : first + self._window_segments])
            rows = np.concatenate([self._rows[index] for index in chosen])
            if before + len(rows) > skip:
                rng = np.random.default_rng((self._seed, epoch, first))
                offset = max(0, skip - before)
                yield Window(
                    epoch=epoch,
                    segments=chosen,
                    row_ids=rng.permutation(rows)[offset:],
                    first_row=before + offset,
                    last=before + len(rows) == self.num_rows,
                )
            before += len(rows)
