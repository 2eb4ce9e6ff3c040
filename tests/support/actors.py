"""Actors that fail where a test wants it; a Ray worker imports them from here."""

import os
from pathlib import Path

from dflash_cache.runs.actor import SegmentActor


class PlannedFaultError(Exception):
    """Raised where a test wants a failure."""


class FailingActor(SegmentActor):
    def _open_segment(self, plan):
        raise PlannedFaultError(f"segment {plan.index}")


def actor_processes() -> list[int]:
    """The actors of a cluster that this process started, by their titles."""
    own = str(os.getpid())
    return [
        pid
        for pid in _processes()
        if _title(pid).startswith("ray::SegmentActor") and own in _ancestors(pid)
    ]


def processes_with(setting: str) -> list[str]:
    """The titles of all processes that have ``setting``, NAME=VALUE, in their environment."""
    return [_title(pid) for pid in _processes() if setting in _read(pid, "environ").split("\0")]


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _title(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ")


def _ancestors(pid: int) -> list[str]:
    found: list[str] = []
    while pid > 1:
        fields = _read(pid, "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0
        found.append(str(pid))
    return found


def _read(pid: int, name: str) -> str:
    """Empty if the process has ended, or is none of ours."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return ""
