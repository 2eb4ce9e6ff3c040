"""Arrow rows to token sequences: the only package that imports datasets and pyarrow."""

from .content import find_rows
from .masked_text import masked_text
from .plan import plan_batches, plan_segments
from .rows import TokenRows, is_dataset
from .survey import Survey, survey
from .token_pieces import TokenPieces
from .token_tally import mask_warnings

__all__ = [
    "Survey",
    "TokenPieces",
    "TokenRows",
    "find_rows",
    "is_dataset",
    "mask_warnings",
    "masked_text",
    "plan_batches",
    "plan_segments",
    "survey",
]
