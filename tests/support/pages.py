"""The pages of the documentation, and what stands in their blocks."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def command_lines(page: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of each command; one that is written over several lines is one."""
    for first_line, block in blocks(page, "bash"):
        for command in block.replace("\\\n", " ").splitlines():
            if command.strip():
                yield f"{page_name(page)}:{first_line}", command.strip()
