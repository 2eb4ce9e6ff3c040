"""What phase two says of its progress."""

from dflash_cache.pipeline import Pipeline
from dflash_cache.train import StepResult, TrainingState

from .progress import OnProgress, Progress, Sample, sample_of
from .waiting import TRAINING_STAGES


class TrainingProgress:
    """For the stage that trains; looked at from others."""

    def __init__(
        self, pipeline: Pipeline, device: str, num_steps: int, on_progress: OnProgress
    ) -> None:
        self._pipeline = pipeline
        self._device = device
        self._num_steps = num_steps
        self._on_progress = on_progress
        self._num_tokens = 0
        self._figures: dict[str, float] = {}

    def begin(self, state: TrainingState) -> None:
        self._num_tokens = state.num_tokens
        self._show(state.step)

    def step(self, state: TrainingState, result: StepResult) -> None:
        self._num_tokens = state.num_tokens
        self._figures = {
            "loss": result.loss,
            "block_acceptance_length": result.block_acceptance_length,
        }
        self._show(state.step)

    def end(self, state: TrainingState) -> None:
        """Let go of the pipeline."""
        self._show(state.step, over=True)

    def _show(self, step: int, *, over: bool = False) -> None:
        self._on_progress(
            Progress(
                phase="train",
                done=step,
                total=self._num_steps,
                unit="steps",
                figures=self._figures,
                sample=None if over else self._sample,
                over=over,
            )
        )

    def _sample(self) -> Sample:
        tokens = {self._device: self._num_tokens}
        return sample_of(self._pipeline, tokens, lambda stage: stage in TRAINING_STAGES)
