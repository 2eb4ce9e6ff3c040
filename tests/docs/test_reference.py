"""The pages of the reference that programs write are what these programs write."""

import importlib.util
from pathlib import Path

import pytest
import typer

from dflash_cache.cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["make_reference", "make_python_reference"])
def test_a_page_is_what_its_sources_say(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.render(), "run: make reference"


def test_every_command_has_its_section_in_the_reference() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    names = typer.main.get_command(app).commands
    assert [name for name in names if f"\n## {name}\n" not in page] == []
