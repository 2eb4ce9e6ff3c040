"""``train``: a cache becomes a drafter."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dflash_cache.cache import (
    Cache,
    CacheSpec,
    require_same_identity,
    write_atomically,
    writer_lock,
)
from dflash_cache.config import TrainConfig
from dflash_cache.drafter.export import export_drafter
from dflash_cache.errors import CacheMismatchError, DataError
from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.settings import flag_of, to_json
from dflash_cache.train import (
    DrafterStep,
    SegmentSource,
    SelectedStates,
    StepResult,
    Trainer,
    TrainingOrder,
    TrainingState,
    as_tensor,
    held_out_rows,
    measure_held_out,
    prefetch,
    prepare_ahead,
)

from .devices import single_device
from .held_out import NotingSource
from .progress import OnProgress, Progress, ignore
from .recipe import choose_columns, drafter_config
from .start import starting_drafter, starting_identity
from .waiting import TRAINING_STAGES, waiting

EXPORT, RUN = "export", "run.json"

OnPhase = Callable[[Literal["measure", "end"]], None]


def train(config: TrainConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Train from a finished cache. An unfinished run in ``config.out`` is resumed.

    Returns the report: steps, tokens, loss_first, loss_last, block_acceptance_length,
    slot_accuracy, wall_s, waiting_share, slow_stage, stages, export.
    """
    began = time.perf_counter()
    cache = Cache.open(config.cache)
    cache.require_complete()
    with writer_lock(config.out, "--out"):
        run = TrainingRun(config, cache)
        with Pipeline("train") as pipeline:
            run.spawn(pipeline, cache, on_progress)
            pipeline.start()
    return run.report(pipeline.statistics, time.perf_counter() - began)


class TrainingRun:
    """One run: the drafter, its order of data and where it is written.

    Whoever makes one holds ``writer_lock`` of ``config.out``.
    """

    def __init__(self, config: TrainConfig, cache: Cache) -> None:
        self.config = config = replace(config, device=single_device(config.device))
        self._cache = cache
        plan = cache.plan
        row_ids = np.concatenate([segment.row_ids for segment in plan])
        self.held_out = held_out_rows(row_ids, config.holdout)
        self._order = TrainingOrder(
            plan, self.held_out, seed=config.seed, window_segments=config.shuffle_segments
        )
        self._held_out_segments = [
            (segment.index, rows)
            for segment in plan
            if len(rows := np.intersect1d(segment.row_ids, self.held_out))
        ]
        num_steps = config.steps or self._order.num_steps(
            epochs=config.epochs, batch_size=config.batch_size, grad_accum=config.grad_accum
        )
        require_same_run(config, cache.spec)
        parts = cache.target
        self._columns = choose_columns(config, cache.spec)
        self.drafter_config = drafter_config(config, cache.spec, parts)
        embedding = as_tensor(parts.embedding)
        head = embedding if parts.head is None else as_tensor(parts.head)
        drafter = starting_drafter(config, self.drafter_config)
        step = DrafterStep(drafter, embedding, head, config, num_steps)
        self._record = {
            **_identity(config, cache.spec),
            "num_rows": len(row_ids),
            "held_out_rows": self.held_out.tolist(),
            "target_architectures": parts.config.get("architectures") or [],
        }
        # Last: settings that fail must not claim the folder.
        claim_run(config, self._record | {"drafter": self.drafter_config.to_json("float32")})
        self._trainer = Trainer(step, config, num_steps)
        self._held_out_figures: dict[str, Any] = {}

    def needs(self) -> Iterator[int]:
        """The segments that will be read, in order; a few more if extraction drops rows."""
        config, trainer = self.config, self._trainer
        epoch_steps = self._order.num_steps(
            epochs=1, batch_size=config.batch_size, grad_accum=config.grad_accum
        )
        epochs, steps = divmod(trainer.num_steps, epoch_steps)
        end = (epochs, steps * config.batch_size * config.grad_accum)
        if not trainer.done:
            windows = self._order.windows(trainer.state.position)
            for window in takewhile(lambda each: (each.epoch, each.first_row) < end, windows):
                yield from window.segments
        yield from (index for index, _ in self._held_out_segments)

    def spawn(
        self,
        pipeline: Pipeline,
        source: SegmentSource,
        on_progress: OnProgress,
        on_phase: OnPhase = lambda _phase: None,
    ) -> None:
        """Add phase two's stages, the training loop among them, to ``pipeline``.

        ``on_phase`` is told when only held-out rows will be read, and when nothing will.
        """
        trainer, config = self._trainer, self.config
        if self._columns is not None:
            source = SelectedStates(source, self._columns)
        batches = None
        if not trainer.done:
            step = trainer.step
            packed = prefetch(pipeline, source, self._order, trainer.state.position, config)
            batches = prepare_ahead(pipeline, packed, step.prepare, step.device)

        def work() -> None:
            if batches is not None:
                trainer.run(batches, self._progress(on_progress))
                batches.abort()
            on_phase("measure")
            self._finish(source, pipeline.check)
            on_phase("end")

        pipeline.spawn("train", work)

    def _progress(self, on_progress: OnProgress) -> Callable[[TrainingState, StepResult], None]:
        def on_step(state: TrainingState, result: StepResult) -> None:
            figures = {
                "loss": f"{result.loss:.3f}",
                "block acceptance": f"{result.block_acceptance_length:.2f}",
            }
            on_progress(
                Progress(
                    phase="train",
                    done=state.step,
                    total=self._trainer.num_steps,
                    unit="steps",
                    figures=figures,
                )
            )

        return on_step

    def _finish(self, source: SegmentSource, check: Callable[[], None]) -> None:
        """Measure on the held-out rows and export, once training is done."""
        config = self.config
        noting = NotingSource(source)
        accuracy = measure_held_out(
            self._trainer.step,
            noting,
            self._held_out_segments,
            config.batch_size,
            config.anchors,
            check,
        )
        self._held_out_figures = {
            "block_acceptance_length": round(accuracy.block_acceptance_length, 6),
            "slot_accuracy": accuracy.slot_accuracy,
        }
        training = {
            **self._record,
            "held_out_content": [asdict(each) for each in noting.contents],
            "steps": self._trainer.state.step,
            **self._held_out_figures,
        }
        export_drafter(self._trainer.step.drafter, config.out / EXPORT, training)

    def report(self, statistics: Mapping[str, StageStatistics], wall_s: float) -> dict[str, Any]:
        """``statistics`` are of all stages that ran, those of an extraction among them."""
        state = self._trainer.state
        return {
            "steps": state.step,
            "tokens": state.num_tokens,
            "loss_first": round(state.loss_first, 6),
            "loss_last": round(state.loss_last, 6),
            **self._held_out_figures,
            "wall_s": round(wall_s, 3),
            **waiting(statistics),
            "stages": {
                name: stage.as_dict()
                for name, stage in statistics.items()
                if name in TRAINING_STAGES
            },
            "export": str(self.config.out / EXPORT),
        }


# What may change between two starts of one run without changing its weights.
_FREE = {
    "cache", "out", "device", "init_from", "save_every", "keep", "log_every", "prefetch_readers",
    "prefetch_bytes", "checkpoint_activations",
}  # fmt: skip


def _resumable_settings(config: TrainConfig) -> dict[str, Any]:
    """As they are read back from JSON, which has no tuples."""
    settings = json.loads(to_json(config))
    kept = {name: value for name, value in settings.items() if name not in _FREE}
    return kept | starting_identity(config)


def _identity(config: TrainConfig, spec: CacheSpec) -> dict[str, Any]:
    return {"cache": spec.as_dict(), "settings": _resumable_settings(config)}


def require_same_run(config: TrainConfig, spec: CacheSpec) -> None:
    """``CacheMismatchError`` if ``config.out`` holds a run from another cache or other settings."""
    path = config.out / RUN
    if path.exists():
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{path} is damaged ({error}); start anew with another --out"
            ) from error
        _require_same_run(path, record, spec, _resumable_settings(config))


def claim_run(config: TrainConfig, record: Mapping[str, Any]) -> None:
    """Note what the run in ``config.out`` is made from."""
    config.out.mkdir(parents=True, exist_ok=True)
    if not (config.out / RUN).exists():
        write_atomically(config.out / RUN, json.dumps(record, indent=1).encode())
    write_atomically(config.out / "train.json", to_json(config).encode())


def _require_same_run(
    path: Path, record: Mapping[str, Any], spec: CacheSpec, settings: Mapping[str, Any]
) -> None:
    remedy = "Use what the run was started with, or another --out"
    require_same_identity(
        spec,
        CacheSpec.from_dict(record["cache"]),
        what=f"{path}: the run was started from another cache",
        remedy=remedy,
    )
    found = record["settings"]
    differing = [
        f"{flag_of(name)} {value}, the run has {found.get(name)}"
        for name, value in settings.items()
        if value != found.get(name)
    ]
    if differing:
        what = f"{path}: the run was started with other settings"
        raise CacheMismatchError(f"{what}:\n  " + "\n  ".join(differing) + f"\n{remedy}")
