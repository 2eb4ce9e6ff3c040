"""obstore, which opens S3, Google Cloud Storage, Azure and more, with errors that name objects."""

from collections.abc import Iterator
from contextlib import contextmanager

from dflash_cache.errors import ConfigError

try:
    import obstore
    from obstore.store import ObjectStore, from_url
except ImportError as error:
    raise ConfigError(
        "a cache in an object store needs obstore: pip install 'dflash-cache[object-store]'"
    ) from error

__all__ = ["ObjectStore", "naming", "obstore", "open_store"]


def open_store(address: str) -> ObjectStore:
    """The store at ``address``; credentials and endpoint come from the environment."""
    try:
        return from_url(address)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"--cache {address}: {error}") from error


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Let an error of the store name the object, in the class that a file's error has."""
    try:
        yield
    except obstore.exceptions.BaseError as error:
        raise OSError(f"{place}: {str(error).splitlines()[0]}") from error
