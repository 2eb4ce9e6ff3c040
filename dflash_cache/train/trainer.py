"""The training loop: batches in, steps, metrics and checkpoints out."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dflash_cache.cache import write_atomically
from dflash_cache.config import TrainConfig
from dflash_cache.pipeline import Cancelled
from dflash_cache.types import DraftBatch

from .batches import TrainingBatch
from .checkpoint import CHECKPOINTS, CheckpointStore, TrainingState
from .order import Position
from .step import DrafterStep, StepResult

STOP_SAVE_S = 8.0  # of the 15 s that a stop may take

OnStep = Callable[[TrainingState, StepResult], None]


class Metrics:
    """``metrics.jsonl``: one line a logged step. Lines after a resumed step are cut."""

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= last_step]
            write_atomically(path, "".join(f"{line}\n" for line in kept).encode())

    def log(self, **figures: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(figures) + "\n")


def _step_of(line: str) -> float:
    """The step that ``line`` is about; beyond all steps for a line that was cut or altered."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Trainer:
    """Runs ``DrafterStep`` to ``num_steps``, resuming from the newest whole checkpoint."""

    def __init__(self, step: DrafterStep, config: TrainConfig, num_steps: int) -> None:
        self.step = step
        self._config = config
        self.num_steps = num_steps
        self._store = CheckpointStore(config.out / CHECKPOINTS, config.keep)
        self.state = TrainingState(
            step=0, position=Position(), num_tokens=0, loss_first=0.0, loss_last=0.0
        )
        self._saved_step = -1
        self._save_s = 0.0
        if (found := self._store.latest()) is not None:
            self.state, weights, optimizer = found
            step.load_state(weights, optimizer)
            self._saved_step = self.state.step
        self._metrics = Metrics(config.out / "metrics.jsonl", self.state.step)

    @property
    def done(self) -> bool:
        """All steps are made, or all epochs are over: dropped rows make those shorter."""
        epochs_over = not self._config.steps and self.state.position.epoch >= self._config.epochs
        return self.state.step >= self.num_steps or epochs_over

    def run(self, batches: Iterable[TrainingBatch], on_step: OnStep) -> None:
        """Train until done. A stop of the pipeline is passed on after a checkpoint."""
        source = iter(batches)
        try:
            while not self.done:
                self._one_step(source, on_step)
                if self.state.step % self._config.save_every == 0:
                    self.save()
        except Cancelled:
            if self._save_s < STOP_SAVE_S:  # else the stop would take too long; the last one stands
                self.save()
            raise
        self.save()

    def _one_step(self, source: Iterator[TrainingBatch], on_step: OnStep) -> None:
        """Take micro-batches as they come; none is kept after its gradients are."""
        taken: list[TrainingBatch] = []

        def micro_batches() -> Iterator[DraftBatch]:
            for _ in range(self._config.grad_accum):
                item = next(source)
                taken[:] = [item]
                yield item.batch
                if item.ends_epoch:  # the last, shorter window of an epoch is a step too
                    return

        began = time.perf_counter()
        result = self.step.step(micro_batches())
        if result is not None:
            self._advance(taken[0], result, time.perf_counter() - began)
            on_step(self.state, result)

    def _advance(self, item: TrainingBatch, result: StepResult, step_s: float) -> None:
        before = self.state
        self.state = TrainingState(
            step=before.step + 1,
            position=item.position,
            num_tokens=before.num_tokens + result.num_tokens,
            loss_first=before.loss_first if before.step else result.loss,
            loss_last=result.loss,
        )
        if self.state.step % self._config.log_every == 0 or self.state.step == 1 or self.done:
            self._metrics.log(
                step=self.state.step,
                epoch=item.position.epoch,
                loss=result.loss,
                block_acceptance_length=result.block_acceptance_length,
                lr=result.lr,
                grad_norm=result.grad_norm,
                tokens=self.state.num_tokens,
                tokens_per_s=result.num_tokens / step_s,
            )

    def save(self) -> None:
        """Write a checkpoint of the last whole step, unless it is there already."""
        if self.state.step > self._saved_step:
            began = time.perf_counter()
            self._store.save(self.state, *self.step.state())
            self._save_s = time.perf_counter() - began
            self._saved_step = self.state.step
