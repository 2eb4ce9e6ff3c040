"""Both phases in one command."""

from dataclasses import dataclass

from dflash_cache.errors import ConfigError
from dflash_cache.settings import option

from .extraction import ExtractConfig
from .training import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BothConfig:
    """Both phases, one after the other or together; with --evaluate, measured at the end."""

    extract: ExtractConfig
    train: TrainConfig
    overlap: bool = option(False, help="Train while the extraction goes on.")
    evaluate: bool = option(False, help="Decode the held-out rows at the end.")

    def __post_init__(self) -> None:
        if self.extract.engine != "threads":
            raise ConfigError(
                f"--engine {self.extract.engine}: only extract runs on a cluster; run it first, "
                "then train"
            )
