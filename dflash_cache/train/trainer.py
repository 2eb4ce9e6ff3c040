"""The training loop: batches in, weights, metrics and checkpoints out."""

import logging
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dflash_cache.config import TrainConfig
from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.errors import RankError, TrainingError
from dflash_cache.pipeline import Cancelled
from dflash_cache.types import DraftBatch

from .batches import TrainingBatch
from .checkpoint import CheckpointStore, TrainingState, load_states
from .order import Position
from .step import DrafterStep, StepResult
from .trackers import Figures, Tracker, trackers_for

log = logging.getLogger(__name__)
STOP_SAVE_S = 8.0  # of the 15 s that a stop may take

OnStep = Callable[[TrainingState, StepResult], None]
NOTHING_YET = TrainingState(
    step=0, position=Position(), num_tokens=0, loss_first=0.0, loss_last=0.0
)


def training_done(state: TrainingState, config: TrainConfig, num_steps: int) -> bool:
    """All steps are made, or all epochs are over: dropped rows may make those shorter."""
    epochs_over = not config.steps and state.position.epoch >= config.epochs
    return state.step >= num_steps or epochs_over


class Trainer:
    """Runs ``DrafterStep`` to ``num_steps``, from a checkpoint on if there is one.

    On every rank; the first one writes.
    """

    def __init__(
        self,
        step: DrafterStep,
        config: TrainConfig,
        num_steps: int,
        store: CheckpointStore,
        found: tuple[Path, TrainingState] | None,
    ) -> None:
        """``found`` is the checkpoint to go on from, a whole one of ``store``."""
        self.step = step
        self._config = config
        self.num_steps = num_steps
        self._store = store
        self.state = NOTHING_YET
        self._saved_step = -1
        self._save_s = 0.0
        if found is not None:
            folder, self.state = found
            step.load_state(*load_states(folder))
            self._saved_step = self.state.step
        self._epoch_has_steps = self.state.position.row > 0
        first = step.ranks.first
        self._trackers: Sequence[Tracker] = trackers_for(config, self.state.step) if first else ()

    @property
    def done(self) -> bool:
        return training_done(self.state, self._config, self.num_steps)

    def run(
        self,
        batches: Iterable[TrainingBatch],
        on_step: OnStep,
        measure: Callable[[], BlockAccuracy],
    ) -> None:
        """Train until done. A stop, here or on another rank, is passed on after a checkpoint.

        ``measure`` gives the accuracy on the held-out rows, over all ranks.
        """
        source = iter(batches)
        try:
            while not self.done:
                if not self._one_step(source, on_step):
                    continue
                saves = self.state.step % self._config.save_every == 0
                score = self._score(measure, saves=saves)
                if saves:
                    self.save(score)
        except (Cancelled, RankError):
            if self._save_s < STOP_SAVE_S:  # else the stop would take too long; the last one stands
                self.save()
            raise
        self.save()

    def _one_step(self, source: Iterator[TrainingBatch], on_step: OnStep) -> bool:
        """Take micro-batches as they come; none is kept after its gradients are.

        Returns whether there was a step: not where all its rows were dropped.
        """
        began = time.perf_counter()
        waited_s = 0.0
        position: Position | None = None

        def micro_batches() -> Iterator[DraftBatch]:
            nonlocal waited_s, position
            while position is None:
                asked = time.perf_counter()
                item = next(source)
                waited_s += time.perf_counter() - asked
                position = item.position
                if item.batch is not None:
                    yield item.batch

        result = self.step.step(micro_batches())
        assert position is not None
        step_s = time.perf_counter() - began
        self._advance(position, result)
        if result is None:
            return False
        if self.state.step % self._config.log_every == 0 or self.state.step == 1 or self.done:
            self._log(self._figures(result, step_s, waited_s))
        on_step(self.state, result)
        return True

    def _advance(self, position: Position, result: StepResult | None) -> None:
        before = self.state
        self.state = replace(before, position=position)
        if result is not None:
            self.state = TrainingState(
                step=before.step + 1,
                position=position,
                num_tokens=before.num_tokens + result.num_tokens,
                loss_first=before.loss_first if before.step else result.loss,
                loss_last=result.loss,
            )
            self._epoch_has_steps = True
        if position.row == 0:
            if not self._epoch_has_steps:
                raise TrainingError("extraction dropped every row of this epoch; see the ledger")
            self._epoch_has_steps = False

    def _figures(self, result: StepResult, step_s: float, waited_s: float) -> Figures:
        figures: dict[str, float | list[float]] = {
            "epoch": self.state.position.epoch,
            "loss": result.loss,
            "block_acceptance_length": result.block_acceptance_length,
            "slot_accuracy": result.slot_accuracy,
            "lr": result.lr,
            "grad_norm": result.grad_norm,
            "tokens": self.state.num_tokens,
            "tokens_per_s": result.num_tokens / step_s,
            "waiting_share": waited_s / step_s,
            "memory_bytes": _memory_bytes(),
        }
        if self.step.device.type == "cuda":
            figures["cuda_peak_bytes"] = torch.cuda.max_memory_allocated(self.step.device)
        return figures

    def _score(self, measure: Callable[[], BlockAccuracy], *, saves: bool) -> float | None:
        """The held-out block acceptance length, where one is due."""
        every = self._config.measure_every
        if not (every and self.state.step % every == 0) and not (self._config.keep_best and saves):
            return None
        accuracy = measure()
        self._log(
            {
                "held_out_block_acceptance_length": accuracy.block_acceptance_length,
                "held_out_slot_accuracy": accuracy.slot_accuracy,
            }
        )
        return accuracy.block_acceptance_length

    def _log(self, figures: Figures) -> None:
        for tracker in self._trackers:
            tracker.log(self.state.step, figures)

    def save(self, score: float | None = None) -> None:
        """Write a checkpoint of the last whole step, unless it is there already."""
        if self.state.step > self._saved_step and self.step.ranks.first:
            began = time.perf_counter()
            self._store.save(self.state, *self.step.state(), score)
            self._save_s = time.perf_counter() - began
            log.info("checkpoint of step %d, in %.1f s", self.state.step, self._save_s)
        self._saved_step = self.state.step


def _memory_bytes() -> int:
    """What of this process is in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
