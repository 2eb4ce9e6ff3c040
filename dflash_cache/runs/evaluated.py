"""What is kept of an evaluation: a file beside the run, and figures in the drafter's own card."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_cache.cache import write_atomically
from dflash_cache.config import EvaluateConfig
from dflash_cache.drafter.export import describe_drafter
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.run_files import EVALUATION, RUN
from dflash_cache.settings import require_file_place, to_json

from . import shapes
from .prompts import DrafterFolder

# These go with the drafter: no text of the data, and no paths.
FIGURES = (
    "acceptance_length", "lossless", "speedup", "tokens", "prompts", "held_out", "temperature",
    "prompt_lookup",
)  # fmt: skip


def evaluation_file(config: EvaluateConfig) -> Path | None:
    """Where the report is kept: as told, else in the run folder of the only drafter."""
    out = config.out or _file_of_run(config.drafter)
    if out is None:
        return None
    if out.is_file() and _fault(_content(out)):
        raise ConfigError(f"--out {out} exists and is no evaluation; name another file")
    require_file_place("--out", out)
    return out


def keep_evaluation(
    out: Path, config: EvaluateConfig, report: Mapping[str, Any], drafter: DrafterFolder
) -> None:
    """Write ``report`` to ``out``; in the run's own file it goes into the drafter's card too."""
    measured = datetime.now(UTC).isoformat(timespec="seconds")
    saved = {"config": json.loads(to_json(config)), "measured": measured, "report": report}
    write_atomically(out, (json.dumps(saved, indent=1) + "\n").encode())
    if out == _file_of_run(config.drafter) and drafter.training:
        training = {**drafter.training, "evaluation": _figures(report)}
        describe_drafter(drafter.folder, training, name=drafter.folder.name)


def load_evaluation(run: Path) -> dict[str, Any]:
    """{config, measured, report} of the run's last evaluation, or nothing.

    ``measured`` (a time, ISO 8601) was not always kept. ``DataError`` if the file is damaged.
    """
    path = run / EVALUATION
    if not path.is_file():
        return {}
    saved = _content(path)
    if fault := _fault(saved):
        raise DataError(f"{path} is damaged: {fault}. Remove it, and measure again with evaluate")
    return dict(saved)


def evaluated_figures(run: Path, steps: int) -> dict[str, Any] | None:
    """What the run's last evaluation says of the drafter after ``steps``, if it was of that one."""
    report = load_evaluation(run).get("report", {})
    return _figures(report) if report.get("steps") == steps else None


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in FIGURES if name in report}


def _file_of_run(drafters: tuple[Path, ...]) -> Path | None:
    run = drafters[0].parent
    return run / EVALUATION if len(drafters) == 1 and (run / RUN).is_file() else None


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _fault(saved: Any) -> str | None:
    """What of ``saved`` is not as an evaluation has it."""
    fault = shapes.misfit(saved, shapes.EVALUATION)
    if fault is None and not saved["report"].get("drafters"):
        fault = shapes.misfit(saved["report"], shapes.DRAFTER, "it.report")
    return fault
