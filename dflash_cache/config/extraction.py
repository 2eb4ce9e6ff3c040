"""Phase one: from a dataset and a target to a cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_cache.errors import ConfigError
from dflash_cache.settings import option, require_at_most, require_not_negative, require_positive
from dflash_cache.sizes import ByteCount

from .compiler import require_compiler_folder

OnBadRow = Literal["fail", "drop"]
ON_BAD_ROW = "What becomes of rows with ids, masks or lengths that cannot be."

MOST_THREADS = 1024  # each has its buffers


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractConfig:
    """Phase one: run the target over a dataset and keep its hidden states."""

    data: Path = option(help="Dataset: a save_to_disk folder, or .arrow, .parquet or .jsonl files.")
    target: str = option(help="Target model: a folder or a hub id.")
    cache: str = option(
        help="A cache's folder or address, s3://bucket/prefix; resumed if unfinished."
    )
    split: str | None = option(None, help="Split of a dataset dict.")
    limit: int | None = option(None, help="How many of the first rows to use [all].")
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
    batch_tokens: int | Literal["auto"] = option(
        8192,
        help="Most padded tokens in a target's batch [tokens]; auto tries sizes on the target, and "
        "takes the fastest that fits.",
    )
    compile: bool = option(False, help="Compile the target's layers with torch.compile.")
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

    engine: Literal["threads", "ray"] = option(
        "threads", help="What runs the targets: threads here, or actors in a Ray cluster."
    )
    address: str | None = option(
        None, help="Ray cluster to join, auto or HOST:PORT [RAY_ADDRESS, else one started here]."
    )

    def __post_init__(self) -> None:
        require_positive(
            self, "segment_tokens", "readers", "writers", "limit", "max_seq_len", "max_disk",
        )  # fmt: skip
        require_at_most(self, MOST_THREADS, "readers", "writers")
        if self.batch_tokens != "auto":
            require_positive(self, "batch_tokens")
        require_not_negative(self, "plan_seed")
        if self.max_disk is not None and "://" in str(self.cache):
            raise ConfigError(f"--max-disk {self.max_disk}: --cache {self.cache} is no folder")
        if not 0 <= self.max_dropped <= 1:
            raise ConfigError(f"--max-dropped {self.max_dropped}: a share of the rows, 0 to 1")
        _ = self.share_of_segments
        if self.compile:
            require_compiler_folder()
        if self.batch_tokens == "auto" and self.engine == "ray":
            raise ConfigError(
                "--batch-tokens auto: actors take a number. `dflash-cache plan --probe "
                "--batch-tokens auto` on one of their machines finds it"
            )
        if self.address is not None and self.engine != "ray":
            raise ConfigError(f"--address {self.address}: only --engine ray has a cluster")
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"--address {self.address}: run the command on a machine of the cluster, with "
                "--address auto"
            )

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

    def __post_init__(self) -> None:
        ExtractConfig.__post_init__(self)  # a class with slots has no super() without arguments
        if self.batch_tokens == "auto" and not self.probe:
            raise ConfigError("--batch-tokens auto: tries the target, so it needs --probe")
