"""The reference of commands is written by a program, and must be what it writes."""

import importlib.util
from pathlib import Path

import typer

from dflash_cache.cli.main import app

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_what_the_configuration_says() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.render(), "run: make reference"


def test_every_command_has_its_section_in_the_reference() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    names = typer.main.get_command(app).commands
    assert [name for name in names if f"\n## {name}\n" not in page] == []
