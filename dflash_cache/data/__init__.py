"""Arrow rows to token sequences: the only package that imports datasets and pyarrow."""

from .content import find_rows
from .plan import plan_batches, plan_segments
from .rows import TokenRows
from .survey import Survey, survey

__all__ = ["Survey", "TokenRows", "find_rows", "plan_batches", "plan_segments", "survey"]
