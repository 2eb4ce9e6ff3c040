"""``regenerate``: the target itself answers the prompts of chats."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dflash_cache.cache import fsync_path, remove_tree, write_atomically, writer_lock
from dflash_cache.config import RegenerateConfig
from dflash_cache.data.sources import SETTINGS, ChatFiles, Row
from dflash_cache.errors import CacheMismatchError, ConfigError, DataError
from dflash_cache.pipeline import Channel, Pipeline
from dflash_cache.settings import flag_of, to_json

from .answering import Answering, Record, RowAnswering
from .asked_target import asked_target
from .journal import Journal
from .progress import OnProgress, Progress, ignore

# What may change between two starts without changing whose answers are written.
_FREE = {"data", "out", "server", "device", "concurrency", "timeout", "retries", "on_refused"}
_READ = tuple[int, Row, int]  # a row's number, the row, the bytes of the files read by then


def regenerate(config: RegenerateConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Write ``config.out``, whole or not at all, and the settings beside it; return the report.

    The report: rows, chats, answers, tokens, truncated, dropped {reason: rows}, dropped_first
    {reason: the first such row and what is wrong with it}, resumed (rows that earlier starts had
    done), model, out, wall_s. What is answered is kept when a start fails or is stopped, and the
    same command goes on. Once all is done it returns the report that is there.
    """
    began = time.monotonic()
    files = ChatFiles.find(config.data)
    made_from = _made_from(config, files)
    unfinished = config.out.with_name(f".{config.out.name}.unfinished")
    if (report := _finished(config, made_from)) is not None:
        remove_tree(unfinished)  # of a process that was killed behind the last step
        return report
    if config.out.parent.exists() and not config.out.parent.is_dir():
        raise ConfigError(f"--out {config.out}: {config.out.parent} is a file, no folder")
    with writer_lock(unfinished, "--out"), asked_target(config) as (target, model):
        if (report := _finished(config, made_from)) is not None:  # by another process, just now
            remove_tree(unfinished)
            return report
        made_from["settings"]["model"] = model
        tally, resumed = _answered(config, files, target, made_from, unfinished, on_progress)
        report = tally.report() | {
            "resumed": resumed,
            "model": model,
            "out": str(config.out),
            "wall_s": round(time.monotonic() - began, 3),
        }
        _finish(config, made_from | {"report": report}, unfinished)
    return report


def _answered(
    config: RegenerateConfig,
    files: ChatFiles,
    target: Answering,
    made_from: Mapping[str, Any],
    unfinished: Path,
    on_progress: OnProgress,
) -> tuple["_Tally", int]:
    """Write all chats below ``unfinished``; how many rows earlier starts had done."""
    work = RowAnswering(
        target=target,
        seed=config.seed,
        last_turn_only=config.last_turn_only,
        drop_refused=config.on_refused == "drop",
    )
    with closing(Journal(unfinished / "journal")) as journal:
        resumed = len(journal)
        _require_same(unfinished / "begun.json", made_from, config.out, bound=bool(resumed))
        _answer_rows(config, files, work, journal, on_progress)
        tally = _write(journal, unfinished / "chats.jsonl")
    if not tally.chats:
        (unfinished / "journal").unlink()  # else the same command would ask for nothing
        first = "; ".join(tally.dropped_first.values()) or "there are no rows"
        raise DataError(
            f"{config.data}: none of {tally.rows} rows has an answer: {first}. Mend this, and the "
            "same command asks for all of them again"
        )
    return tally, resumed


def _answer_rows(
    config: RegenerateConfig,
    files: ChatFiles,
    work: RowAnswering,
    journal: Journal,
    on_progress: OnProgress,
) -> None:
    """Let the target answer every row that is not in ``journal``, and record it there."""
    num_bytes = max(1, files.num_bytes)
    workers = config.concurrency if config.server else 1
    with Pipeline("regenerate") as pipeline:
        pipeline.register(work.target)
        rows: Channel[_READ] = pipeline.channel("rows", workers)
        answered: Channel[tuple[Record, int]] = pipeline.channel("answered", 2 * workers)

        def read() -> None:
            for number, (row, done) in enumerate(islice(files.rows(), config.limit)):
                if number not in journal:
                    rows.put((number, row, done))

        def ask() -> None:
            for number, row, done in rows:
                answered.put((work.record(number, row), done))

        pipeline.spawn("read", read, into=[rows])
        for _ in range(workers):
            pipeline.spawn("ask", ask, into=[answered])
        pipeline.start()
        for group in _groups(answered):
            journal.append([record for record, _ in group])
            percent = 100 * max(done for _, done in group) // num_bytes
            if config.limit is not None:
                percent = max(percent, 100 * len(journal) // config.limit)
            figures = {"rows": len(journal)}
            on_progress(
                Progress(phase="regenerate", done=percent, total=100, unit="%", figures=figures)
            )


def _groups(channel: Channel[tuple[Record, int]]) -> Iterator[list[tuple[Record, int]]]:
    """What came while the group before was written; for the only reader of ``channel``."""
    for first in channel:
        group = [first]
        while len(channel):
            group.append(channel.get())
        yield group


@dataclass(slots=True)
class _Tally:
    """What the records of the rows come to."""

    rows: int = 0
    chats: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_first: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.rows += 1
        if "chat" in record:
            self.chats += 1
            self.figures.update({name: record[name] for name in ("answers", "tokens", "truncated")})
        else:
            reason = record["dropped"]
            self.dropped[reason] += 1
            self.dropped_first.setdefault(reason, f"row {record['row']}: {record['message']}")

    def report(self) -> dict[str, Any]:
        names = ("answers", "tokens", "truncated")
        return {
            "rows": self.rows,
            "chats": self.chats,
            **{name: self.figures[name] for name in names},
            "dropped": dict(self.dropped),
            "dropped_first": self.dropped_first,
        }


def _write(journal: Journal, path: Path) -> _Tally:
    """The chats of ``journal`` in the order of the rows."""
    tally = _Tally()
    with path.open("wb") as file:
        for record in journal.records():
            assert record["row"] == tally.rows, "a row was passed over"
            tally.add(record)
            if "chat" in record:
                line = json.dumps(record["chat"], ensure_ascii=False) + "\n"
                # Half a character becomes the escape that JSON has for it.
                file.write(line.encode("utf-8", "backslashreplace"))
        file.flush()
        os.fsync(file.fileno())
    return tally


def _finish(config: RegenerateConfig, record: Mapping[str, Any], unfinished: Path) -> None:
    """Put the chats in their place; the settings come first, for a crash between the two."""
    write_atomically(_record_file(config.out), (json.dumps(record, indent=1) + "\n").encode())
    (unfinished / "chats.jsonl").rename(config.out)
    fsync_path(config.out.parent)
    remove_tree(unfinished)


def _record_file(out: Path) -> Path:
    return out.with_name(out.name + SETTINGS)


def _made_from(config: RegenerateConfig, files: ChatFiles) -> dict[str, Any]:
    """What a later start must agree with to go on: the settings, the files, a target run here."""
    made_from: dict[str, Any] = {
        "settings": json.loads(to_json(config)),
        "files": files.stamps(),
    }
    if config.target is not None:
        from dflash_cache.target import identify_target

        identity = asdict(identify_target(config.target, config.revision))
        made_from |= {name: value for name, value in identity.items() if name.endswith("_hash")}
    return made_from


def _finished(config: RegenerateConfig, made_from: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of an equal earlier run.

    ``CacheMismatchError`` if ``config.out`` was made from something else, ``ConfigError`` if it is
    no file of ``regenerate``.
    """
    if not config.out.exists():
        return None
    try:
        record = json.loads(_record_file(config.out).read_text(encoding="utf-8"))
        report, settings = dict(record["report"]), dict(record["settings"])
        report["resumed"] = report["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"--out {config.out} is there and is not a file that regenerate wrote; name another"
        ) from None
    if config.model is None:  # then it is asked for, which a finished file needs no server for
        asked = made_from["settings"] | {"model": settings.get("model")}
        made_from = {**made_from, "settings": asked}
    _refuse_differing(record, made_from, f"--out {config.out} is there and was made")
    return report


def _require_same(file: Path, made_from: Mapping[str, Any], out: Path, *, bound: bool) -> None:
    """``CacheMismatchError`` if earlier starts were made from something else.

    The first is recorded, and binds later ones once there are answers.
    """
    if bound:
        record = json.loads(file.read_text(encoding="utf-8"))
        _refuse_differing(record, made_from, f"--out {out} was begun")
    else:
        write_atomically(file, json.dumps(made_from, indent=1).encode())


def _refuse_differing(found: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    settings = found["settings"]
    differing = [
        f"{flag_of(name)} {value}, before {settings.get(name)}"
        for name, value in wanted["settings"].items()
        if name not in _FREE and settings.get(name) != value
    ]
    names = [name for name in wanted if name != "settings"]
    differing += [
        f"{name.replace('_', ' ')}: not those of before"
        for name in names
        if found.get(name) != wanted[name]
    ]
    if differing:
        raise CacheMismatchError(
            f"{what} from something else:\n  "
            + "\n  ".join(differing)
            + "\nName another --out, or give the settings of before"
        )
