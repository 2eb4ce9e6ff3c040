"""Phase two: order, prefetch, the optimizer step, checkpoints."""

from .batches import (
    LiveSource,
    SegmentSource,
    as_tensor,
    pack,
    prefetch,
    prepare_ahead,
    whole_segment,
)
from .checkpoint import CHECKPOINTS, TrainingState, load_checkpoint
from .held_out import measure_held_out
from .order import Position, TrainingOrder, held_out_rows
from .selection import SelectedStates
from .step import DrafterStep, StepResult
from .trainer import Trainer

__all__ = [
    "CHECKPOINTS",
    "DrafterStep",
    "LiveSource",
    "Position",
    "SegmentSource",
    "SelectedStates",
    "StepResult",
    "Trainer",
    "TrainingOrder",
    "TrainingState",
    "as_tensor",
    "held_out_rows",
    "load_checkpoint",
    "measure_held_out",
    "pack",
    "prefetch",
    "prepare_ahead",
    "whole_segment",
]
