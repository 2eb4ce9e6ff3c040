"""How much memory a device has left, and how much of that a piece of work takes at its peak."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dflash_cache.errors import ConfigError

_PROCESS, _MACHINE = Path("/proc/self/status"), Path("/proc/meminfo")
_RESET_PEAK = Path("/proc/self/clear_refs")
_CONTAINER = Path("/sys/fs/cgroup")  # of version 2, as a container sees its own


class PeakMemory:
    """One device's: ``left_bytes`` before, ``taken_bytes`` of them after. Other threads count."""

    def __init__(self, device: str) -> None:
        self._cuda = torch.device(device) if device.startswith("cuda") else None
        self._before = self._held()
        self.left_bytes = self._left()
        self.taken_bytes = 0
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            return
        try:
            _RESET_PEAK.write_text("5")
        except OSError as error:
            raise _not_told(_RESET_PEAK) from error

    def stop(self) -> None:
        if self._cuda is not None:
            peak = torch.cuda.max_memory_allocated(self._cuda)
        else:
            peak = _bytes_in(_PROCESS, "VmHWM")
        self.taken_bytes = max(0, peak - self._before)

    @property
    def share(self) -> float:
        """What was taken of what was left."""
        return self.taken_bytes / self.left_bytes

    def _held(self) -> int:
        if self._cuda is not None:
            return torch.cuda.memory_allocated(self._cuda)
        return _bytes_in(_PROCESS, "VmRSS")

    def _left(self) -> int:
        if self._cuda is None:
            return host_bytes_left()
        free, _ = torch.cuda.mem_get_info(self._cuda)
        return free + torch.cuda.memory_reserved(self._cuda) - self._before


@contextmanager
def peak_memory(placement: str) -> Iterator[list[PeakMemory]]:
    """What the block takes of each device of ``placement``, such as cuda:0+cuda:1."""
    peaks = [PeakMemory(device) for device in placement.split("+")]
    yield peaks
    for peak in peaks:
        peak.stop()


def host_bytes_left() -> int:
    """What the machine, and the container that this may be, can still give."""
    left = _bytes_in(_MACHINE, "MemAvailable")
    limit = _CONTAINER / "memory.max"
    if not limit.is_file() or not limit.read_text().strip().isdecimal():
        return left
    held = int((_CONTAINER / "memory.current").read_text())
    cached = dict(map(str.split, (_CONTAINER / "memory.stat").read_text().splitlines()))
    return min(left, int(limit.read_text()) - held + int(cached["inactive_file"]))


def _bytes_in(file: Path, name: str) -> int:
    """A line ``name: 123 kB`` of one of Linux's own files."""
    if file.is_file():
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise _not_told(file)


def _not_told(file: Path) -> ConfigError:
    return ConfigError(
        f"--batch-tokens auto: this system does not tell what memory is left and taken ({file}); "
        "give --batch-tokens a number"
    )
