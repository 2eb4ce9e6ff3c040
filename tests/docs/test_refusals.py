"""The documented refusals are what the commands print."""

from tests.support.refusals import PAGE, page


def test_every_refusal_says_what_its_page_says() -> None:
    assert page() == PAGE.read_text(encoding="utf-8")
