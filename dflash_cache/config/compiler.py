"""What ``--compile`` needs of the environment."""

import os
from pathlib import Path

from dflash_cache.errors import ConfigError

FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def require_compiler_folder() -> None:
    """``ConfigError`` if torch's compiler is told to keep its files where it cannot.

    Looked at before torch is imported, which makes the folder, and does not name the variable where
    it cannot.
    """
    if not (told := os.environ.get(FOLDER)):
        return
    folder = Path(told).absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        fault = "cannot be written to" if nearest.is_dir() else "is no folder"
        raise ConfigError(
            f"--compile: {FOLDER} is {told}, and {nearest} {fault}; "
            "name another folder there, or unset it"
        )
