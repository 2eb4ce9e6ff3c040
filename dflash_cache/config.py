"""The settings of each command: frozen dataclasses, from which the flags are derived."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import ConfigError
from .report_config import InitConfig, ReportConfig
from .settings import option, require_not_negative, require_positive
from .sizes import ByteCount

MOST_DRAFT_LAYERS = 8
OnBadRow = Literal["fail", "drop"]
ON_BAD_ROW = "What becomes of rows with ids, masks or lengths that cannot be."


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractConfig:
    """Phase one: run the target over a dataset and keep its hidden states."""

    data: Path = option(help="Dataset: a save_to_disk folder, or .arrow, .parquet or .jsonl files.")
    target: str = option(help="Target model: a folder or a hub id.")
    cache: str = option(
        help="A cache's folder or address, s3://bucket/prefix; resumed if unfinished."
    )
    split: str | None = option(None, help="Split of a dataset dict.")
    limit: int | None = option(None, help="Use only the first rows [rows].")
    revision: str | None = option(None, help="Revision of a hub id.")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")
    devices: tuple[str, ...] = option((), help="Target devices; a+b share one [all CUDA, or cpu].")
    target_layers: tuple[int, ...] = option(
        (), help="0-based decoder layers to keep [five, spread over the depth]."
    )
    keep_last: bool = option(
        False, help="Keep the head's input too, for --loss kl: one more layer a token."
    )
    dtype: Literal["float32", "bfloat16"] | None = option(
        None,
        help="What the target computes in, and what is stored but by fp8 [bfloat16 on CUDA, else "
        "float32].",
    )
    codec: Literal["crc32c", "lz4", "zstd", "fp8"] = option(
        "lz4",
        help="How hidden states are stored, always checksummed; fp8 has 8 bits, all others are "
        "lossless.",
    )
    max_seq_len: int | None = option(
        None, help="Longest sequence [tokens; 3072, or the target's own limit if lower]."
    )
    too_long: Literal["truncate", "drop"] = option("truncate", help="What becomes of longer rows.")
    on_bad_row: OnBadRow = option("fail", help=ON_BAD_ROW)
    max_dropped: float = option(0.1, help="Stop at a larger share of rows with non-finite states.")
    segment_tokens: int = option(16384, help="Size of a segment, the unit of commit [tokens].")
    batch_tokens: int = option(8192, help="Most padded tokens in a target's batch [tokens].")
    readers: int = option(2, help="Threads that read rows.")
    writers: int = option(4, help="Threads that write segments.")
    plan_seed: int = option(0, help="Seed of the order of extraction.")
    append: bool = option(False, help="Add the dataset's rows to a cache of other rows.")
    share: str | None = option(
        None, help="Extract a share of the segments: 2/3 is the second of three machines' [all]."
    )
    max_disk: ByteCount | None = option(
        None, help="Most that the cache folder may take, such as 500GB or 200GiB."
    )

    def __post_init__(self) -> None:
        require_positive(
            self, "segment_tokens", "batch_tokens", "readers", "writers", "limit", "max_seq_len",
            "max_disk",
        )  # fmt: skip
        require_not_negative(self, "plan_seed")
        if self.max_disk is not None and "://" in str(self.cache):
            raise ConfigError(f"--max-disk {self.max_disk}: --cache {self.cache} is no folder")
        if not 0 <= self.max_dropped <= 1:
            raise ConfigError(f"--max-dropped {self.max_dropped}: a share of the rows, 0 to 1")
        _ = self.share_of_segments

    @property
    def share_of_segments(self) -> tuple[int, int]:
        """(number, of how many), the number from 0."""
        number, _, count = (self.share or "1/1").partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ConfigError(f"--share {self.share}: expected NUMBER/COUNT, such as 2/3")
        return int(number) - 1, int(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig(ExtractConfig):
    """The settings of an extraction, to size it before any work."""

    cache: str = option(".", help="Where the cache would be, for its free space.")
    probe: bool = option(
        False, help="Load the target and time a few batches, for how long the extraction takes."
    )


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
class EvaluateConfig:
    """Decode held-out prompts with and without a drafter."""

    target: str = option(help="Target model: a folder or a hub id.")
    drafter: tuple[Path, ...] = option(
        help="Drafter folder: RUN/export or another one in the same layout; several are compared."
    )
    data: Path = option(
        help="Dataset of the prompts; of training data only held-out rows are used."
    )
    split: str | None = option(None, help="Split of a dataset dict.")
    revision: str | None = option(None, help="Revision of a hub id.")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")
    device: str = option("", help="Device [the last CUDA device, or cpu].")
    dtype: Literal["float32", "bfloat16"] | None = option(
        None, help="What target and drafter compute in [bfloat16 on CUDA, else float32]."
    )
    on_bad_row: OnBadRow = option("fail", help=ON_BAD_ROW)
    prompts: int = option(64, help="Prompts to decode [rows].")
    new_tokens: int = option(64, help="Most tokens to decode for each prompt [tokens].")
    temperature: float = option(0.0, help="Sample at this temperature; 0 decodes greedily.")
    batch_size: int = option(1, help="Prompts decoded in one pass of the target.")
    untrained: bool = option(False, help="Decode with an untrained drafter of the same shape too.")
    seed: int = option(0, help="Seed of the untrained drafter's weights and of sampling.")
    out: Path | None = option(
        None, help="File for report and settings [RUN/evaluation.json for RUN/export]."
    )

    def __post_init__(self) -> None:
        require_positive(self, "prompts", "new_tokens", "batch_size")
        require_not_negative(self, "seed", "temperature")
        if not self.drafter or len(set(self.drafter)) < len(self.drafter):
            named = ", ".join(map(str, self.drafter)) or "none"
            raise ConfigError(f"--drafter {named}: name at least one folder, each once")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BothConfig:
    """Both phases, one after the other or together, and an evaluation at the end."""

    extract: ExtractConfig
    train: TrainConfig
    overlap: bool = option(False, help="Train while the extraction goes on.")
    evaluate: bool = option(False, help="Decode the held-out rows at the end.")


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """Check every byte of a cache."""

    cache: str = option(help="A cache's folder or address, s3://bucket/prefix.")
    repair: bool = option(False, help="Make again what is damaged, from dataset and target.")
    data: Path | None = option(None, help="Dataset, for a repair [where it was].")
    target: str | None = option(None, help="Target, for a repair [where it was].")
    devices: tuple[str, ...] = option((), help="Target devices for a repair [all CUDA, or cpu].")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectConfig:
    """Show what is in a cache."""

    cache: str = option(help="A cache's folder or address, s3://bucket/prefix.", argument=True)
    row: int | None = option(None, help="Show this row too: ids, mask, norms.")
    quality: bool = option(
        False, help="Compare stored states with those that the target computes anew."
    )
    sample: int = option(16, help="Rows to compare with --quality [rows].")
    target: str | None = option(None, help="Target, for --quality [where it was].")
    data: Path | None = option(None, help="Dataset that --quality checks to be the cache's [none].")
    device: str = option("", help="Device, for --quality [the last CUDA device, or cpu].")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")

    def __post_init__(self) -> None:
        require_positive(self, "sample")
        require_not_negative(self, "row")


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeConfig:
    """Make one cache of several."""

    caches: tuple[str, ...] = option(help="The caches to merge.", argument=True)
    into: str = option(help="Cache to make, or to extend.")


Config = (ExtractConfig | PlanConfig | TrainConfig | EvaluateConfig | ExportConfig | BothConfig
          | VerifyConfig | InspectConfig | MergeConfig | InitConfig | ReportConfig)  # fmt: skip
