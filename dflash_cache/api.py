"""The Python API: read a cache as torch tensors, extract and train from a program or a notebook.

Axes in names: T tokens, N sequences, K context layers, H hidden size.
"""

import operator
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .cache import Cache, CacheSpec
from .config import ExtractConfig, TrainConfig
from .runs.extract import extract as run_extract
from .runs.inspect_cache import stored_rows
from .runs.progress import OnProgress, Progress, ignore
from .runs.train import train as run_train
from .settings import build
from .train import Position, TrainingOrder, as_tensor
from .train.features import restored
from .types import Array, HiddenSegment, Int64Array, SegmentPlan

C = TypeVar("C", ExtractConfig, TrainConfig)

__all__ = [
    "ExtractConfig",
    "HiddenSequence",
    "HiddenStateCache",
    "HiddenStateDataset",
    "Progress",
    "TrainConfig",
    "extract",
    "train",
]


class HiddenSequence(NamedTuple):
    """One dataset row with its hidden states, on the CPU."""

    row_id: int
    input_ids: torch.Tensor  # [T], int64
    loss_mask: torch.Tensor  # [T], bool
    hidden_TKH: torch.Tensor  # [T, K, H], float32 or bfloat16

    def as_numpy(self) -> dict[str, Array]:
        """``input_ids`` int64, ``loss_mask`` bool, ``hidden_TKH`` float32 (numpy has no bfloat16).

        float32 states share their memory with the tensors.
        """
        return {
            "input_ids": self.input_ids.numpy(),
            "loss_mask": self.loss_mask.numpy(),
            "hidden_TKH": self.hidden_TKH.float().numpy(),
        }


class HiddenStateCache:
    """The sequences of a cache, in the order in which they are stored.

    Sequences that were committed after the opening are not seen. Each read checks its bytes and
    raises ``CacheCorruptError``, which names file and rows, where they are not what was written.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._row_ids, self._lengths, self._owners = stored_rows(cache, cache.plan)

    @classmethod
    def open(cls, place: str | Path) -> Self:
        """Open a cache's folder or address, finished or not. No hidden states are read.

        ``ConfigError`` if there is no cache, ``CacheCorruptError`` if it is damaged.
        """
        return cls(Cache.open(place))

    @property
    def spec(self) -> CacheSpec:
        """What the cache was made from: target, datasets, layers, dtype, codec."""
        return self._cache.spec

    @property
    def complete(self) -> bool:
        """Whether every planned segment was there at the opening."""
        return len(self._cache.segments) == self.spec.first_segments[-1]

    @property
    def row_ids(self) -> Int64Array:
        """The row number in the dataset of each sequence, [N]."""
        return self._row_ids

    @property
    def dtype(self) -> torch.dtype:
        """That of hidden states as they are given; 8-bit ones are restored to it."""
        return torch.bfloat16 if self.spec.dtype == "bfloat16" else torch.float32

    def __len__(self) -> int:
        return len(self._row_ids)

    def __getitem__(self, index: int) -> HiddenSequence:
        """The sequence at place ``index``, negative from the end; only its chunks are read.

        ``IndexError`` if there is none, ``TypeError`` for what is no integer, slices too. See
        ``row`` for a sequence by its row number.
        """
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"place {place}: {self._cache.address} holds {len(self)} sequences")
        row_id, owner = self._row_ids[place], self._owners[place]
        (sequence,) = self.read(int(owner), np.array([row_id]))
        return sequence

    def row(self, row_id: int) -> HiddenSequence:
        """The sequence of a dataset's row; ``KeyError`` if the cache does not hold it."""
        (places,) = np.nonzero(self._row_ids == row_id)
        if not len(places):
            raise KeyError(f"{self._cache.address} holds no row {row_id}")
        return self[int(places[0])]

    def __iter__(self) -> Iterator[HiddenSequence]:
        """All sequences, in order; a segment is read at once."""
        for sequences in self.segments():
            yield from sequences

    def segments(self) -> Iterator[list[HiddenSequence]]:
        """The sequences of each stored segment, whose tensors they share, in order."""
        for segment in self.stored_plan():
            yield self.read(segment.index)

    def read(self, segment: int, row_ids: Int64Array | None = None) -> list[HiddenSequence]:
        """The sequences of a stored segment, or those of them that are in ``row_ids``.

        ``KeyError`` if the segment is not stored.
        """
        if segment not in self._cache.segments:
            raise KeyError(f"{self._cache.address} holds no segment {segment}")
        return self._sequences(self._cache.read(segment, row_ids))

    def as_dataset(
        self,
        *,
        shuffle_seed: int | None = None,
        window_segments: int = 8,
        rank: int | None = None,
        num_ranks: int | None = None,
    ) -> "HiddenStateDataset":
        """A dataset for torch's ``DataLoader``, which every rank and worker gets a share of.

        Without ``shuffle_seed`` the order is that of the cache. ``rank`` of ``num_ranks`` is told
        by torchrun's environment, or is the only one. ``ValueError`` if only one of them is given.
        """
        if (rank is None) != (num_ranks is None):
            raise ValueError(f"rank {rank} of {num_ranks}: give both, or neither")
        return HiddenStateDataset(
            self._cache.address,
            shuffle_seed=shuffle_seed,
            window_segments=window_segments,
            rank=int(os.environ.get("RANK", "0")) if rank is None else rank,
            num_ranks=int(os.environ.get("WORLD_SIZE", "1")) if num_ranks is None else num_ranks,
        )

    def stored_plan(self) -> list[SegmentPlan]:
        """The segments that hold sequences, with the rows of those."""
        indices, first = np.unique(self._owners, return_index=True)
        rows = np.split(self._row_ids, first[1:])
        lengths = np.split(self._lengths, first[1:])
        return [
            SegmentPlan(index=int(index), row_ids=own, lengths=tokens)
            for index, own, tokens in zip(indices, rows, lengths, strict=False)
        ]

    def _sequences(self, segment: HiddenSegment) -> list[HiddenSequence]:
        scales = None if segment.scales_TK is None else as_tensor(segment.scales_TK)
        hidden_TKH = restored(as_tensor(segment.hidden_TKH), scales, self.dtype)
        ids = torch.from_numpy(segment.input_ids).long()
        mask = torch.from_numpy(segment.loss_mask).bool()
        lengths = np.diff(segment.offsets).tolist()
        parts = (torch.split(tensor, lengths) for tensor in (ids, mask, hidden_TKH))
        return list(map(HiddenSequence, segment.row_ids.tolist(), *parts))


class HiddenStateDataset(IterableDataset[HiddenSequence]):
    """The sequences of a cache for a ``DataLoader``, made by ``HiddenStateCache.as_dataset``.

    Every worker of every rank gets its share, each sequence once, and the shares' sizes differ by
    one at most. A share reads only its own chunks. With a seed the rows of ``window_segments``
    segments are shuffled together, as in training, and no more are in memory over all workers.

    Sequences differ in length: give the ``DataLoader`` a ``collate_fn``, or ``batch_size=None``.
    """

    def __init__(
        self,
        place: str,
        *,
        shuffle_seed: int | None,
        window_segments: int,
        rank: int,
        num_ranks: int,
    ) -> None:
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank {rank} of {num_ranks}: expected 0 to {num_ranks - 1}")
        if window_segments < 1:
            raise ValueError(f"window_segments {window_segments}: expected at least 1")
        self._place = place  # and no open cache, which could not be sent to a worker
        self._shuffle_seed = shuffle_seed
        self._window_segments = window_segments
        self._rank, self._num_ranks = rank, num_ranks
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle otherwise from the next iteration on; not seen by persistent workers."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[HiddenSequence]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        share, shares = self._rank * workers + number, self._num_ranks * workers
        cache = HiddenStateCache.open(self._place)
        for segments, row_ids, first in self._windows(cache):
            own = row_ids[(first + np.arange(len(row_ids))) % shares == share]
            found = {each.row_id: each for index in segments for each in cache.read(index, own)}
            for row_id in own.tolist():
                yield found.pop(row_id)

    def _windows(self, cache: HiddenStateCache) -> Iterator[tuple[list[int], Int64Array, int]]:
        """Segments to read together, their rows in order, and how many rows come before."""
        plan = cache.stored_plan()
        if self._shuffle_seed is None:
            first = 0
            for segment in plan:
                yield [segment.index], segment.row_ids, first
                first += len(segment.row_ids)
            return
        order = TrainingOrder(
            plan,
            np.zeros(0, np.int64),
            seed=self._shuffle_seed,
            window_segments=self._window_segments,
        )
        for window in order.windows(Position(epoch=self._epoch), self._epoch + 1):
            indices = [plan[place].index for place in window.segments]
            yield indices, window.row_ids, window.first_row


def extract(
    config: ExtractConfig | None = None,
    *,
    on_progress: OnProgress = ignore,
    **settings: Any,
) -> dict[str, Any]:
    """Fill a cache, as ``dflash-cache extract`` does; an unfinished one is resumed.

    ``settings`` are fields of ``ExtractConfig``, as ``data="tokens"``, and win over ``config``.
    Returns the report that ``--json`` prints. Errors are those of ``dflash_cache.errors``; after a
    ``KeyboardInterrupt`` the same call continues.
    """
    return run_extract(_merged(ExtractConfig, config, settings), on_progress)


def train(
    config: TrainConfig | None = None,
    *,
    on_progress: OnProgress = ignore,
    **settings: Any,
) -> dict[str, Any]:
    """Train a drafter from a finished cache, as ``dflash-cache train`` does; a run is resumed.

    ``settings`` are fields of ``TrainConfig``, as ``out="run"``, and win over ``config``.
    Returns the report that ``--json`` prints. Errors are those of ``dflash_cache.errors``; after a
    ``KeyboardInterrupt`` the same call continues.
    """
    return run_train(_merged(TrainConfig, config, settings), on_progress)


def _merged(kind: type[C], config: C | None, settings: dict[str, Any]) -> C:
    return build(kind, {} if config is None else asdict(config), settings)
