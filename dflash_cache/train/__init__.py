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
from .checkpoint import CHECKPOINTS, CheckpointStore, TrainingState, load_checkpoint
from .held_out import measure_held_out
from .order import Position, TrainingOrder, held_out_rows
from .ranks import (
    ALONE,
    Ranks,
    is_first_rank,
    joined_ranks,
    local_rank,
    num_local_ranks,
    num_ranks,
    require_one_rank,
)
from .selection import SelectedStates
from .step import DrafterStep, StepResult
from .trackers import require_tracker
from .trainer import Trainer, training_done

__all__ = [
    "ALONE",
    "CHECKPOINTS",
    "CheckpointStore",
    "DrafterStep",
    "LiveSource",
    "Position",
    "Ranks",
    "SegmentSource",
    "SelectedStates",
    "StepResult",
    "Trainer",
    "TrainingOrder",
    "TrainingState",
    "as_tensor",
    "held_out_rows",
    "is_first_rank",
    "joined_ranks",
    "load_checkpoint",
    "local_rank",
    "measure_held_out",
    "num_local_ranks",
    "num_ranks",
    "pack",
    "prefetch",
    "prepare_ahead",
    "require_one_rank",
    "require_tracker",
    "training_done",
    "whole_segment",
]
