"""One target batch: run it, lay its hidden states into a staging buffer, check them there.

Axes: T tokens, K context layers, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dflash_cache.types import DroppedRow, TokenSequence

from .capture import LayerCapture
from .staging import CopyStream, StagingBuffer


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCapture:
    """What of a batch is in the staging buffer: its first ``num_tokens`` tokens."""

    num_tokens: int
    kept: tuple[TokenSequence, ...]
    dropped: tuple[DroppedRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchUnderWay:
    """A batch whose states are on their way into a staging buffer."""

    sequences: tuple[TokenSequence, ...]
    staging: StagingBuffer
    layer_ids: tuple[int, ...]
    arrived: torch.cuda.Event | None  # None if they are there

    def wait(self) -> None:
        """Until they are there; any thread may."""
        if self.arrived is not None:
            self.arrived.synchronize()

    def finish(self) -> BatchCapture:
        """What is in the buffer in the end.

        A sequence with a state that is not finite is left out, and named with layer and position.
        """
        self.wait()
        lengths = [len(sequence.input_ids) for sequence in self.sequences]
        faults_TK = self.staging.faults(sum(lengths))
        if faults_TK is None:
            return BatchCapture(num_tokens=sum(lengths), kept=self.sequences, dropped=())
        parts = torch.split(faults_TK, lengths)
        details = [_first_fault(part, self.layer_ids) for part in parts]
        pairs = list(zip(self.sequences, details, strict=True))
        return BatchCapture(
            num_tokens=self.staging.keep(lengths, [not detail for detail in details]),
            kept=tuple(sequence for sequence, detail in pairs if not detail),
            dropped=tuple(
                DroppedRow(row_id=sequence.row_id, reason="non_finite", detail=detail)
                for sequence, detail in pairs
                if detail
            ),
        )


def capture_batch(
    capture: LayerCapture,
    sequences: Sequence[TokenSequence],
    staging: StagingBuffer,
    check: Callable[[], None],
    copies: CopyStream,
) -> BatchUnderWay:
    """Run ``sequences`` and send their states to ``staging`` (pinned, for a CUDA target).

    On CUDA this returns while the device still computes.
    """
    copies.wait_for_room()
    ids = [torch.from_numpy(sequence.input_ids).long() for sequence in sequences]
    states = capture.hidden_states(ids, check)
    return BatchUnderWay(
        sequences=tuple(sequences),
        staging=staging,
        layer_ids=capture.layer_ids,
        arrived=staging.fill(states, copies),
    )


def _first_fault(faults_TK: torch.Tensor, layer_ids: Sequence[int]) -> str:
    faults = faults_TK.T.nonzero()  # by layer, then position
    if not len(faults):
        return ""
    layer, position = faults[0].tolist()
    name = f"layer {layer_ids[layer]}" if layer < len(layer_ids) else "the final norm"
    return f"{name}, position {position}"
