"""Training batches from segments: read ahead by threads, packed, in an order that never varies."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from dflash_cache.cache import Cache
from dflash_cache.drafter.blocks import draw_anchors
from dflash_cache.errors import TrainingError
from dflash_cache.pipeline import Arrivals, Channel, Pipeline, ordered_map
from dflash_cache.types import Array, DraftBatch, HiddenSegment, Int64Array

from .order import Position, SegmentRead, TrainingOrder


class SegmentSource(Protocol):
    """Where segments come from. Training cannot tell a finished cache from a growing one."""

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment: ...


class LiveSource:
    """Segments of a cache that is being written: reading waits until the segment is committed."""

    def __init__(self, cache: Cache, committed: Arrivals[int]) -> None:
        self._cache = cache
        self._committed = committed

    def read(self, index: int, row_ids: Int64Array | None = None) -> HiddenSegment:
        self._committed.wait(index)
        return self._cache.read(index, row_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBatch:
    """A micro-batch and where training stands after it."""

    batch: DraftBatch
    position: Position
    ends_epoch: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence inside a segment's arrays (views)."""

    row_id: int
    hidden_TKH: Array
    input_ids: Array
    loss_mask: Array


def prefetch(
    pipeline: Pipeline,
    source: SegmentSource,
    order: TrainingOrder,
    start: Position,
    *,
    batch_size: int,
    anchors: int,
    seed: int,
    readers: int,
    depth: int,
) -> Channel[TrainingBatch]:
    """Spawn the stages that read segments and pack batches, until the channel is aborted."""
    batches: Channel[TrainingBatch] = pipeline.channel("batches", depth)
    segments = ordered_map(
        pipeline,
        "prefetch",
        lambda read: (read, source.read(read.segment)),
        lambda: order.reads(start),
        workers=readers,
        depth=1,
    )

    def pack_all() -> None:
        with closing(segments):
            for epoch, group, position, ends_epoch in _groups(segments, batch_size):
                batch = pack(group, anchors, (seed, epoch))
                batches.put(TrainingBatch(batch=batch, position=position, ends_epoch=ends_epoch))

    pipeline.spawn("pack", pack_all, into=[batches])
    return batches


def _groups(
    segments: Iterable[tuple[SegmentRead, HiddenSegment]], batch_size: int
) -> Iterator[tuple[int, list[_Sequence], Position, bool]]:
    """Full batches across segment borders; what is left at the end of an epoch is a batch too.

    A full batch waits for the row after it, so that the last of an epoch is known as such.
    """
    group: list[_Sequence] = []
    position = Position()
    for read, segment in segments:
        place = {row: index for index, row in enumerate(segment.row_ids.tolist())}
        for count, row in enumerate(read.row_ids.tolist(), start=1):
            if row not in place:  # extraction dropped it; the ledger says why
                continue
            if len(group) == batch_size:
                yield read.epoch, group, position, False
                group = []
            group.append(_sequence(segment, place[row]))
            position = Position(epoch=read.epoch, row=read.first_row + count)
        if read.last:
            if not group:
                raise TrainingError("extraction dropped every row of this epoch; see the ledger")
            yield read.epoch, group, Position(epoch=read.epoch + 1), True
            group = []


def _sequence(segment: HiddenSegment, index: int) -> _Sequence:
    tokens = slice(int(segment.offsets[index]), int(segment.offsets[index + 1]))
    return _Sequence(
        row_id=int(segment.row_ids[index]),
        hidden_TKH=segment.hidden_TKH[tokens],
        input_ids=segment.input_ids[tokens],
        loss_mask=segment.loss_mask[tokens],
    )


def whole_segment(segment: HiddenSegment) -> list[_Sequence]:
    return [_sequence(segment, index) for index in range(len(segment.row_ids))]


def pack(group: list[_Sequence], anchors: int, key: tuple[int, int]) -> DraftBatch:
    """Lay ``group`` end to end and draw up to ``anchors`` anchors on each sequence."""
    offsets = np.cumsum([0, *(len(sequence.input_ids) for sequence in group)])
    drawn = [
        draw_anchors(sequence.loss_mask, anchors, *key, sequence.row_id) + offset
        for sequence, offset in zip(group, offsets, strict=False)
    ]
    return DraftBatch(
        hidden_TKH=as_tensor(np.concatenate([sequence.hidden_TKH for sequence in group])),
        input_ids=torch.from_numpy(np.concatenate([s.input_ids for s in group])).long(),
        loss_mask=torch.from_numpy(np.concatenate([s.loss_mask for s in group])).bool(),
        offsets=torch.from_numpy(offsets),
        anchors=torch.from_numpy(np.concatenate(drawn)),
        row_ids=tuple(sequence.row_id for sequence in group),
    )


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor that shares ``array``'s memory; uint16 holds bfloat16 bits."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
