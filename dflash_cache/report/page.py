"""``report``: a run's folder becomes one HTML page, which opens without a network."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np

from dflash_cache.cache import require_file_place, write_atomically
from dflash_cache.config import ReportConfig
from dflash_cache.errors import ConfigError
from dflash_cache.model_names import shown_model

from .run import Run

MOST_SLOTS = 5  # lines in one chart
PAGE = "report.html"
PAGE_SUFFIX = ".html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    svg: str
    note: str = ""


def report(config: ReportConfig) -> dict[str, Any]:
    """Write the page. ``ConfigError`` if ``config.run`` is no run, or a package is missing.

    Returns the report: page, bytes.
    """
    _require_packages()
    run = Run.load(config.run)
    page = (config.out or config.run / PAGE).absolute()
    require_file_place("--out", page)
    if page.exists() and page.resolve().suffix != PAGE_SUFFIX:
        raise ConfigError(f"--out {page} exists and is no page; name a {PAGE_SUFFIX} file")
    content = render(run).encode()
    write_atomically(page, content)
    return {"page": str(page), "bytes": len(content)}


def render(run: Run) -> str:
    """The page as text: the same for the same run."""
    from jinja2 import Environment, StrictUndefined

    from .examples import examples_of
    from .tables import (
        cache_table,
        evaluation_tables,
        key_figures,
        settings_table,
    )

    template = (files(__package__) / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        name=run.folder.absolute().name,
        target=shown_model(run.spec.target),
        unknown_extraction="extract" not in run.outcome,
        figures=key_figures(run),
        training=list(_training_charts(run)),
        phases=list(_phases(run)),
        cache=cache_table(run),
        evaluation=list(evaluation_tables(run.evaluation)),
        examples=list(examples_of(run.evaluation)),
        settings=settings_table(run),
    )


def _training_charts(run: Run) -> Iterator[Chart]:
    from .charts import Series, line_chart, slot_chart

    def series(label: str, name: str, *, points: bool = False) -> Series:
        steps, values = run.series(name)
        return Series(name=label, steps=steps, values=values, points=points)

    if not len(run.series("loss")[0]):
        return
    yield Chart(title="Loss", svg=line_chart("loss", [series("loss", "loss")]))
    accepted = [series("training rows", "block_acceptance_length")]
    held_out = series("held-out rows", "held_out_block_acceptance_length", points=True)
    accepted += [held_out] if len(held_out.steps) else []
    yield Chart(
        title="Block acceptance length",
        svg=line_chart("accepted", accepted),
        note="Teacher-forced: leading correct tokens of a block, and one.",
    )
    steps, accuracy = run.series("slot_accuracy")
    slots = _chosen_slots(accuracy.shape[1])
    lines = [
        Series(name=f"slot {slot}" if slot == 1 else f"{slot}", steps=steps, values=values)
        for slot, values in zip(slots, accuracy[:, np.array(slots) - 1].T, strict=True)
    ]
    yield Chart(title="Accuracy by slot", svg=line_chart("slots", lines, shares=True))
    if run.training.get("slot_accuracy"):
        svg = slot_chart("held-out", run.training["slot_accuracy"])
        yield Chart(title="Accuracy by slot, held-out rows at the end", svg=svg)
    yield Chart(title="Learning rate", svg=line_chart("rate", [series("rate", "lr")]))
    speed = line_chart("speed", [series("tokens", "tokens_per_s")])
    yield Chart(title="Throughput, tokens a second", svg=speed)
    waiting = line_chart("waiting", [series("waiting", "waiting_share")], shares=True, top=1.02)
    yield Chart(title="Share of each step's time waiting for data", svg=waiting)


def _chosen_slots(num_slots: int) -> list[int]:
    """The first and the last slot, and some between them."""
    chosen = np.linspace(1, num_slots, min(num_slots, MOST_SLOTS)).round().astype(int)
    return [int(slot) for slot in chosen]


def _phases(run: Run) -> Iterator[dict[str, Any]]:
    """Each phase's stages, as a chart and a table."""
    from .charts import stages_chart
    from .tables import stages_table

    for phase, title in (("extract", "Extraction"), ("train", "Training")):
        stages = run.outcome.get(phase, {}).get("stages")
        if stages:
            svg = stages_chart(f"stages-{phase}", stages)
            yield {"chart": Chart(title=title, svg=svg), "table": stages_table(stages)}


def _require_packages() -> None:
    for name in ("matplotlib", "jinja2"):
        if find_spec(name) is None:
            raise ConfigError(
                f"report: the package {name} is not installed; run "
                "pip install 'dflash-cache[report]'"
            )
