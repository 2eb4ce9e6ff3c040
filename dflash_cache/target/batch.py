"""One target batch: run it, check it, lay its hidden states into a staging buffer.

Axes: T tokens, K context layers, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dflash_cache.types import DroppedRow, TokenSequence

from .capture import LayerCapture
from .staging import StagingBuffer


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCapture:
    """What of a batch is in the staging buffer: its first ``num_tokens`` tokens."""

    num_tokens: int
    kept: tuple[TokenSequence, ...]
    dropped: tuple[DroppedRow, ...]


def capture_batch(
    capture: LayerCapture,
    sequences: Sequence[TokenSequence],
    staging: StagingBuffer,
    check: Callable[[], None],
) -> BatchCapture:
    """Fill ``staging`` (pinned, for a CUDA target) with the states of ``sequences``.

    A sequence with a state that is not finite is left out, and named with layer and position.
    """
    ids = [torch.from_numpy(sequence.input_ids).long() for sequence in sequences]
    states = capture.hidden_states(ids, check)
    dropped: list[DroppedRow] = []
    kept = tuple(sequences)
    if not _all_finite(states):
        parts = torch.split(states, [len(sequence.input_ids) for sequence in sequences])
        faults = [_first_fault(part, capture.layer_ids) for part in parts]
        dropped = [
            DroppedRow(row_id=sequence.row_id, reason="non_finite", detail=fault)
            for sequence, fault in zip(sequences, faults, strict=True)
            if fault
        ]
        kept = tuple(s for s, fault in zip(sequences, faults, strict=True) if not fault)
        whole = [part for part, fault in zip(parts, faults, strict=True) if not fault]
        states = torch.cat([states[:0], *whole])
    staging.fill(states)
    return BatchCapture(num_tokens=len(states), kept=kept, dropped=tuple(dropped))


def _all_finite(states_TKH: torch.Tensor) -> bool:
    """NaN and infinity both show in the extremes, which take no memory beside the states."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(states_TKH))).all())


def _first_fault(states_TKH: torch.Tensor, layer_ids: Sequence[int]) -> str:
    faults = (~torch.isfinite(states_TKH)).any(-1).T.nonzero()  # by layer, then position
    if not len(faults):
        return ""
    layer, position = faults[0].tolist()
    name = f"layer {layer_ids[layer]}" if layer < len(layer_ids) else "the final norm"
    return f"{name}, position {position}"
