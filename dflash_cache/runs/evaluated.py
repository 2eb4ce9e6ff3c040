"""What is kept of an evaluation: a file beside the run, and figures in the drafter's own card."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_cache.cache import require_file_place, write_atomically
from dflash_cache.config import EvaluateConfig
from dflash_cache.drafter.export import described, load_training
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.run_files import EVALUATION, RUN
from dflash_cache.settings import to_json
from dflash_cache.shapes import ANY, NUMBER, OrNull, misfit

from .prompts import DrafterFolder

_PIECE = {"id": int, "text?": str, "bytes?": str}
_BLOCK = {"drafts": [_PIECE], "accepted": int, "target_token": OrNull(_PIECE)}
_DRAFTER = {
    "acceptance_length": NUMBER,
    "speedup": NUMBER,
    "lossless": OrNull(NUMBER),
    "tokens?": int,
    "steps?": OrNull(int),
    "mismatches?": [{"prompt": int, "position": int, "gap": NUMBER}],
    "by_category?": {ANY: {"acceptance_length": NUMBER, "prompts": int, "tokens": int}},
    "untrained?": {"acceptance_length": NUMBER},
    "examples?": [
        {
            "prompt": int,
            "category?": str,
            "prompt_end": [_PIECE],
            "first_token": _PIECE,
            "blocks": [_BLOCK],
            "num_blocks": int,
        }
    ],
}
_EVALUATION = {
    "config": {"drafter": [str], "new_tokens": int, "dtype": str, "device": str},
    "measured?": str,
    "report": {
        "prompts": int,
        "held_out": bool,
        "temperature": NUMBER,
        "prompt_lookup": {"acceptance_length": NUMBER, "speedup": NUMBER},
        "drafters?": {ANY: _DRAFTER},
    },
}
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
    if config.out and out.is_file() and _fault(_content(out)):
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
    own = _file_of_run(config.drafter)
    if own is None or own.resolve() != out.resolve():
        return
    # Meanwhile another drafter may have taken its place, which these figures are not of.
    if drafter.training and load_training(drafter.folder) == drafter.training:
        training = {**drafter.training, "evaluation": _figures(report)}
        name = drafter.folder.absolute().name
        for file, text in described(drafter.folder, training, name).items():
            write_atomically(drafter.folder / file, text.encode())


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
    run = drafters[0].absolute().parent
    return run / EVALUATION if len(drafters) == 1 and (run / RUN).is_file() else None


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _fault(saved: Any) -> str | None:
    """What of ``saved`` is not as an evaluation has it."""
    fault = misfit(saved, _EVALUATION)
    if fault is None and not saved["report"].get("drafters"):
        fault = misfit(saved["report"], _DRAFTER, "it.report")
    return fault
