"""Commands that are refused, and what they say: the list behind docs/reference/refusals.md.

    python -m tests.support.refusals

writes the page anew. Commands run in this process, in a folder of their own with a few small files.
"""

import contextlib
import io
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_cache import demo
from dflash_cache.cache.local import LocalStorage
from dflash_cache.cli.main import main

PAGE = Path(__file__).parents[2] / "docs/reference/refusals.md"
INTRODUCTION = """# What is refused, and what it says

Bad input ends a command with exit code 1 before a model is loaded, settings that cannot be with 2.
Each message names the thing and where it is. `TARGET` is the bundled target. A test compares
this page with what the commands print.

Rows that are null or empty, or have no mask, are no reason to refuse a dataset: they are left out,
counted in the report by reason, and named in the cache's ledger.
"""
GOOD = {"input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]}
VOCABULARY = 4096  # of the bundled target

Rows = list[dict[str, Any]]


def rows_with(**changes: Any) -> Rows:
    """Ten rows, of which number 3 has ``changes``."""
    return [GOOD | changes if number == 3 else GOOD for number in range(10)]


DATA: dict[str, tuple[str, Rows]] = {
    "null-id": ("A missing id within a row", rows_with(input_ids=[5, None, 7, 8])),
    "short-mask": ("A mask one shorter than the ids", rows_with(loss_mask=[0, 1, 1])),
    "large-id": ("An id beyond the vocabulary", rows_with(input_ids=[5, 6, VOCABULARY, 8])),
    "negative-id": ("A negative id", rows_with(input_ids=[5, -1, 7, 8])),
    "mask-of-2": ("A mask of other values than 0 and 1", rows_with(loss_mask=[0, 0, 2, 1])),
    "no-loss": ("Not one token to learn from", [GOOD | {"loss_mask": [0, 0, 0, 0]}] * 10),
    "no-rows": ("A dataset of no rows", []),
    "text-ids": ("Ids that are text", [GOOD | {"input_ids": ["a", "b", "c", "d"]}] * 10),
}
GOOD_EXTRACT = "extract --data good.parquet --target TARGET --cache"
COMMANDS: tuple[tuple[str, str], ...] = (
    ("A dataset that is not there", "extract --data nowhere --target TARGET --cache c"),
    ("A column that is not there", "extract --data columns.parquet --target TARGET --cache c"),
    ("A split that is not there", f"{GOOD_EXTRACT} c --split eval"),
    ("A cache where a dataset is wanted", "extract --data cache --target TARGET --cache c"),
    ("A dataset where a cache is wanted", "train --cache good.parquet --out run"),
    ("A cache that is not there", "train --cache nowhere --out run"),
    ("A target that is not there", "extract --data good.parquet --target nowhere/at/all --cache c"),
    ("A folder of other things as cache", f"{GOOD_EXTRACT} full"),
    ("A file as cache", f"{GOOD_EXTRACT} good.parquet"),
    ("A file as run folder", "train --cache cache --out good.parquet"),
    ("A device that is none", f"{GOOD_EXTRACT} c --devices gpu"),
    ("A layer that is not there", f"{GOOD_EXTRACT} c --target-layers 1,99"),
    ("Other layers than the cache's", f"{GOOD_EXTRACT} cache --target-layers 0,1"),
    ("A disk budget that is too small", f"{GOOD_EXTRACT} c --max-disk 10kB"),
    ("A value that cannot be", f"{GOOD_EXTRACT} c --batch-tokens 0"),
    ("A target that is an empty word", "plan --data good.parquet --target '' --cache c"),
    ("A word where a number is wanted", f"{GOOD_EXTRACT} c --batch-tokens many"),
    (
        "A batch size to try, and no target to try it on",
        "plan --data good.parquet --target TARGET --batch-tokens auto",
    ),
    ("A choice that is none", f"{GOOD_EXTRACT} c --codec gzip"),
    ("A flag that is none", f"{GOOD_EXTRACT} c --batch-token 5"),
    ("A flag that is missing", "extract --data good.parquet --cache c"),
    ("A command that is none", "extrakt"),
    ("A setting in a file that is none", "extract --config wrong-key.toml"),
    ("A settings file that is no TOML", "extract --config broken.toml"),
)
FULL_DISK = ("A disk with too little room", f"{GOOD_EXTRACT} c")  # there 1 MB is free


def write_files(folder: Path) -> None:
    """Everything that the commands name, below ``folder``."""
    for name, (_, rows) in DATA.items():
        write_rows(folder / f"{name}.parquet", rows)
    write_rows(folder / "good.parquet", rows_with())
    table = pa.Table.from_pylist([{"tokens": [1, 2], "mask": [0, 1]}])
    pq.write_table(table, folder / "columns.parquet")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    (folder / "wrong-key.toml").write_text('data = "good.parquet"\nbatch_token = 5\n')
    (folder / "broken.toml").write_text("[extract\n")


def write_rows(path: Path, rows: Rows) -> None:
    kind = pa.string() if rows and rows[0]["input_ids"][0] == "a" else pa.int64()
    schema = pa.schema([("input_ids", pa.list_(kind)), ("loss_mask", pa.list_(pa.int64()))])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def run(command: str) -> tuple[int, str]:
    """The exit code and what was printed on stderr, without progress and help."""
    arguments = shlex.split(command.replace("TARGET", str(demo.TARGET)))
    errors = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["dflash-cache", *arguments]),
        mock.patch.dict(os.environ, {"COLUMNS": "100"}),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    lines = errors.getvalue().replace(str(demo.TARGET), "TARGET").splitlines()
    beside = ("Usage:", "Try ", "Generating", "\r")
    shown = [line.strip() for line in lines if line and not line.startswith(beside)]
    return code, "\n".join(shown)


def refusals() -> list[tuple[str, str, int, str]]:
    """(title, command, exit code, message) of each command, run in a fresh folder."""
    data = [
        (title, f"extract --data {name}.parquet --target TARGET --cache c")
        for name, (title, _) in DATA.items()
    ]
    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(Path())
        made = run("extract --data good.parquet --target TARGET --cache cache --devices cpu")
        if made[0]:
            raise RuntimeError(f"the cache for the trials was not made: {made}")
        for title, command in (*data, *COMMANDS):
            found.append((title, command, *run(command)))
            if Path("c").exists():
                raise RuntimeError(f"{command} was refused and left a cache")
        with mock.patch.object(LocalStorage, "free_bytes", return_value=1_000_000):
            found.append((*FULL_DISK, *run(FULL_DISK[1])))
    return found


def page() -> str:
    parts = [INTRODUCTION]
    for title, command, code, message in refusals():
        lines = (f"$ dflash-cache {command}", message, f"[exit code {code}]")
        parts.append("\n".join([f"## {title}\n", "```text", *lines, "```\n"]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
