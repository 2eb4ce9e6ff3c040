"""``tokenize``: chats become the tokens and masks that an extraction reads."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from dflash_cache.cache import fsync_path, fsync_tree, remove_tree, write_atomically, writer_lock
from dflash_cache.config import TokenizeConfig
from dflash_cache.data.sources import ChatFiles
from dflash_cache.data.token_files import TokenFiles
from dflash_cache.data.token_tally import Duplicates, TokenTally
from dflash_cache.data.tokenization import RowBatch, Tokenization
from dflash_cache.errors import CacheMismatchError, ConfigError, DataError
from dflash_cache.pipeline import process_map
from dflash_cache.settings import flag_of, to_json
from dflash_cache.target.tokenizer import load_tokenizer
from dflash_cache.types import TokenizerParts

from .progress import OnProgress, Progress, ignore

RECORD = "tokenize.json"
BATCH_ROWS = 256
MOST_WORKERS = 16
WORKER_BYTES = 32_000_000  # of the files; for less the start of a process costs more than it gives
# What may change between two starts without changing a token.
_FREE = {"chats", "workers", "out"}


def tokenize(config: TokenizeConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Write ``config.out``, whole or not at all, and return the report.

    The report: rows, sequences, tokens, truncated, dropped {reason: rows}, dropped_first {reason:
    the first such row and what is wrong with it}, lengths {shortest, median, percentile_95,
    longest}, mask_share, warnings [..], mask_from, out, wall_s. The same command again returns the
    report that is there.
    """
    began = time.monotonic()
    _require_name(config.out)
    files = ChatFiles.find(config.chats)
    parts = _tokenizer_parts(config)
    made_from = _made_from(config, files, parts)
    if (report := _finished(config, made_from)) is not None:
        return report
    work = Tokenization(
        tokenizer=parts,
        now=datetime.now(),
        thinking=config.thinking,
        last_turn_only=config.last_turn_only,
        max_seq_len=config.max_seq_len,
    )
    template = work.start().template  # what is wrong with it shows now
    with _unfinished(config.out) as folder:
        report = _write(config, files, work, folder, on_progress) | {
            "mask_from": "generation marks" if template and template.has_marks else "turns",
            "out": str(config.out),
            "wall_s": round(time.monotonic() - began, 3),
        }
        record = json.dumps(made_from | {"report": report}, indent=1)
        write_atomically(folder / RECORD, record.encode())
    return report


def _require_name(out: Path) -> None:
    """``ConfigError`` if Arrow, whose paths are UTF-8, could not open files in ``out``."""
    try:
        str(out.absolute()).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"--out {out}: the path is no UTF-8; name another folder") from error


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A folder that becomes ``out`` when the block ends without an error, and else is removed."""
    beside = out.with_name(f".{out.name}.unfinished")
    with writer_lock(beside, "--out"):
        content = beside / "content"
        remove_tree(content)  # of a process that was killed
        content.mkdir()
        try:
            yield content
            fsync_tree(content)
            content.rename(out)
            fsync_path(out.parent)
        finally:
            remove_tree(beside)


def _tokenizer_parts(config: TokenizeConfig) -> TokenizerParts:
    parts = load_tokenizer(
        config.target, config.revision, trust_remote_code=config.trust_remote_code
    )
    if config.chat_template is None:
        return parts
    try:
        template = config.chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {config.chat_template}: {error}") from error
    return TokenizerParts(
        tokenizer_json=parts.tokenizer_json,
        chat_template=template,
        special_tokens=parts.special_tokens,
    )


def _write(
    config: TokenizeConfig,
    files: ChatFiles,
    work: Tokenization,
    folder: Path,
    on_progress: OnProgress,
) -> dict[str, Any]:
    tally, duplicates = TokenTally(), Duplicates() if config.deduplicate else None
    num_bytes = files.num_bytes
    useful = 1 + num_bytes // WORKER_BYTES
    workers = config.workers or min(useful, MOST_WORKERS, os.cpu_count() or 1)
    with TokenFiles(folder) as writer:
        for batch in process_map(work.start, _batches(files, config.limit), workers=workers):
            unique = duplicates.without(batch, tally.num_rows) if duplicates else batch
            writer.write(unique)
            tally.add(unique)
            percent = 100 * batch.bytes_read // max(1, num_bytes)
            if config.limit is not None:
                percent = max(percent, 100 * tally.num_rows // config.limit)
            on_progress(_progress(tally, percent))
        if not tally.num_tokens:
            raise DataError(
                f"{config.chats}: none of {tally.num_rows} rows can be trained on: "
                f"{tally.reasons() or 'there are no rows'}. Nothing was written"
            )
        writer.finish()
    return tally.report()


def _batches(files: ChatFiles, limit: int | None) -> Iterator[RowBatch]:
    rows: list[dict[str, Any]] = []
    number = 0
    for number, (row, done) in enumerate(files.rows(), start=1):
        rows.append(row)
        if len(rows) == BATCH_ROWS:
            yield RowBatch(first_row=number - len(rows), rows=rows, bytes_read=done)
            rows = []
        if number == limit:
            break
    if rows:
        yield RowBatch(first_row=number - len(rows), rows=rows, bytes_read=files.num_bytes)


def _progress(tally: TokenTally, percent: int) -> Progress:
    figures = {"rows": tally.num_rows, "tokens": tally.num_tokens}
    return Progress(phase="tokenize", done=percent, total=100, unit="%", figures=figures)


def _made_from(config: TokenizeConfig, files: ChatFiles, parts: TokenizerParts) -> dict[str, Any]:
    """What a later start must agree with to find its work done."""
    settings = json.loads(to_json(config))
    return {
        "settings": {name: value for name, value in settings.items() if name not in _FREE},
        "files": files.stamps(),
        "tokenizer_hash": hashlib.sha256(parts.tokenizer_json.encode()).hexdigest(),
        "chat_template_hash": hashlib.sha256((parts.chat_template or "").encode()).hexdigest(),
    }


def _finished(config: TokenizeConfig, made_from: dict[str, Any]) -> dict[str, Any] | None:
    """The report of an equal earlier run.

    ``CacheMismatchError`` if ``config.out`` was made from something else, ``ConfigError`` if it is
    no folder of ``tokenize``.
    """
    if not config.out.exists():
        return None
    try:
        record = json.loads((config.out / RECORD).read_text(encoding="utf-8"))
        report, found = dict(record.pop("report")), dict(record.pop("settings"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"--out {config.out} is there and is not a folder that tokenize wrote; name another"
        ) from None
    differing = [
        f"{flag_of(name)} {value}, made with {found.get(name)}"
        for name, value in made_from["settings"].items()
        if found.get(name) != value
    ]
    differing += [
        f"{name.replace('_', ' ')}: not those of before"
        for name, value in record.items()
        if made_from.get(name) != value
    ]
    if differing:
        raise CacheMismatchError(
            f"--out {config.out} is there and was made from something else:\n  "
            + "\n  ".join(differing)
            + "\nName another --out, or remove the folder"
        )
    return report
