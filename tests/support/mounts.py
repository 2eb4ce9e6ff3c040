"""Small disks of their own, which need root."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of ``size``, such as ``20m``, mounted on ``folder``; the test is skipped without."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(disk: Path, how: str) -> None:
    """``ro`` is refused while a file is open for writing."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
