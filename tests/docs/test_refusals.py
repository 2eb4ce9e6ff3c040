"""The documented refusals are what the commands print."""

from tests.support.refusals import PAGE, page


def test_every_refusal_says_what_its_page_says(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert page() == PAGE.read_text(encoding="utf-8")
