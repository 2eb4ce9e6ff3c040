"""Charts as SVG in the page's own colours: matplotlib draws, the page's style sheet colours.

matplotlib wants colours that it knows. So each role has a colour that stands for it, which the
drawing's text then has replaced by the role's CSS variable.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

WIDTH, HEIGHT = 4.6, 2.5  # inches of 72 CSS pixels: as wide as a telephone
BAR_HEIGHT = 0.28  # of a stage
MOST_POINTS = 400  # to a line
ROLES = ("text", "grid", "line-1", "line-2", "line-3", "line-4", "line-5", "busy", "starved",
         "blocked")  # fmt: skip
COLOURS = {role: f"#0102{number:02x}" for number, role in enumerate(ROLES, start=16)}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "",  # the same drawing, the same text
    "font.size": 11,
    "text.color": COLOURS["text"],
    "axes.labelcolor": COLOURS["text"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["text"],
    "ytick.labelcolor": COLOURS["text"],
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A line of a chart, or single points with ``points``."""

    name: str
    steps: Steps
    values: Floats
    points: bool = False


def line_chart(
    name: str, series: Sequence[Series], *, shares: bool = False, top: float | None = None
) -> str:
    """Figures over steps; ``shares`` as per cents from 0 up to ``top``, or the largest."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(HEIGHT)
        for number, each in enumerate(series, start=1):
            steps, values = thinned(each.steps, each.values)
            single = each.points or len(steps) == 1
            axes.plot(
                steps,
                values,
                color=COLOURS[f"line-{number}"],
                label=each.name,
                marker="o" if single else "",
                markersize=5,
                linestyle="" if each.points else "-",
            )
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
        if shares:
            _as_shares(axes, top)
        if len(series) > 1:
            _legend(axes, len(series))
        return _svg(figure, name)


def slot_chart(name: str, accuracies: Sequence[float]) -> str:
    """A bar a slot, from slot 1."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(HEIGHT)
        slots = range(1, len(accuracies) + 1)
        axes.bar(slots, accuracies, color=COLOURS["line-1"], width=0.7)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("slot")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        _as_shares(axes, None)
        return _svg(figure, name)


def stages_chart(name: str, stages: Mapping[str, Mapping[str, float]]) -> str:
    """Of each stage's time the shares busy, starved and blocked, as one bar."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(1.0 + BAR_HEIGHT * len(stages))
        left = np.zeros(len(stages))
        for state in ("busy", "starved", "blocked"):
            width = np.array([state_shares(seconds)[state] for seconds in stages.values()])
            axes.barh(list(stages), width, left=left, color=COLOURS[state], label=state, height=0.7)
            left += width
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        _legend(axes, 3)
        return _svg(figure, name)


def state_shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """busy, starved and blocked as shares of a stage's time; all 0 of one that never ran."""
    states = ("busy", "starved", "blocked")
    alive_s = sum(seconds[f"{state}_s"] for state in states) or 1.0
    return {state: seconds[f"{state}_s"] / alive_s for state in states}


def thinned(steps: Steps, values: Floats) -> tuple[Steps, Floats]:
    """At most ``MOST_POINTS`` points: each the mean of its neighbours, at the last one's step."""
    if len(steps) <= MOST_POINTS:
        return steps, values
    groups = np.array_split(np.arange(len(steps)), MOST_POINTS)
    means = np.array([values[group].mean() for group in groups])
    return steps[[group[-1] for group in groups]], means


def shown(value: float) -> str:
    """A figure as it stands at an axis: 12k, 1.5, 0.0006."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):,.4g}{unit}"
    return f"{value:,.4g}"


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    return figure, axes


def _as_shares(axes: Axes, top: float | None) -> None:
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def _svg(figure: Figure, name: str) -> str:
    """The drawing for a page that has others: its ids begin with ``name``."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    text = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    return text.replace("<svg ", '<svg role="img" ', 1)
