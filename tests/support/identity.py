"""The table of identity fields in the documentation, and records with one field changed."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from dflash_cache.cache import CacheSpec, DatasetPart
from dflash_cache.cache.durable import checked_line, parse_checked_line

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "identity.md"
COMMANDS = ("cache", "merge", "run", "target")
PART_FIELDS = tuple(field.name for field in fields(DatasetPart))
ALL_FIELDS = {field.name for field in fields(CacheSpec)} | set(PART_FIELDS)


def table() -> dict[str, dict[str, str]]:
    """Each field's cells by the heading of their column."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    heading, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0].strip("`"): dict(zip(heading, row, strict=True)) for row in rows}


def compared_by(command: str, answer: str = "yes") -> list[str]:
    return [field for field, cells in table().items() if cells[command] == answer]


def changed(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    """``spec``, as it is recorded, with other values of ``names``, its first part's included."""
    spec = json.loads(json.dumps(spec))
    for name in names:
        owner = spec["parts"][0] if name in PART_FIELDS else spec
        owner[name] = _other(owner[name])
    return spec


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value, value[-1]]
    if isinstance(value, str):
        return {"float32": "bfloat16", "lz4": "zstd", "truncate": "drop"}.get(value, f"{value}x")
    return (value or 0) + 1


def change_cache(cache: Path, *names: str) -> None:
    """Let the cache's ``spec.json`` be one of other values, its checksum right."""
    path = cache / "spec.json"
    record = parse_checked_line(path.read_bytes(), str(path))
    path.write_bytes(checked_line(record | {"spec": changed(record["spec"], *names)}))


def change_json(path: Path, *names: str) -> None:
    """Change the cache that a run or a drafter says it was made from."""
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"cache": changed(record["cache"], *names)}))
