"""Snapshots in a reader's words: a view for a terminal, a line for a log."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dflash_cache.runs.progress import ChannelState
from dflash_cache.runs.shown import shown_bytes, shown_held, shown_time
from dflash_cache.runs.snapshot import PhaseSnapshot, Snapshot, StageSnapshot

_NAME_WIDTH = 12  # of the longest phase, and two spaces
_LEFT_WIDTH = 15
_BUSY_SHARE = 0.9


def snapshot_view(snapshot: Snapshot) -> RenderableType:
    """Phases with their figures, then the stages of those that go on."""
    stages = [stage for phase in snapshot.phases for stage in phase.stages]
    count_width = max((len(_count(phase)) for phase in snapshot.phases), default=0)
    parts: list[RenderableType] = []
    for phase in snapshot.phases:
        parts += _phase_view(phase, count_width)
    return Group(*parts, *([_stages_view(stages)] if stages else []))


def phase_line(phase: PhaseSnapshot) -> str:
    """``train: 10/40 steps  loss 5.596  1,234 tokens/s  1.5 min left``."""
    words = [*_words(phase), *([_left(phase)] if phase.left_s is not None else [])]
    return "  ".join([f"{phase.phase}: {_count(phase)}", *words])


def _phase_view(phase: PhaseSnapshot, count_width: int) -> list[RenderableType]:
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(width=_NAME_WIDTH - 2)
    line.add_column(ratio=1)
    line.add_column(width=count_width, justify="right", no_wrap=True)
    line.add_column(width=_LEFT_WIDTH - 2, no_wrap=True)
    bar = ProgressBar(total=max(1, phase.total), completed=phase.done)
    line.add_row(Text(phase.phase, style="bold"), bar, _count(phase), _left(phase))
    under = [", ".join(_words(phase)), _by_device(phase)]
    return [line, *(_indented(words) for words in under if words)]


def _indented(words: str) -> RenderableType:
    return Padding(Text(words, overflow="fold"), (0, 0, 0, _NAME_WIDTH))


def _count(phase: PhaseSnapshot) -> str:
    if phase.unit == "%":
        return f"{phase.done}%"
    return f"{phase.done:,}/{phase.total:,} {phase.unit}"


def _left(phase: PhaseSnapshot) -> str:
    if phase.over:
        return "done"
    return "" if phase.left_s is None else f"{shown_time(phase.left_s)} left"


def _words(phase: PhaseSnapshot) -> list[str]:
    """The figures, each with its unit."""
    figures = dict(phase.figures)
    if not figures.get("tokens_per_s"):  # too short, or nothing yet
        figures.pop("tokens_per_s", None)
    words = []
    if "rows" in figures and "rows_planned" in figures:
        words.append(f"{figures.pop('rows'):,}/{figures.pop('rows_planned'):,} rows")
    words += [_figure(name, value) for name, value in figures.items()]
    words += [
        f"waiting for data {stage.starved:.0%}" for stage in phase.stages if stage.name == "train"
    ]
    return words


def _figure(name: str, value: float) -> str:
    match name:
        case "loss":
            return f"loss {value:.3f}"
        case "block_acceptance_length":
            return f"block acceptance length {value:.2f}"
        case "tokens_per_s":
            return f"{value:,.0f} tokens/s"
        case "bytes_stored":
            return f"{shown_bytes(int(value))} stored"
        case "free_bytes":
            return f"{shown_bytes(int(value))} left on the disk"
        case "budget_free_bytes":
            return f"{shown_bytes(int(value))} left of --max-disk"
        case _:
            return f"{value:,} {name.replace('_', ' ')}"


def _by_device(phase: PhaseSnapshot) -> str:
    """Where there are several."""
    rates = phase.device_tokens_per_s
    if len(rates) < 2:
        return ""
    return "tokens/s of " + ", ".join(f"{device} {rate:,.0f}" for device, rate in rates.items())


def _stages_view(stages: list[StageSnapshot]) -> Table:
    """What each stage did lately, and how full the channels are that it takes from."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("stage", width=_NAME_WIDTH - 2, overflow="fold")
    for heading in ("busy", "starved", "blocked"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("takes from", overflow="fold")
    for stage in stages:
        shares = (f"{share:.0%}" for share in (stage.busy, stage.starved, stage.blocked))
        style = "bold" if stage.busy >= _BUSY_SHARE else ""
        table.add_row(stage.name, *shares, _channels(stage.channels), style=style)
    return table


def _channels(channels: Mapping[str, ChannelState]) -> str:
    return ", ".join(f"{name} {_fill(channel)}" for name, channel in channels.items())


def _fill(channel: ChannelState) -> str:
    held, most = (shown_held(each, channel.capacity) for each in (channel.held, channel.capacity))
    has_unit = " " in held
    return f"{held} of {most}" if has_unit else f"{held}/{most}"
