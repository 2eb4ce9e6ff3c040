"""How far a run has come, for whoever wants to show it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_cache.pipeline import Pipeline, StageStatistics

Phase = Literal[  # as they follow in one command
    "regenerate", "tokenize", "merge", "verify", "extract", "train", "evaluate"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelState:
    """What a channel holds at one moment."""

    held: int
    capacity: int  # in its own unit: items, or bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A look into a phase that goes on: sums since it began, and what holds now."""

    stages: Mapping[str, StageStatistics]
    channels: Mapping[str, ChannelState]
    device_tokens: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step of one phase. Who keeps it keeps, by ``sample``, the pipeline and its buffers."""

    phase: Phase
    done: int
    total: int
    unit: str
    figures: Mapping[str, float] = field(default_factory=dict)
    sample: Callable[[], Sample] | None = None  # at any later moment, from any thread
    over: bool = False  # the phase has ended, with less than its total perhaps


OnProgress = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Show nothing."""


def segment_progress(phase: Phase, on_progress: OnProgress) -> Callable[[int, int], None]:
    """Tell of a phase that goes through segments: how many are done, and of how many."""

    def tell(done: int, total: int) -> None:
        over = done == total
        on_progress(Progress(phase=phase, done=done, total=total, unit="segments", over=over))

    return tell


def sample_of(
    pipeline: Pipeline, device_tokens: Mapping[str, int], is_of_phase: Callable[[str], bool]
) -> Sample:
    """Of those stages, by name, that are of the phase; without waiting for any of them."""
    statistics = pipeline.statistics_so_far()
    return Sample(
        stages={stage: each for stage, each in statistics.items() if is_of_phase(stage)},
        channels={
            channel.name: ChannelState(held=channel.held, capacity=channel.capacity)
            for channel in list(pipeline.channels)
        },
        device_tokens=device_tokens,
    )
