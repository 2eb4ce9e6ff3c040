"""``export``: a run's checkpoint becomes a drafter that other programs load."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_cache.config import ExportConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.export import export_drafter, load_training
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.run_files import EXPORT, HELD_OUT, METRICS, RUN
from dflash_cache.shapes import NUMBER, misfit
from dflash_cache.train import CHECKPOINTS, TrainingState, load_checkpoint

from .evaluated import evaluated_figures

_LOGGED = {"step": int, "loss": NUMBER, "block_acceptance_length": NUMBER}


def export(config: ExportConfig) -> dict[str, Any]:
    """Write a checkpoint of ``config.run`` to ``config.out`` and check what was written.

    Returns the report: export, format, dtype, step, parameters, bytes.
    """
    out, run = config.out.resolve(), config.run.resolve()
    if out == run or out.is_relative_to((run / CHECKPOINTS).resolve()):
        raise ConfigError(f"--out {config.out}: the run is there; name another folder")
    record = _run_record(config.run)
    state, weights = load_checkpoint(config.run / CHECKPOINTS, config.step)
    drafter = DFlashDrafter.fresh(DrafterConfig.from_json(record.pop("drafter")), seed=0)
    drafter.load_state_dict(weights)
    training = record | _figures(config.run, state)
    export_drafter(drafter, config.out, training, layout=config.format, dtype=config.dtype)
    return {
        "export": str(config.out),
        "format": config.format,
        "dtype": config.dtype,
        "step": state.step,
        "parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "bytes": sum(path.stat().st_size for path in config.out.iterdir()),
    }


def _run_record(run: Path) -> dict[str, Any]:
    """What the run was made from, as ``train`` noted it."""
    path = run / RUN
    if not path.is_file():
        raise ConfigError(f"{run} is no run: it has no {RUN}; give the --out folder of a train")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); train again with another --out") from error
    if "drafter" not in record:
        raise DataError(f"{path} does not say the drafter's shape; train again with another --out")
    return dict(record)


def _figures(run: Path, state: TrainingState) -> dict[str, Any]:
    """What is known of the drafter at ``state.step``, and no figure of another step."""
    figures: dict[str, Any] = {"steps": state.step}
    try:
        finished = load_training(run / EXPORT)
    except DataError:  # cut or altered: its figures are not known
        finished = {}
    if "held_out_content" in finished:  # the same rows at every step
        figures["held_out_content"] = finished["held_out_content"]
    if finished.get("steps") == state.step:
        figures |= {name: finished[name] for name in HELD_OUT if name in finished}
    if (evaluated := evaluated_figures(run, state.step)) is not None:
        figures["evaluation"] = evaluated
    if (batch := _logged(run / METRICS, state.step)) is not None:
        figures["training_batch"] = batch
    return figures


def _logged(path: Path, step: int) -> Mapping[str, Any] | None:
    """The line of ``metrics.jsonl`` for ``step``, if it was logged."""
    if not path.is_file():
        return None
    for line in path.read_bytes().splitlines():
        try:
            figures = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a run that was killed while it wrote
        # Other lines, of held-out rows, have no loss.
        if not misfit(figures, _LOGGED) and figures["step"] == step:
            return {name: figures[name] for name in ("loss", "block_acceptance_length")}
    return None
