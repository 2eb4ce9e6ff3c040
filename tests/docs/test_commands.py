"""The commands of the documentation work.

Every ``dflash-cache`` command line in a ```bash block runs, also those under torchrun and on a Ray
cluster, with the tiny target, a small dataset and cache and a served target in the place of what it
names, and with less of everything.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_cache import demo
from tests.support import refusals
from tests.support.chat_server import ChatServer
from tests.support.launched import RayCluster
from tests.support.pages import ROOT, blocks, command_lines, page_name, pages_with
from tests.support.workshop import Workshop

PROGRAM = "dflash-cache "
STARTS = (PROGRAM, "torchrun ")
OTHER_PROGRAMS = {  # of the shell, of the system, and those that install, serve or look
    ".", "export", "find", "make", "mkdir", "pip", "python", "python3", "tensorboard", "vllm",
}  # fmt: skip
OF_THE_SHELL = ("TARGET=", "export ", "find ", "mkdir ", "python -c ", "python3 -m venv ")
TUTORIAL = ROOT / "docs/tutorials/first-drafter.md"
OF_TUTORIAL = '"$TARGET"'  # those lines belong together, and run in one folder
WAY = ("regenerate", "tokenize", "inspect", "plan", "both", "evaluate", "report", "export")
SMALLER = {  # put behind a command: of a flag that is given twice the last one counts
    "regenerate": "--limit 12 --max-tokens 8",
    "both": "--steps 2",
    "evaluate": "--prompts 1 --new-tokens 4",
}
LINES = sorted({line for page in pages_with("bash") for _, line in command_lines(page)})
RUN = [line for line in LINES if line.startswith(STARTS) and OF_TUTORIAL not in line]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("workshop")
    server = ChatServer(folder, target=demo.TARGET).start()
    yield Workshop(folder, server.address)
    server.kill()


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("line", RUN)
@pytest.mark.usefixtures("bucket")
# What torch's compiler imports of torch warns on import.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_command_runs(line: str, workshop: Workshop, request: pytest.FixtureRequest) -> None:
    on_ray = "--engine ray" in line
    workshop.run(line, request.getfixturevalue("cluster") if on_ray else None)


def test_every_line_is_a_command_of_this_program_or_of_a_known_other() -> None:
    others = {
        next(word for word in shlex.split(line) if "=" not in word)
        for line in LINES
        if not line.startswith((*STARTS, "TARGET="))
    }
    assert others == OTHER_PROGRAMS


def test_the_way_from_chats_to_a_drafter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (chats,) = (text for _, text in blocks(TUTORIAL, "python") if "prompts.jsonl" in text)
    exec(compile(chats, str(TUTORIAL), "exec"), {"__name__": "snippet"})
    own = [line for _, line in command_lines(TUTORIAL) if line.startswith(PROGRAM)]
    lines = [line.removeprefix(PROGRAM) for line in own]
    first = next(number for number, line in enumerate(lines) if line.startswith(WAY[0]))
    way = lines[first : first + len(WAY)]
    assert tuple(line.split()[0] for line in way) == WAY
    for line in way:
        command = line.replace('"$TARGET"', "TARGET") + f" {SMALLER.get(line.split()[0], '')}"
        code, errors = refusals.run(command)
        assert code == 0, f"{line}: {errors}"
    for made in ("run/report.html", "run/evaluation.json", "drafter/model.safetensors"):
        assert (tmp_path / made).stat().st_size


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(OF_THE_SHELL)])
def test_a_line_of_the_shell_runs(line: str, tmp_path: Path) -> None:
    line = line.replace("/mnt/", "mnt/")
    assert not re.search(r"(?<=\s)[/~]", line), "it could reach something of this machine"
    (tmp_path / "mnt/a/whole").mkdir(parents=True)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-c", line],
        cwd=tmp_path, env=os.environ | {"PATH": programs}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_extras_that_are_installed_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for line in LINES for extra in re.findall(r"pip install .*\[([\w-]+)\]", line)}
    assert named <= project["optional-dependencies"].keys()
    assert named


@pytest.mark.parametrize("page", pages_with("bash"), ids=page_name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for place, line in command_lines(page):
        if line.startswith("make "):
            names = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
            assert all(f"\n{name}:" in makefile for name in names), f"{place}: {line}"
