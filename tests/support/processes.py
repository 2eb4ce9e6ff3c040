"""What processes call themselves."""

from pathlib import Path

from dflash_cache.pipeline import descendants


def titles(pid: int) -> dict[int, str]:
    """Of the processes that ``pid`` started."""
    return {each: title for each in descendants(pid) if (title := title_of(each))}


def title_of(pid: int) -> str:
    """Empty if the process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
