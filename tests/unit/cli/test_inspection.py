"""What ``inspect`` shows, without colours."""

import io

from rich.console import Console

from dflash_cache.cli.inspection import inspect_tables


def test_what_is_learned_of_a_row_is_marked_without_colours_too():
    said = [{"text": "[hi] ", "learned": False}, {"text": "yes.", "learned": True}]
    row = {"row_id": 3, "input_ids": [5, 6], "loss_mask": [0, 1], "text": said, "left_out": None}
    report = {
        "dataset": "tokens", "rows": 1, "sequences": 1, "tokens": 2, "mask_share": 0.5,
        "dropped": {}, "dropped_first": {}, "warnings": [], "lengths": None, "row": row,
    }  # fmt: skip
    file = io.StringIO()
    for table in inspect_tables(report):
        Console(width=100, file=file).print(table)
    text = file.getvalue()
    assert "[hi] ⟦yes.⟧" in text
    assert "segment" not in text
