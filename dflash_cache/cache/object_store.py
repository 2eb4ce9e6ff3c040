"""obstore, which opens S3, Google Cloud Storage, Azure and more, with errors that name objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from dflash_cache.errors import ConfigError

from .layout import SPEC

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, RetryConfig

try:
    import obstore
    from obstore.store import ObjectStore, from_url
except ImportError as error:
    raise ConfigError(
        "a cache in an object store needs obstore: pip install 'dflash-cache[object-store]'"
    ) from error

__all__ = ["ObjectStore", "hasty_store", "naming", "obstore", "open_store"]


PATIENCE_S = 60.0  # how long an operation is tried again while the store is away
QUICK_S = 5.0


def open_store(address: str) -> ObjectStore:
    """The store at ``address``; credentials and endpoint come from the environment.

    ``ConfigError`` if none answers there. One that did is waited for when it is away for a while.
    """
    try:
        obstore.head(hasty_store(address), SPEC)
    except FileNotFoundError:
        pass  # it answers
    except obstore.exceptions.BaseError as error:
        raise ConfigError(f"--cache {address}: {_first_line(error)}") from error
    return _store(address, PATIENCE_S)


def hasty_store(address: str) -> ObjectStore:
    """The same, whose operations soon give up: nobody waits for them when a run ends."""
    return _store(address, QUICK_S)


def _store(address: str, patience_s: float) -> ObjectStore:
    backoff: BackoffConfig = {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    }
    retries: RetryConfig = {
        "max_retries": 1000,  # so that time alone decides
        "retry_timeout": timedelta(seconds=patience_s),
        "backoff": backoff,
    }
    try:
        return from_url(address, retry_config=retries)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"--cache {address}: {error}") from error


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Let an error of the store name the object, in the class that a file's error has."""
    try:
        yield
    except obstore.exceptions.BaseError as error:
        raise OSError(f"{place}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
