"""Training batches from segments: read ahead by threads, packed, in an order that never varies."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from dflash_cache.cache import Cache
from dflash_cache.config import TrainConfig
from dflash_cache.drafter.blocks import draw_anchors
from dflash_cache.pipeline import Arrivals, Channel, Pipeline, ordered_map
from dflash_cache.types import Array, DraftBatch, HiddenSegment, Int64Array

from .order import Position, TrainingOrder, Window
from .prepared import PreparedBatch
from .ranks import ALONE, Ranks


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
    """A rank's micro-batch, and where training stands when it is the last of its step."""

    batch: DraftBatch | None  # None: extraction dropped the rows that would be here
    position: Position | None  # None: more of the same step follow


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence inside a segment's arrays (views)."""

    row_id: int
    hidden_TKH: Array
    input_ids: Array
    loss_mask: Array
    scales_TK: Array | None

    def copy(self) -> "_Sequence":
        """The same in memory of its own, so that the segment may go."""
        return _Sequence(
            row_id=self.row_id,
            hidden_TKH=self.hidden_TKH.copy(),
            input_ids=self.input_ids.copy(),
            loss_mask=self.loss_mask.copy(),
            scales_TK=None if self.scales_TK is None else self.scales_TK.copy(),
        )


def prefetch(
    pipeline: Pipeline,
    source: SegmentSource,
    order: TrainingOrder,
    start: Position,
    config: TrainConfig,
    ranks: Ranks = ALONE,
) -> Channel[TrainingBatch]:
    """Spawn the stages that read segments and pack batches, until the channel is aborted
    or the last epoch is over.

    While one window of segments is trained on, the next is read. Of each step's rows a rank
    reads every ``ranks.size``-th: which ones is known from the plan alone.
    """
    step_rows = config.batch_size * config.grad_accum
    batches: Channel[TrainingBatch] = pipeline.channel(
        "batches",
        config.prefetch_bytes,
        lambda item: item.batch.hidden_TKH.nbytes if item.batch else 0,
    )
    epochs = None if config.steps else config.epochs
    segments = ordered_map(
        pipeline,
        "prefetch",
        lambda item: (item[0], source.read(item[1], _own_rows(item[0], step_rows, ranks))),
        lambda: (
            (window, index) for window in order.windows(start, epochs) for index in window.segments
        ),
        workers=config.prefetch_readers,
        depth=-(-config.shuffle_segments // config.prefetch_readers),
    )

    def pack_all() -> None:
        with closing(segments):
            for epoch, group, position in _groups(segments, config.batch_size, step_rows):
                batch = pack(group, config.anchors, (config.seed, epoch)) if group else None
                batches.put(TrainingBatch(batch=batch, position=position))

    pipeline.spawn("pack", pack_all, into=[batches])
    return batches


def prepare_ahead(
    pipeline: Pipeline,
    batches: Channel[TrainingBatch],
    prepare: Callable[[DraftBatch], PreparedBatch],
    device: torch.device,
) -> Channel[TrainingBatch]:
    """Spawn the stage that makes each batch ready for ``device``, one ahead of its step.

    For CUDA its hidden states are copied from pinned memory on a stream of their own, while the
    step before computes.
    """
    ready: Channel[TrainingBatch] = pipeline.channel("ready", 1)
    on_cuda = device.type == "cuda"

    def work() -> None:
        stream = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        try:
            for item in batches:
                batch = prepare(item.batch) if item.batch else None
                if batch is not None and stream is not None:
                    batch = batch.pin().sent(device, stream)
                ready.put(replace(item, batch=batch))
        finally:
            batches.abort()  # when training is done, or the stages before would wait for room

    pipeline.spawn("prepare", work, into=[ready])
    return ready


def _own_rows(window: Window, step_rows: int, ranks: Ranks) -> Int64Array | None:
    """What this rank trains on; None where that is all."""
    if ranks.size == 1:
        return None
    numbers = np.arange(window.first_row, window.first_row + len(window.row_ids))
    own: Int64Array = window.row_ids[numbers % step_rows % ranks.size == ranks.rank]
    return own


def _groups(
    segments: Iterable[tuple[Window, HiddenSegment]], batch_size: int, step_rows: int
) -> Iterator[tuple[int, list[_Sequence], Position | None]]:
    """Each step's rows in micro-batches, across window borders; the last of a step has a position.

    A step is ``step_rows`` planned rows, or what is left of the epoch. So its borders are the
    same on every rank, whatever rows extraction dropped (the ledger says why).
    """
    group: list[_Sequence] = []
    for window, present in _whole_windows(segments):
        end = window.first_row + len(window.row_ids)
        for row, behind in zip(
            window.row_ids.tolist(), range(window.first_row + 1, end + 1), strict=True
        ):
            if row in present:
                if len(group) == batch_size:
                    yield window.epoch, group, None
                    group = []
                group.append(present[row])
            ends_epoch = window.last and behind == end
            if ends_epoch or behind % step_rows == 0:
                epoch = window.epoch + ends_epoch
                yield window.epoch, group, Position(epoch=epoch, row=0 if ends_epoch else behind)
                group = []
        # Or this window would stay in memory while the next is gathered.
        group = [sequence.copy() for sequence in group]
        present.clear()


def _whole_windows(
    segments: Iterable[tuple[Window, HiddenSegment]],
) -> Iterator[tuple[Window, dict[int, _Sequence]]]:
    """Each window once all its segments are there, with its sequences by row."""
    present: dict[int, _Sequence] = {}
    for window, segment in segments:
        present |= {sequence.row_id: sequence for sequence in whole_segment(segment)}
        if segment.index == window.segments[-1]:
            yield window, present
            present = {}


def _sequence(segment: HiddenSegment, index: int) -> _Sequence:
    tokens = slice(int(segment.offsets[index]), int(segment.offsets[index + 1]))
    return _Sequence(
        row_id=int(segment.row_ids[index]),
        hidden_TKH=segment.hidden_TKH[tokens],
        input_ids=segment.input_ids[tokens],
        loss_mask=segment.loss_mask[tokens],
        scales_TK=None if segment.scales_TK is None else segment.scales_TK[tokens],
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
    scales = [sequence.scales_TK for sequence in group if sequence.scales_TK is not None]
    return DraftBatch(
        hidden_TKH=as_tensor(np.concatenate([sequence.hidden_TKH for sequence in group])),
        input_ids=torch.from_numpy(np.concatenate([s.input_ids for s in group])).long(),
        loss_mask=torch.from_numpy(np.concatenate([s.loss_mask for s in group])).bool(),
        offsets=torch.from_numpy(offsets),
        anchors=torch.from_numpy(np.concatenate(drawn)),
        row_ids=tuple(sequence.row_id for sequence in group),
        scales_TK=torch.from_numpy(np.concatenate(scales)) if scales else None,
    )


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor that shares ``array``'s memory.

    uint16 holds bfloat16 bits, uint8 those of float8_e4m3fn.
    """
    tensor = torch.from_numpy(array)
    dtypes = {np.dtype(np.uint16): torch.bfloat16, np.dtype(np.uint8): torch.float8_e4m3fn}
    return tensor.view(dtypes.get(array.dtype, tensor.dtype))
