import io

from rich.console import Console

from dflash_cache.cli.tokens import regenerate_tables, tokenize_tables

REPORT = {
    "rows": 1200, "sequences": 1100, "tokens": 70000, "truncated": 3,
    "dropped": {"template": 98, "no_answer": 2},
    "dropped_first": {"template": "row 7: [INST] first", "no_answer": "row 9: none"},
    "lengths": {"shortest": 4, "median": 60, "percentile_95": 200, "longest": 3072},
    "mask_share": 0.4, "warnings": [], "mask_from": "turns", "out": "tokens[1]", "wall_s": 1.0,
}  # fmt: skip


def shown(**changes):
    file = io.StringIO()
    for table in tokenize_tables(REPORT | changes, "my target"):
        Console(width=200, file=file).print(table)
    return file.getvalue()


def test_what_was_left_out_is_shown_with_the_first_row_of_each_reason():
    text = shown()
    for words in (
        "98 template, first row 7: [INST] first",
        "2 no_answer, first row 9",
        "dflash-cache inspect 'tokens[1]' --row 0 --target 'my target'",
    ):
        assert words in text
    assert "WARNING" not in text


def test_warnings_have_a_table_of_their_own():
    assert "WARNING" in shown(warnings=["the loss mask is 1 on 99 %"])


def test_what_the_target_answered_is_shown_and_cut_answers_name_the_flag():
    report = {
        "rows": 1200, "resumed": 300, "chats": 1100, "answers": 2200, "tokens": 70000,
        "truncated": 3, "dropped": {"refused": 100}, "dropped_first": {"refused": "row 7: [a]"},
        "model": "m[1]", "out": "chats.jsonl",
    }  # fmt: skip
    file = io.StringIO()
    for table in regenerate_tables(report, None):
        Console(width=200, file=file).print(table)
    text = file.getvalue()
    for words in (
        "1,200, 300 of them by",
        "3, see --max-tokens",
        "first row 7: [a]",
        "m[1]",
        "tokenize chats",
    ):
        assert words in text
