"""The settings of the commands that write one file for people: ``init`` and ``report``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_cache.settings import option


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """Write a commented settings file to start from."""

    for_: Literal["qwen3.6-27b", "qwen3-8b", "one-gpu", "demo"] = option(
        help="What the settings are for: a target on several GPUs, one GPU, or the demo on the CPU."
    )
    out: Path = option(help="TOML file to write; one that exists is left as it is.", short="-o")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig:
    """Write a run's figures as one HTML page."""

    run: Path = option(help="Run folder of a training, finished or not.", argument=True)
    out: Path | None = option(
        None, help="File to write; an earlier one is replaced [RUN/report.html].", short="-o"
    )
