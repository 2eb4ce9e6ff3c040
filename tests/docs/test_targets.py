"""The documented targets are those that are tested."""

from pathlib import Path

from tests.support.architectures import table

PAGE = Path(__file__).parents[2] / "docs/reference/targets.md"


def test_the_table_of_targets_is_the_tests_own() -> None:
    page, expected = PAGE.read_text(encoding="utf-8"), table()
    found = page[page.index("| model type") :].split("\n\n")[0]
    assert found == expected, f"the table of {PAGE.name} should be:\n{expected}"
