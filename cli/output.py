"""What a command says, and where: the flags that every command has."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dflash_cache.errors import ConfigError

_LOGGER = "dflash_cache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    json: bool = False  # the report as JSON
    quiet: bool = False  # nothing but errors and the report
    verbose: bool = False  # log lines too
    events: Path | None = None  # where snapshots go as JSON lines

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise ConfigError("--quiet and --verbose: give one of them")
        if self.events is not None and self.events.is_dir():
            raise ConfigError(f"--events {self.events} is a folder; name a file, such as e.jsonl")

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Let log lines and warnings be as the flags say, until the block ends."""
        logger, handler = logging.getLogger(_LOGGER), _LogLines()
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if self.verbose else logging.WARNING)
        try:
            with _only_errors() if self.quiet else nullcontext():
                yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextmanager
def _only_errors() -> Iterator[None]:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


class _LogLines(logging.Handler):
    """On standard error as it is at each moment: a live display puts itself in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except OSError:  # a log that cannot be written ends no work
            self.handleError(record)
