"""What the documentation shows works.

Convention: every ```python block of README.md and docs/ runs, in order, with one namespace a page.
``cache_path`` is bound to a small finished cache, and the working directory is an empty folder.
Commands in ```bash blocks are parsed by the program itself and not run, but for the tutorial's way
from chats to a drafter, with less of everything. Keys in ```toml blocks are settings. Links to
files of the repository lead somewhere.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dflash_cache import demo
from dflash_cache.cli.main import app
from dflash_cache.config import (
    BothConfig,
    EvaluateConfig,
    ExportConfig,
    ExtractConfig,
    TokenizeConfig,
    VerifyConfig,
)
from dflash_cache.runs.extract import extract
from dflash_cache.settings import options_of
from tests.support import refusals

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CONFIGS = (BothConfig, EvaluateConfig, ExportConfig, VerifyConfig, TokenizeConfig)
SETTINGS = {item.name for each in CONFIGS for item, _ in options_of(each)}
TUTORIAL = ROOT / "docs/tutorials/first-drafter.md"
WAY = ("regenerate", "tokenize", "inspect", "plan", "both", "evaluate", "report", "export")
SMALLER = {  # put behind a command: of a flag that is given twice the last one counts
    "regenerate": "--limit 12 --max-tokens 8",
    "both": "--steps 2",
    "evaluate": "--prompts 1 --new-tokens 4",
}
COMMANDS = typer.main.get_command(app).commands


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Each block's first line number and its text."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found.group(2))
        for found in BLOCK.finditer(text)
        if found.group(1) == language
    ]


def command_lines(page: Path) -> Iterator[tuple[str, str]]:
    for first_line, block in blocks(page, "bash"):
        for command in block.replace("\\\n", " ").splitlines():
            if command.strip():
                yield f"{page_name(page)}:{first_line}", command.strip()


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.fixture(scope="session")
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of 24 rows of the demo, in bfloat16, as a cache for a real target is."""
    path = tmp_path_factory.mktemp("docs") / "cache"
    extract(
        ExtractConfig(
            data=demo.DATA,
            target=str(demo.TARGET),
            cache=path,
            limit=24,
            segment_tokens=2048,
            dtype="bfloat16",
            devices=("cpu",),
        )
    )
    return path


@pytest.mark.parametrize("page", pages_with("python"), ids=page_name)
def test_python_blocks_run(
    page: Path, cache_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "snippet", "cache_path": cache_path}
    for first_line, block in blocks(page, "python"):
        padded = "\n" * (first_line - 1) + block  # a trace names the page's own lines
        exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", pages_with("bash"), ids=page_name)
def test_command_lines_are_ones_the_program_takes(page: Path) -> None:
    for place, line in command_lines(page):
        program, *arguments = shlex.split(line, comments=True)
        if program == "torchrun":
            module = arguments.index("-m")
            assert arguments[module + 1] == "dflash_cache.cli", f"{place}: {line}"
            program, arguments = "dflash-cache", arguments[module + 2 :]
        if program != "dflash-cache" or arguments in (
            ["--help"],
            ["--version"],
            ["--install-completion"],
        ):
            continue
        name, *flags = arguments
        assert name in COMMANDS, f"{place}: {line}"
        try:
            COMMANDS[name].make_context(name, flags)
        except typer.Exit:
            assert "--help" in flags
        except Exception as error:
            raise AssertionError(f"{place}: {line}: {error}") from error


def test_the_way_from_chats_to_a_drafter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (chats,) = (text for _, text in blocks(TUTORIAL, "python") if "prompts.jsonl" in text)
    exec(compile(chats, str(TUTORIAL), "exec"), {"__name__": "snippet"})
    lines = [line.removeprefix("dflash-cache ") for _, line in command_lines(TUTORIAL)]
    first = next(number for number, line in enumerate(lines) if line.startswith(WAY[0]))
    way = [line for line in lines[first:] if line.split()[0] in COMMANDS][: len(WAY)]
    assert tuple(line.split()[0] for line in way) == WAY
    for line in way:
        command = line.replace('"$TARGET"', "TARGET") + f" {SMALLER.get(line.split()[0], '')}"
        code, errors = refusals.run(command)
        assert code == 0, f"{line}: {errors}"
    for made in ("run/report.html", "run/evaluation.json", "drafter/model.safetensors"):
        assert (tmp_path / made).stat().st_size


@pytest.mark.parametrize("page", pages_with("bash"), ids=page_name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for place, line in command_lines(page):
        if line.startswith("make "):
            names = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
            assert all(f"\n{name}:" in makefile for name in names), f"{place}: {line}"


@pytest.mark.parametrize("page", pages_with("toml"), ids=page_name)
def test_settings_in_toml_blocks_exist(page: Path) -> None:
    for first_line, block in blocks(page, "toml"):
        names = {name.replace("-", "_") for name in tomllib.loads(block)}
        assert names <= SETTINGS, f"{page_name(page)}:{first_line}: {names - SETTINGS}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    links = LINK.findall(index.read_text(encoding="utf-8"))
    reached = {(index.parent / target).resolve() for target in links}
    pages = {page.resolve() for page in PAGES if page not in (index, ROOT / "README.md")}
    assert pages <= reached
