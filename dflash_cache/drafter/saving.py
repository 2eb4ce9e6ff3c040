"""Faults of a disk in what libraries write, told as the file's."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """``OSError`` that names ``path`` where a library has an error of its own for a full disk."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        if "CUDA" in str(error):  # of the copy from a device
            raise
        free_bytes = shutil.disk_usage(path.parent).free
        raise OSError(
            f"{path} cannot be written, with {free_bytes / 1e6:,.1f} MB free there: {error}"
        ) from error
