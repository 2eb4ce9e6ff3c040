"""The commands of the documentation work.

Every ``dflash-cache`` command line in a ```bash block runs, with the tiny target, a small dataset
and cache and a served target in the place of what it names, and with less of everything. What
cannot run so is taken by the program at least.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dflash_cache import demo
from dflash_cache.cli.main import app
from tests.support import refusals
from tests.support.chat_server import ChatServer
from tests.support.pages import ROOT, blocks, command_lines, page_name, pages_with
from tests.support.workshop import Workshop

PROGRAM = "dflash-cache "
COMMANDS = typer.main.get_command(app).commands
# Their like runs in tests/integration/test_ray.py, tests/unit/target/test_compilation.py and
# tests/integration/test_ranks.py.
TAKEN_ALONE = ("--engine ray", "--compile", "torchrun ")
OTHER_PROGRAMS = {  # of the shell, of the system, and those that install, serve or look
    ".", "export", "find", "make", "mkdir", "pip", "python", "python3", "tensorboard", "vllm",
}  # fmt: skip
TUTORIAL = ROOT / "docs/tutorials/first-drafter.md"
OF_TUTORIAL = '"$TARGET"'  # those lines belong together, and run in one folder
WAY = ("regenerate", "tokenize", "inspect", "plan", "both", "evaluate", "report", "export")
SMALLER = {  # put behind a command: of a flag that is given twice the last one counts
    "regenerate": "--limit 12 --max-tokens 8",
    "both": "--steps 2",
    "evaluate": "--prompts 1 --new-tokens 4",
}
LINES = sorted({line for page in pages_with("bash") for _, line in command_lines(page)})
RUN = [
    line.removeprefix(PROGRAM)
    for line in LINES
    if line.startswith(PROGRAM) and not any(word in line for word in (*TAKEN_ALONE, OF_TUTORIAL))
]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("workshop")
    server = ChatServer(folder, target=demo.TARGET).start()
    yield Workshop(folder, server.address)
    server.kill()


@pytest.mark.parametrize("command", RUN)
@pytest.mark.usefixtures("bucket")
def test_a_command_runs(command: str, workshop: Workshop) -> None:
    workshop.run(command)


@pytest.mark.parametrize("words", TAKEN_ALONE)
def test_a_command_that_cannot_run_here_is_one_the_program_takes(words: str) -> None:
    lines = [line for line in LINES if words in line]
    assert lines
    for line in lines:
        ours = line.partition("-m dflash_cache.cli ")[2] or line.removeprefix(PROGRAM)
        name, *flags = shlex.split(ours, comments=True)
        COMMANDS[name].make_context(name, flags)


def test_every_line_is_a_command_of_this_program_or_of_a_known_other() -> None:
    others = {
        next(word for word in shlex.split(line) if "=" not in word)
        for line in LINES
        if not line.startswith((PROGRAM, "torchrun ", "TARGET="))
    }
    assert others == OTHER_PROGRAMS


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
