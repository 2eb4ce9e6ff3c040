"""What lies in a cache folder under which name, and whether a folder may become one."""

from pathlib import Path
from typing import Any

from dflash_cache.errors import CacheCorruptError, ConfigError

from .durable import parse_checked_line
from .lock import LOCK

SPEC, LEDGER, LOG, STAGING, ROOT = (
    "spec.json",
    "ledger.jsonl",
    "commits.log",
    "staging",
    "cache.zarr",
)


def read_identity(root: Path) -> dict[str, Any]:
    """The content of ``spec.json``: spec, settings, and fingerprints of the other files."""
    path = root / SPEC
    if path.exists():
        return parse_checked_line(path.read_bytes(), str(path))
    if (root / LOG).exists() or (root / ROOT / "zarr.json").exists():
        raise CacheCorruptError(
            f"{path}: the file is missing; restore it with: "
            f"dflash-cache verify --cache {root} --repair"
        )
    raise ConfigError(
        f"{root} is no cache: it has no {SPEC}. Make one with: "
        f"dflash-cache extract --data D --target M --cache {root}"
    )


def require_free_folder(root: Path) -> None:
    """Only an empty folder, or one in which a creation did not get to its end, may be laid out.

    ``ConfigError`` names what else is in it; nothing is removed.
    """
    if not root.exists():
        return
    if not root.is_dir():
        raise ConfigError(f"--cache {root} is a file; name a new or empty folder")
    segments = root / ROOT / "segments"
    if (root / LOG).exists() or (segments.is_dir() and any(p.is_dir() for p in segments.iterdir())):
        raise CacheCorruptError(
            f"{root / SPEC} is missing beside committed segments; mend it with: "
            f"dflash-cache verify --cache {root} --repair"
        )
    foreign = _others(root, "", {LOCK, STAGING, ROOT, LEDGER})
    foreign += _others(root, STAGING, {ROOT, LEDGER})
    foreign += _others(root, ROOT, {"plan", "segments", "target", "zarr.json"})
    if foreign:
        raise ConfigError(
            f"--cache {root} is a folder with other things in it "
            f"({', '.join(foreign[:5])}); name a new or empty folder"
        )


def _others(root: Path, folder: str, ours: set[str]) -> list[str]:
    """What is in ``root/folder`` and not ours, nor left of a ``spec.json`` in the making."""
    if not (root / folder).is_dir():
        return []
    names = {path.name for path in (root / folder).iterdir()} - ours
    return sorted(str(Path(folder, name)) for name in names if not name.startswith(f".{SPEC}."))
