"""Write ``docs/reference/commands.md`` from the configuration classes, the flags' only source."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from dflash_cache.cli.options import FLAGS_OF_EVERY_COMMAND
from dflash_cache.config import (
    BothConfig,
    EvaluateConfig,
    ExportConfig,
    ExtractConfig,
    InitConfig,
    InspectConfig,
    MergeConfig,
    PlanConfig,
    RegenerateConfig,
    ReportConfig,
    TokenizeConfig,
    TrainConfig,
    VerifyConfig,
)
from dflash_cache.runs.demo import demo_settings
from dflash_cache.settings import flag_of, kind_and_words, options_of
from dflash_cache.sizes import ByteCount

PAGE = Path(__file__).parent / "reference" / "commands.md"
EXAMPLES = {
    "init": (
        "dflash-cache init --for qwen3-8b --out drafter.toml\n"
        "dflash-cache both --config drafter.toml"
    ),
    "regenerate": (
        "dflash-cache regenerate prompts.jsonl --out chats.jsonl --server http://localhost:8000/v1\n"
        "dflash-cache regenerate prompts.jsonl --out chats.jsonl --target Qwen/Qwen3-0.6B"
    ),
    "tokenize": (
        "dflash-cache tokenize chats.jsonl --target Qwen/Qwen3-8B --out tokens\n"
        "dflash-cache tokenize chats/ --target Qwen/Qwen3-8B --out tokens --no-thinking"
    ),
    "plan": (
        "dflash-cache plan --data tokens --target Qwen/Qwen3-8B --cache cache\n"
        "dflash-cache plan --data tokens --target Qwen/Qwen3-8B --cache cache --probe"
    ),
    "extract": "dflash-cache extract --data tokens --target Qwen/Qwen3-8B --cache cache",
    "train": "dflash-cache train --cache cache --out run",
    "both": (
        "dflash-cache both --overlap --data tokens --target Qwen/Qwen3-8B --cache cache --out run"
    ),
    "evaluate": ("dflash-cache evaluate --target Qwen/Qwen3-8B --drafter run/export --data tokens"),
    "report": "dflash-cache report run\ndflash-cache report run -o run.html",
    "inspect": "dflash-cache inspect cache\ndflash-cache inspect cache --row 7 --quality",
    "export": (
        "dflash-cache export run --out drafter\n"
        "dflash-cache export run --format speculators --out drafter-speculators"
    ),
    "merge": "dflash-cache merge cache-1 cache-2 --into cache",
    "verify": "dflash-cache verify --cache cache\ndflash-cache verify --cache cache --repair",
}
CONFIGS = {
    "init": InitConfig,
    "regenerate": RegenerateConfig,
    "tokenize": TokenizeConfig,
    "plan": PlanConfig,
    "extract": ExtractConfig,
    "train": TrainConfig,
    "both": BothConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "inspect": InspectConfig,
    "export": ExportConfig,
    "verify": VerifyConfig,
    "merge": MergeConfig,
}
TYPE_NAMES = {int: "number", float: "decimal", str: "text", Path: "path", ByteCount: "bytes"}
INTRODUCTION = """\
# Commands

<!-- Written by docs/make_reference.py; `make reference` writes it again. -->

Every flag of every command. Square brackets in a meaning give the unit, or what holds when the
flag is not given.

Each command also takes:

| flag | meaning |
|---|---|
{flags}
| `--help` | Show the flags. |

`dflash-cache --version` prints the versions of the program and of what its results depend on.
`dflash-cache --install-completion` lets the shell complete commands and flags.

Flags of several values take them separated by commas: `--devices cuda:0,cuda:1`. A switch has an
opposite: `--no-overlap` undoes an `overlap = true` of the file.

Progress goes to standard error, the report to standard output.

| exit code | meaning |
|---|---|
| 0 | Done, or nothing left to do. |
| 1 | Failed: the data, the cache or the run is not what it should be. `verify`: faults are left. |
| 2 | Usage: a flag, a setting or a combination of them is wrong. |
| 130 | Stopped by Ctrl-C. The same command continues; `plan`, `tokenize`, `evaluate` begin anew. |
| 143 | Stopped by SIGTERM, the same. |
"""


def render() -> str:
    """The whole page."""
    flags = "\n".join(
        f"| `{flag_of(name)}{'' if kind is bool else ' FILE'}` | {meaning} |"
        for name, (kind, meaning) in FLAGS_OF_EVERY_COMMAND.items()
    )
    introduction = INTRODUCTION.replace("{flags}", flags)
    return "\n".join([introduction, *(_command(name) for name in CONFIGS), _demo()])


def _command(name: str) -> str:
    config = CONFIGS[name]
    lines = [f"## {name}", "", f"{inspect.getdoc(config)}", ""]
    lines += ["```bash", EXAMPLES[name], "```", ""]
    options = list(options_of(config))
    if name == "plan":  # it takes what extract takes, but needs no cache
        lines += ["Every flag of `extract`; `--cache` differs, `--probe` is new:", ""]
        options = [(item, hint) for item, hint in options if item.name in {"cache", "probe"}]
    if name == "both":
        lines += ["Every flag of `extract` and `train`, and:", ""]
        other = {
            item.name for each in ("extract", "train") for item, _ in options_of(CONFIGS[each])
        }
        options = [(item, hint) for item, hint in options if item.name not in other]
    lines += ["| flag | value | default | meaning |", "|---|---|---|---|"]
    lines += [_row(item, hint) for item, hint in options]
    return "\n".join([*lines, ""])


def _row(item: Field[Any], hint: Any) -> str:
    flag = f"`{flag_of(item.name)}`"
    if item.metadata["short"]:
        flag += f" or `{item.metadata['short']}`"
    if item.metadata["argument"]:
        flag = f"`{item.name.upper()}`" + ("" if get_origin(hint) is tuple else f" or {flag}")
    return f"| {flag} | {_value(hint)} | {_default(item)} | {item.metadata['help']} |"


def _value(hint: Any) -> str:
    kind, words = kind_and_words(hint)
    if words:
        return " or ".join([TYPE_NAMES[kind], *(f"`{word}`" for word in words)])
    if kind is bool:
        return "switch"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return f"{TYPE_NAMES[get_args(kind)[0]]}, ..."
    return TYPE_NAMES[kind]


def _default(item: Field[Any]) -> str:
    if item.default is MISSING:
        return "required"
    if item.default in (None, (), ""):
        return ""
    if isinstance(item.default, bool):
        return "on" if item.default else "off"
    return f"`{item.default}`"


def _demo() -> str:
    lines = [
        "## The demo",
        "",
        "`both` without `--data` and `--target` runs the bundled demo, with these settings in",
        "place of the defaults. A file or a flag may change each of them.",
        "",
        "| setting | value |",
        "|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{flag}` | {value} |" for flag, value in _demo_rows()), ""])


def _demo_rows() -> Iterator[tuple[str, str]]:
    for name, value in demo_settings().items():
        if name in {"data", "target"}:
            yield flag_of(name), f"the bundled {name}"
        elif value is True:
            yield flag_of(name), "on"
        else:
            text = ",".join(value) if isinstance(value, tuple) else value
            yield flag_of(name), f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
