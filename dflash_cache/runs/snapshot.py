"""What a command is doing at one moment, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from .progress import ChannelState


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSnapshot:
    """Shares of its threads' time over the last seconds; they add up to 1 unless none ran."""

    name: str
    busy: float
    starved: float  # without input
    blocked: float  # without room
    channels: Mapping[str, ChannelState]  # that it takes from; numbered ones of a name as one


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSnapshot:
    """A phase: how far it is, and its figures by the names of the JSON reports."""

    phase: str
    done: int
    total: int
    unit: str
    over: bool
    left_s: float | None  # until done is total; None: not known yet, or nothing is left
    figures: Mapping[str, float]
    device_tokens_per_s: Mapping[str, float]
    stages: tuple[StageSnapshot, ...]  # empty once it is over


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    elapsed_s: float  # since the command began to be watched
    phases: tuple[PhaseSnapshot, ...]  # that have begun
