"""``train``: a cache becomes a drafter."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dflash_cache.cache import Cache, writer_lock
from dflash_cache.config import TrainConfig
from dflash_cache.drafter.export import CONFIG, WEIGHTS, export_drafter, load_training
from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.errors import DataError
from dflash_cache.pipeline import Pipeline, StageStatistics
from dflash_cache.run_files import EXPORT, HELD_OUT
from dflash_cache.train import (
    ALONE,
    CHECKPOINTS,
    CheckpointStore,
    DrafterStep,
    Ranks,
    SegmentSource,
    SelectedStates,
    Trainer,
    TrainingOrder,
    TrainingState,
    as_tensor,
    held_out_rows,
    joined_ranks,
    measure_held_out,
    prefetch,
    prepare_ahead,
    require_tracker,
    training_done,
)

from .critical import stages_and_channels
from .devices import single_device, training_device
from .held_out import NotingSource
from .outcome import keep_outcome
from .progress import OnProgress, ignore
from .recipe import choose_columns, drafter_config
from .record import claim_run, identity_of, require_same_run
from .start import starting_drafter
from .training_progress import TrainingProgress
from .waiting import TRAINING_STAGES, waiting

Found = tuple[Path, TrainingState]

OnPhase = Callable[[Literal["measure", "end"]], None]


def train(config: TrainConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Train from a finished cache. An unfinished run in ``config.out`` is resumed.

    Under torchrun every process calls this, and all get the same report; the first one writes.

    Returns the report: steps, tokens, loss_first, loss_last, block_acceptance_length,
    slot_accuracy, wall_s, waiting_share, slow_stage, critical_stage, stages, channels, export.
    """
    began = time.perf_counter()
    config = replace(config, device=training_device(config.device))
    with joined_ranks(config.device) as ranks:
        cache = Cache.open(config.cache)
        cache.require_complete()
        with writer_lock(config.out, "--out") if ranks.first else nullcontext():
            run = TrainingRun(config, cache, ranks)
            with Pipeline("train") as pipeline:
                run.spawn(pipeline, cache, on_progress)
                pipeline.start()
    report = run.report(pipeline.statistics, time.perf_counter() - began)
    if ranks.first:
        keep_outcome(config.out, {"train": report}, cache)
    return report


class TrainingRun:
    """One run: the drafter, its order of data and where it is written.

    Whoever makes one holds ``writer_lock`` of ``config.out``.
    """

    def __init__(self, config: TrainConfig, cache: Cache, ranks: Ranks = ALONE) -> None:
        self.config = config = replace(config, device=single_device(config.device))
        self._cache = cache
        self._ranks = ranks
        plan = cache.plan
        row_ids = np.concatenate([segment.row_ids for segment in plan])
        self._num_rows = len(row_ids)
        self.held_out = held_out_rows(row_ids, config.holdout)
        self._order = TrainingOrder(
            plan, self.held_out, seed=config.seed, window_segments=config.shuffle_segments
        )
        self._held_out_segments = [
            (segment.index, rows)
            for segment in plan
            if len(rows := np.intersect1d(segment.row_ids, self.held_out))
        ]
        self._num_steps = config.steps or self._order.num_steps(
            epochs=config.epochs, batch_size=config.batch_size, grad_accum=config.grad_accum
        )
        require_tracker(config)
        self._columns = choose_columns(config, cache.spec)
        store = CheckpointStore(config.out / CHECKPOINTS, config.keep, keep_best=config.keep_best)
        found, self._held_out_figures = self._look_up(store)
        self.state = found[1] if found else None
        self._trainer = None if self._held_out_figures else self._make_trainer(store, found)

    def _look_up(self, store: CheckpointStore) -> tuple[Found | None, dict[str, Any]]:
        """Where the run stands, and its held-out figures if nothing is left to do.

        The first rank looks, and all go by what it finds.
        """
        found, figures = None, dict[str, Any]()
        if self._ranks.first:
            require_same_run(self.config, self._cache.spec)
            found = store.newest()
            if found and training_done(found[1], self.config, self._num_steps):
                figures = _exported_figures(self.config.out / EXPORT, found[1].step)
        return self._ranks.all((found, figures))[0]

    def _make_trainer(self, store: CheckpointStore, found: Found | None) -> Trainer:
        config, parts = self.config, self._cache.target
        embedding = as_tensor(parts.embedding)
        head = embedding if parts.head is None else as_tensor(parts.head)
        shape = drafter_config(config, self._cache.spec, parts)
        drafter = starting_drafter(config, shape)
        step = DrafterStep(drafter, embedding, head, config, self._num_steps, self._ranks)
        self._record = {
            **identity_of(config, self._cache.spec),
            "num_rows": self._num_rows,
            "held_out_rows": self.held_out.tolist(),
            "target_architectures": parts.config.get("architectures") or [],
        }
        if self._ranks.first:  # last: settings that fail must not claim the folder
            claim_run(config, self._record | {"drafter": shape.to_json("float32")})
        return Trainer(step, config, self._num_steps, store, found)

    def needs(self) -> Iterator[int]:
        """The segments that will be read, in order; a few more if extraction drops rows."""
        config, trainer = self.config, self._trainer
        if trainer is None:
            return
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
        """Add phase two's stages, the training loop among them; none if nothing is left to do.

        ``on_phase`` is told when only held-out rows will be read, and when nothing will.
        """
        trainer, config = self._trainer, self.config
        if trainer is None:
            on_phase("end")
            return
        if self._columns is not None:
            source = SelectedStates(source, self._columns)
        batches = None
        if not trainer.done:
            step, position = trainer.step, trainer.state.position
            packed = prefetch(pipeline, source, self._order, position, config, self._ranks)
            batches = prepare_ahead(pipeline, packed, step.prepare, step.device)

        def measure() -> BlockAccuracy:
            return self._measure(trainer.step, source, pipeline.check)

        progress = self._progress(pipeline, on_progress)

        def work() -> None:
            progress.begin(trainer.state)
            if batches is not None:
                trainer.run(batches, progress.step, measure)
                batches.abort()
            on_phase("measure")
            noting = NotingSource(source)
            self._finish(trainer, self._measure(trainer.step, noting, pipeline.check), noting)
            progress.end(trainer.state)
            on_phase("end")

        pipeline.spawn("train", work)

    def _progress(self, pipeline: Pipeline, on_progress: OnProgress) -> TrainingProgress:
        shown = on_progress if self._ranks.first else ignore
        # Tokens are counted over all ranks.
        alone = self._ranks.size == 1
        device = self.config.device if alone else f"{self._ranks.size} processes"
        return TrainingProgress(pipeline, device, self._num_steps, shown)

    def _measure(
        self, step: DrafterStep, source: SegmentSource, check: Callable[[], None]
    ) -> BlockAccuracy:
        """Accuracy on the held-out rows, shared out over the ranks by segment."""
        ranks, config = self._ranks, self.config
        mine = self._held_out_segments[ranks.rank :: ranks.size]
        accuracy = measure_held_out(step, source, mine, config.batch_size, config.anchors, check)
        ranks.sum_accuracy(accuracy)
        return accuracy

    def _finish(self, trainer: Trainer, accuracy: BlockAccuracy, noting: NotingSource) -> None:
        """Note the figures of the held-out rows and export, once training is done."""
        self.state = trainer.state
        figures = (round(accuracy.block_acceptance_length, 6), accuracy.slot_accuracy)
        self._held_out_figures = dict(zip(HELD_OUT, figures, strict=True))
        contents = self._ranks.all(noting.contents)
        training = {
            **self._record,
            "held_out_content": [asdict(row) for rows in contents for row in rows],
            "steps": trainer.state.step,
            **self._held_out_figures,
        }
        if self._ranks.first:
            export_drafter(trainer.step.drafter, self.config.out / EXPORT, training)

    def report(self, statistics: Mapping[str, StageStatistics], wall_s: float) -> dict[str, Any]:
        """``statistics`` are of all stages that ran, those of an extraction among them."""
        state = self.state
        assert state is not None
        return {
            "steps": state.step,
            "tokens": state.num_tokens,
            "loss_first": round(state.loss_first, 6),
            "loss_last": round(state.loss_last, 6),
            **self._held_out_figures,
            "wall_s": round(wall_s, 3),
            **waiting(statistics),
            **stages_and_channels(
                {name: statistics[name] for name in statistics if name in TRAINING_STAGES}
            ),
            "export": str(self.config.out / EXPORT),
        }


def _exported_figures(folder: Path, step: int) -> dict[str, Any]:
    """The held-out figures of a whole export of the weights after ``step``; else empty."""
    try:
        training = load_training(folder)
    except DataError:  # cut or altered: it is written again
        return {}
    whole = all((folder / name).is_file() for name in (WEIGHTS, CONFIG))
    if not whole or training.get("steps") != step or not training.keys() >= {*HELD_OUT}:
        return {}
    return {name: training[name] for name in HELD_OUT}
