"""How far a run has come, for whoever wants to show it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step of one phase."""

    phase: Literal["regenerate", "tokenize", "extract", "train", "evaluate"]
    done: int
    total: int
    unit: str
    figures: Mapping[str, str] = field(default_factory=dict)


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Show nothing."""
