"""Caches that exist: looked into, checked, put together."""

from dataclasses import dataclass
from pathlib import Path

from dflash_cache.settings import option, require_not_negative, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """Check every byte of a cache."""

    cache: str = option(help="A cache's folder or address, s3://bucket/prefix.", argument=True)
    repair: bool = option(False, help="Make again what is damaged, from dataset and target.")
    data: Path | None = option(None, help="Dataset, for a repair [where it was].")
    target: str | None = option(None, help="Target, for a repair [where it was].")
    devices: tuple[str, ...] = option((), help="Target devices for a repair [all CUDA, or cpu].")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectConfig:
    """Show what is in a cache, or in a dataset of tokens before one is made of it."""

    cache: str = option(
        help="A cache's folder or address, s3://bucket/prefix; or a dataset.", argument=True
    )
    split: str | None = option(None, help="Split of a dataset dict.")
    row: int | None = option(None, help="Show this row too: text, ids, mask, norms.")
    quality: bool = option(
        False, help="Compare stored states with those that the target computes anew."
    )
    sample: int = option(16, help="Rows to compare with --quality [rows].")
    target: str | None = option(
        None, help="Target, for --quality and for the text of --row [where it was]."
    )
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
    symlink: bool = option(
        False, help="Leave hidden states where they lie, on several disks, and link to them."
    )
