"""Phase two: from a cache to a drafter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_cache.errors import ConfigError
from dflash_cache.settings import option, require_at_most, require_not_negative, require_positive
from dflash_cache.sizes import ByteCount

MOST_DRAFT_LAYERS = 8
MOST_THREADS = 1024  # each has its buffers


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Phase two: train a drafter from a cache."""

    cache: str = option(help="A cache's folder or address, s3://bucket/prefix.")
    out: Path = option(help="Run folder: checkpoints, metrics, export; a run in it is resumed.")
    device: str = option(
        "", help="Training device [the last CUDA device, or cpu; under torchrun each rank's own]."
    )
    init_from: Path | None = option(
        None, help="Drafter folder whose weights the run starts from [random weights]."
    )
    draft_layers: int = option(5, help="Layers of the drafter, 1 to 8.")
    target_layers: tuple[int, ...] = option(
        (), help="0-based decoder layers to train on, of those in the cache [all of them]."
    )
    sliding_window: int | None = option(
        None, help="Tokens that all layers but the last look back [no limit]."
    )
    block_size: int = option(16, help="Tokens of a draft block, the anchor included.")
    anchors: int = option(512, help="Blocks per sequence, drawn afresh each epoch.")
    batch_size: int = option(8, help="Sequences packed into a micro-batch.")
    grad_accum: int = option(1, help="Micro-batches to an optimizer step.")
    epochs: int = option(6, help="Passes over the data, unless --steps is given.")
    steps: int | None = option(None, help="Optimizer steps, instead of --epochs.")
    lr: float = option(6e-4, help="Peak learning rate.")
    schedule: Literal["cosine", "wsd", "constant"] = option(
        "cosine", help="Learning-rate schedule."
    )
    warmup: float = option(0.04, help="Warm-up, as a share of all steps.")
    loss: Literal["cross-entropy", "kl"] = option(
        "cross-entropy",
        help="On the dataset's tokens, or towards the target's distribution (--keep-last).",
    )
    weight_decay: float = option(0.0, help="AdamW's weight decay.")
    clip_norm: float = option(1.0, help="Largest gradient norm.")
    gamma: float | None = option(None, help="Decay of slot weights [by block size].")
    holdout: float | None = option(
        None, help="Rows kept from training: a share below 1, else a number [64, at most a tenth]."
    )
    mask_token_id: int | None = option(
        None, help="Mask token [the tokenizer's own, else an unused row of the embedding]."
    )
    compute_dtype: Literal["float32", "bfloat16"] | None = option(
        None,
        help="What the drafter computes in; its weights are float32 [bfloat16 on CUDA, else "
        "float32].",
    )
    checkpoint_activations: bool = option(
        False, help="Compute each layer again in the backward pass: less memory, more time."
    )
    save_every: int = option(500, help="Steps between checkpoints.")
    keep: int = option(2, help="Newest checkpoints to keep.")
    keep_best: bool = option(
        False, help="Measure at each checkpoint, and keep the best by block acceptance length too."
    )
    measure_every: int | None = option(
        None, help="Steps between measurements on the held-out rows [only at the end]."
    )
    log_every: int = option(10, help="Steps between lines of metrics.")
    tracker: Literal["tensorboard"] | None = option(
        None, help="Where figures go besides metrics.jsonl."
    )
    shuffle_segments: int = option(8, help="Segments in memory whose rows are shuffled together.")
    prefetch_readers: int = option(2, help="Threads that read segments ahead.")
    prefetch_bytes: ByteCount = option(
        ByteCount(2_000_000_000),
        help="Hidden states in batches ready ahead of training, at most, such as 2GB.",
    )
    seed: int = option(0, help="Seed of weights, order and anchors.")

    def __post_init__(self) -> None:
        require_positive(
            self, "draft_layers", "anchors", "batch_size", "grad_accum", "epochs", "steps", "lr",
            "save_every", "keep", "measure_every", "log_every", "shuffle_segments",
            "prefetch_readers", "prefetch_bytes", "clip_norm", "gamma", "sliding_window",
        )  # fmt: skip
        require_at_most(self, MOST_THREADS, "prefetch_readers")
        require_not_negative(self, "seed", "weight_decay")
        if self.out.absolute() == Path(self.cache).absolute():
            raise ConfigError(f"--out {self.out}: the cache is there; name another folder")
        if self.draft_layers > MOST_DRAFT_LAYERS:
            raise ConfigError(f"--draft-layers {self.draft_layers}: 1 to {MOST_DRAFT_LAYERS}")
        if self.sliding_window and self.draft_layers < 2:
            raise ConfigError(
                f"--sliding-window {self.sliding_window}: all layers but the last get it; take at "
                "least 2 --draft-layers"
            )
        if self.block_size < 2:
            raise ConfigError(f"--block-size {self.block_size}: at least 2, an anchor and a token")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"--warmup {self.warmup}: a share of the steps, from 0 to below 1")
        if self.holdout is not None and not (
            0 <= self.holdout < 1 or (self.holdout >= 1 and self.holdout % 1 == 0)
        ):
            raise ConfigError(f"--holdout {self.holdout}: a share below 1 or a number of rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Write a run's drafter for the programs that load it."""

    run: Path = option(help="Run folder of a training.", argument=True)
    out: Path = option(help="Folder to write; an earlier export in it is replaced.")
    format: Literal["transformers", "speculators"] = option(
        "transformers",
        help="Layout: that of z-lab's package, vLLM and SGLang, or that of speculators.",
    )
    step: int | None = option(None, help="Checkpoint to export [the newest whole one].")
    dtype: Literal["bfloat16", "float32"] = option("bfloat16", help="Dtype of the weights.")

    def __post_init__(self) -> None:
        require_positive(self, "step")
