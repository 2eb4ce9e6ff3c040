"""The page's tables, in a reader's words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_cache.runs.shown import shown_bytes, shown_time
from dflash_cache.settings import flag_of

from .charts import state_shares
from .run import Run

Row = Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """``headings`` are empty for a table of names and values."""

    title: str
    rows: Sequence[Row]
    headings: Row = ()
    note: str = ""


def stages_table(stages: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [
        (name, *(f"{seconds[f'{state}_s']:,.1f} s, {share:.0%}" for state, share in shares.items()))
        for name, seconds in stages.items()
        if (shares := state_shares(seconds))
    ]
    headings = ("stage", "busy", "starved (no input)", "blocked (no room)")
    return Table(title="Seconds and shares", rows=rows, headings=headings)


def cache_table(run: Run) -> Table:
    spec, size = run.spec, run.outcome.get("cache", {})
    rows = [
        ("target", spec.target),
        ("datasets", ", ".join(part.dataset for part in spec.parts)),
        ("rows", f"{run.record['num_rows']:,}, {len(run.record['held_out_rows']):,} held out"),
        ("layers", f"{', '.join(map(str, spec.target_layer_ids))} of {spec.num_target_layers}"),
        ("hidden size", f"{spec.hidden_size:,}"),
        ("dtype and codec", f"{spec.dtype}, {spec.codec}"),
    ]
    if size:
        raw, stored = size["bytes_raw"], size["bytes_stored"]
        ratio = f", {stored / raw:.1%} of {shown_bytes(raw)}" if raw else ""
        rows += [
            ("folder", size["address"]),
            ("size", f"{shown_bytes(stored)}{ratio}"),
            ("tokens", f"{size['num_tokens']:,} in {size['num_sequences']:,} sequences"),
            ("segments", f"{size['segments']:,}"),
        ]
    note = "" if size else "Its size is known once a start of the run has come to its end."
    return Table(title="Cache", rows=rows, note=note)


def evaluation_tables(evaluation: Mapping[str, Any]) -> Iterator[Table]:
    """Of decoded prompts; none before an evaluation."""
    if not evaluation:
        return
    report, config = evaluation["report"], evaluation["config"]
    drafters = drafters_of(evaluation)
    ways = [("trained drafter", own) for own in drafters.values()]
    if len(drafters) > 1:
        ways = list(drafters.items())
    ways += [("untrained drafter", own["untrained"]) for _, own in ways if "untrained" in own]
    ways.append(("prompt lookup", report["prompt_lookup"]))
    note = (
        f"{report['prompts']:,} prompts, {'held out' if report['held_out'] else 'not held out'}, "
        f"at most {config['new_tokens']:,} new tokens each, temperature {report['temperature']}, "
        f"{config['dtype']} on {config['device']}{_when(evaluation)}."
    )
    yield Table(
        title="Decoding",
        rows=[_way(name, own) for name, own in ways],
        headings=("drafts by", "acceptance length", "lossless", "speed-up", "tokens"),
        note=note,
    )
    for name, own in drafters.items():
        suffix = f" of {name}" if len(drafters) > 1 else ""
        yield from _details(own, suffix)


def _when(evaluation: Mapping[str, Any]) -> str:
    """Of which step, and at what time; evaluations did not always keep them."""
    steps, measured = evaluation["report"].get("steps"), evaluation.get("measured")
    of = "" if steps is None else f", the drafter of step {steps:,}"
    return of + ("" if measured is None else f", {measured[:16].replace('T', ' ')} UTC")


def drafters_of(evaluation: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What is reported of each drafter, by its folder."""
    report, config = evaluation["report"], evaluation["config"]
    return report.get("drafters") or {", ".join(config["drafter"]): report}


def _way(name: str, own: Mapping[str, Any]) -> Row:
    return (
        name,
        f"{own['acceptance_length']:.2f}",
        "" if own.get("lossless") is None else f"{own['lossless']:.1%}",
        f"{own['speedup']:.2f}" if "speedup" in own else "",
        f"{own['tokens']:,}" if "tokens" in own else "",
    )


def _details(own: Mapping[str, Any], suffix: str) -> Iterator[Table]:
    if own.get("by_category"):
        yield Table(
            title=f"By category{suffix}",
            rows=[
                (
                    name,
                    f"{each['acceptance_length']:.2f}",
                    f"{each['prompts']}",
                    f"{each['tokens']:,}",
                )
                for name, each in own["by_category"].items()
            ],
            headings=("category", "acceptance length", "prompts", "tokens"),
        )
    if own.get("mismatches"):
        yield Table(
            title=f"Outputs that differ from the target's own{suffix}",
            rows=[
                (f"{each['prompt']}", f"{each['position']}", f"{each['gap']:.3g}")
                for each in own["mismatches"]
            ],
            headings=("prompt", "new token", "top-2 logit gap"),
            note="A gap next to zero is a tie that rounding broke; a wide one is a fault.",
        )


def settings_table(run: Run) -> Table:
    rows = [(flag_of(name)[2:], _setting(value)) for name, value in run.settings.items()]
    return Table(title="Settings of training", rows=rows)


def _setting(value: Any) -> str:
    if value in (None, [], ""):
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def key_figures(run: Run) -> list[tuple[str, str]]:
    """What a reader looks for first."""
    last = next((line for line in reversed(run.metrics) if "loss" in line), None)
    if last is None:
        return []
    first = next(line for line in run.metrics if "loss" in line)
    done = "" if run.training else " so far"
    figures = [
        ("steps", f"{last['step']:,}{done}"),
        ("tokens trained on", f"{last['tokens']:,}"),
        ("loss", f"{first['loss']:.3f} → {last['loss']:.3f}"),
    ]
    if "block_acceptance_length" in run.training:  # an export of another step has none
        held_out = run.training["block_acceptance_length"]
        figures.append(("block acceptance length, held out", f"{held_out:.2f}"))
    if "acceptance_length" in run.evaluation.get("report", {}):
        report = run.evaluation["report"]
        steps = report.get("steps")
        decoded = "decoded" if steps in (None, last["step"]) else f"decoded at step {steps:,}"
        figures.append((f"acceptance length, {decoded}", f"{report['acceptance_length']:.2f}"))
        figures.append((f"speed-up, {decoded}", f"{report['speedup']:.2f}"))
    if trained := run.outcome.get("train"):
        figures.append(("time waiting for data", f"{trained['waiting_share']:.1%}"))
        figures.append(("wall time of the last start", shown_time(trained["wall_s"])))
    return figures
