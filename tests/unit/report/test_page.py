"""The page about a run, from made-up files."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from dflash_cache.config import ReportConfig
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.report.charts import COLOURS, MOST_POINTS, shown, state_shares, thinned
from dflash_cache.report.page import render, report
from dflash_cache.report.run import Run
from tests.support.caches import SPEC

STAGES = {
    "prefetch": {"busy_s": 1.0, "starved_s": 2.0, "blocked_s": 1.0},
    "train": {"busy_s": 7.0, "starved_s": 1.0, "blocked_s": 0.0},
}
DECODED = {
    "steps": 3,
    "acceptance_length": 3.25,
    "lossless": 0.5,
    "mismatches": [{"prompt": 1, "position": 7, "gap": 0.25}],
    "speedup": 1.5,
    "tokens": 1234,
    "by_category": {"maths": {"acceptance_length": 4.0, "prompts": 2, "tokens": 99}},
    "untrained": {"acceptance_length": 1.01},
    "examples": [
        {
            "prompt": 1,
            "category": "maths",
            "prompt_end": [{"id": 9, "text": "Say\n"}],
            "first_token": {"id": 1, "text": "A"},
            "blocks": [
                {
                    "drafts": [
                        {"id": 2, "text": " list"},
                        {"id": 3, "text": "<script>x"},
                        {"id": 4},
                    ],
                    "accepted": 1,
                    "target_token": {"id": 5, "bytes": "e4bd"},
                },
                {"drafts": [{"id": 6, "text": "\x1b[1m"}], "accepted": 1, "target_token": None},
            ],
            "num_blocks": 9,
        }
    ],
}
SHARED = {
    "prompts": 2,
    "held_out": True,
    "temperature": 0.0,
    "prompt_lookup": {"acceptance_length": 1.4, "speedup": 1.1},
}
EVALUATED_WITH = {"drafter": ["run/export"], "new_tokens": 64, "dtype": "float32", "device": "cpu"}


def line(step):
    return {
        "step": step,
        "epoch": 0,
        "loss": 9.0 - step,
        "block_acceptance_length": 1 + step / 10,
        "slot_accuracy": [0.5, 0.4, 0.3, 0.2, 0.2, 0.1, 0.1],
        "lr": 1e-3,
        "tokens": 100 * step,
        "tokens_per_s": 50.0,
        "waiting_share": 0.25,
    }


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def started(folder, steps=3):
    """A run that goes on: its folder."""
    record = {"cache": replace(SPEC, target="<b>T</b>").as_dict(), "num_rows": 90}
    record["settings"] = {}
    write(folder / "run.json", record | {"held_out_rows": [1, 2]})
    write(folder / "train.json", {"cache": "c", "target_layers": [], "keep_best": True, "lr": 1e-3})
    lines = "".join(json.dumps(line(step)) + "\n" for step in range(1, steps + 1))
    write(folder / "metrics.jsonl", lines)
    return folder


def finished(folder):
    """A run with all that it can have."""
    started(folder)
    measured = {"step": 2, "held_out_block_acceptance_length": 2.0, "held_out_slot_accuracy": [0.1]}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(measured) + "\n")
    held_out = {"steps": 3, "block_acceptance_length": 2.5, "slot_accuracy": [0.5, 0.25]}
    write(folder / "export/training.json", held_out)
    trained = {"stages": STAGES, "waiting_share": 0.125, "wall_s": 7300}
    size = {"address": "c", "segments": 4, "num_sequences": 88, "num_tokens": 7654}
    size |= {"bytes_raw": 4_000_000_000, "bytes_stored": 3_000_000_000}
    write(folder / "report.json", {"extract": {"stages": STAGES}, "train": trained, "cache": size})
    evaluated(folder)
    return folder


def evaluated(folder, **changes):
    saved = {"config": EVALUATED_WITH, "measured": "2030-01-02T03:04:05+00:00"}
    write(folder / "evaluation.json", saved | {"report": DECODED | SHARED | changes})


class Page(HTMLParser):
    """The text, the ids and the attributes that name something outside."""

    def __init__(self, html):
        super().__init__()
        self.text, self.ids, self.references, self.open = "", [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in {"src", "href", "xlink:href"}:
                self.references.append(value)
        if tag not in {"meta", "link", "path", "use", "rect", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += f"{data.strip()} " if data.strip() else ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of a finished run."""
    return render(Run.load(finished(tmp_path_factory.mktemp("whole") / "run")))


def page_of(folder):
    return Page(render(Run.load(folder)))


def test_the_page_shows_what_a_finished_run_has(whole):
    text = Page(whole).text
    for words in (
        "8.000 → 6.000",  # loss
        "held out 2.50",
        "length, decoded 3.25",
        "the drafter of step 3, 2030-01-02 03:04 UTC.",
        "waiting for data 12.5%",
        "2.0 h",
        "Accuracy by slot",
        "Learning rate",
        "Throughput",
        "held-out rows",
        "prefetch 1.0 s, 25% 2.0 s, 50% 1.0 s, 25%",
        "trained drafter 3.25 50.0% 1.50 1,234",
        "untrained drafter 1.01",
        "prompt lookup 1.40 1.10",
        "maths 4.00 2 99",
        "1 7 0.25",
        "3.00 GB, 75.0% of 4.00 GB",
        "float32, lz4",
        "keep-best on",
        "target-layers not set",
    ):
        assert words in text, words


def test_of_an_example_each_token_is_marked_by_what_became_of_it(whole):
    written = re.findall(
        r'<(\w+) class="token (\w+)">([^<]*)</\1>', whole.partition("Prompt 1,")[2]
    )
    assert written == [
        ("strong", "target", "A"),
        ("span", "accepted", " list"),
        ("strong", "target", "«e4 bd»"),
        ("del", "rejected", "&lt;script&gt;x"),
        ("del", "rejected", "#4"),
        ("span", "accepted", "\\x1b[1m"),
    ]
    text = Page(whole).text
    for words in ("The prompt ends: Say↵", "1 of 3", "1 of 1", "The first 2 of 9 blocks."):
        assert words in text, words
    style = whole.partition("</style>")[0]
    for kind, mark in (
        ("rejected", "text-decoration: line-through"),
        ("target", "font-weight: 700"),
    ):
        assert mark in re.search(rf"\.{kind} \{{[^}}]*\}}", style)[0]


def test_a_run_evaluated_before_there_were_examples_has_none_on_its_page(tmp_path):
    folder = finished(tmp_path / "run")
    older = {key: value for key, value in DECODED.items() if key != "examples"} | SHARED
    write(folder / "evaluation.json", {"config": EVALUATED_WITH, "report": older})
    text = page_of(folder).text
    assert "trained drafter 3.25" in text
    assert "not accepted" not in text


def test_figures_of_a_drafter_of_an_earlier_step_say_so(tmp_path):
    folder = finished(tmp_path / "run")
    evaluated(folder, steps=2)
    assert "length, decoded at step 2 3.25" in page_of(folder).text


@pytest.mark.parametrize("steps", [{}, {"steps": None}], ids=["older file", "drafter of others"])
def test_an_evaluation_may_not_know_the_step_or_when_it_was(steps, tmp_path):
    folder = finished(tmp_path / "run")
    report = {key: value for key, value in DECODED.items() if key != "steps"} | SHARED | steps
    write(folder / "evaluation.json", {"config": EVALUATED_WITH, "report": report})
    text = page_of(folder).text
    assert "length, decoded 3.25" in text
    assert "float32 on cpu." in text


def test_an_export_of_another_step_in_the_runs_place_has_no_held_out_figure(tmp_path):
    folder = finished(tmp_path / "run")
    write(folder / "export/training.json", {"steps": 2})
    text = page_of(folder).text
    assert "held out 2.50" not in text
    assert "length, decoded 3.25" in text


def test_an_extraction_that_left_no_stages_is_said_to_be_unknown(tmp_path, whole):
    folder = finished(tmp_path / "run")
    trained = json.loads((folder / "report.json").read_text())["train"]
    write(folder / "report.json", {"train": trained})
    assert "another command made the cache" in page_of(folder).text
    assert "another command made the cache" not in whole


def test_several_drafters_have_a_row_each(tmp_path):
    folder = finished(tmp_path / "run")
    drafters = {"a/export": DECODED, "b/export": DECODED | {"acceptance_length": 2.125}}
    config = EVALUATED_WITH | {"drafter": list(drafters)}
    write(folder / "evaluation.json", {"config": config, "report": SHARED | {"drafters": drafters}})
    text = page_of(folder).text
    assert "a/export 3.25 50.0%" in text
    assert "b/export 2.12 50.0%" in text
    assert "By category of b/export" in text
    assert "Prompt 1, maths, drafts of b/export" in text


def test_a_run_that_goes_on_has_a_page_too(tmp_path):
    text = page_of(started(tmp_path / "run")).text
    assert "3 so far" in text
    assert "Not evaluated yet" in text
    assert "Known once a start of the run has come to its end" in text


def test_a_run_without_a_step_has_a_page_too(tmp_path):
    assert "No step is logged yet" in page_of(started(tmp_path / "run", steps=0)).text


def test_a_single_step_is_a_point(tmp_path):
    assert "1 so far" in page_of(started(tmp_path / "run", steps=1)).text


def test_the_page_asks_for_nothing_from_outside(whole):
    outside = [each for each in Page(whole).references if not each.startswith(("#", "data:"))]
    assert outside == []
    assert "<script" not in whole
    assert "default-src 'none'" in whole
    addresses = re.findall(r'(\S+)="https?://', whole)
    assert set(addresses) <= {"xmlns", "xmlns:xlink"}  # names, which nobody fetches


def test_charts_take_their_colours_from_the_style_sheet(whole):
    style, _, body = whole.partition("</style>")
    assert not [colour for colour in COLOURS.values() if colour in whole]
    used = set(re.findall(r"var\(--([\w-]+)\)", body))
    assert used >= {"text", "grid", "line-1", "line-2", "busy", "starved", "blocked"}
    schemes = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)
    assert len(schemes) == 3  # light, dark, print
    for scheme in schemes:
        assert used <= set(re.findall(r"--([\w-]+):", scheme))
    assert not re.findall(r"#(?!000000|ffffff)[0-9a-f]{6}", body)


def test_ids_are_unique_over_all_charts_and_each_reference_has_one(whole):
    page = Page(whole)
    assert len(page.ids) == len(set(page.ids)) > 0
    assert {each[1:] for each in page.references if each.startswith("#")} <= set(page.ids)


def test_the_same_run_gives_the_same_page(tmp_path, whole):
    assert render(Run.load(finished(tmp_path / "run"))) == whole


def test_names_from_files_are_text_and_no_markup(tmp_path):
    html = render(Run.load(started(tmp_path / "run")))
    assert "<b>T</b>" not in html
    assert "&lt;b&gt;T&lt;/b&gt;" in html


def test_the_page_lies_in_the_run_or_where_it_is_told(tmp_path):
    run = started(tmp_path / "run")
    written = report(ReportConfig(run=run))
    assert written["page"] == str(run / "report.html")
    assert written["bytes"] == (run / "report.html").stat().st_size < 300_000
    assert report(ReportConfig(run=run, out=tmp_path / "x.html"))["page"].endswith("x.html")
    assert (tmp_path / "x.html").read_bytes() == (run / "report.html").read_bytes()


def test_a_folder_that_is_no_run_is_refused_with_the_next_command(tmp_path):
    with pytest.raises(ConfigError, match=r"no run: it has no run.json. Make one with: dflash-cac"):
        report(ReportConfig(run=tmp_path))


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    run = started(tmp_path / "run")
    for place in (tmp_path / "none" / "x.html", tmp_path):
        with pytest.raises(ConfigError, match=r"is a folder; name a file|no folder that can be"):
            report(ReportConfig(run=run, out=place))


@pytest.mark.parametrize("name", ["run.json", "train.json", "evaluation.json"])
def test_a_damaged_file_is_named(name, tmp_path):
    folder = finished(tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(DataError, match=re.escape(str(folder / name))):
        Run.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("evaluation.json", {"report": {}}, "has no config"),
        ("evaluation.json", {"config": EVALUATED_WITH, "report": 5}, "it.report is no object"),
        ("evaluation.json", {"config": EVALUATED_WITH, "report": SHARED}, "no acceptance_length"),
        ("export/training.json", {"slot_accuracy": [0.5]}, "it has no steps"),
        ("export/training.json", {"steps": 3, "slot_accuracy": [None]}, "accuracy.0. is 'None'"),
        ("run.json", {"cache": {}, "settings": {}, "num_rows": 9}, "it has no held_out_rows"),
    ],
)
def test_a_file_that_holds_something_else_is_named(name, content, message, tmp_path):
    folder = finished(tmp_path / "run")
    write(folder / name, content)
    with pytest.raises(DataError, match=f"{re.escape(str(folder / name))} is damaged.*{message}"):
        Run.load(folder)


def test_what_is_no_report_of_a_start_is_left_out_alone(tmp_path):
    folder = finished(tmp_path / "run")
    kept = json.loads((folder / "report.json").read_text())
    write(folder / "report.json", kept | {"extract": 5, "cache": {"address": "c"}})
    text = page_of(folder).text
    assert "another command made the cache" in text
    assert "prefetch 1.0 s" in text
    assert "Its size is known once a start" in text


def test_settings_are_shown_as_they_were_given(tmp_path):
    folder = finished(tmp_path / "run")
    write(folder / "train.json", {"out": "runs/v1.0", "clip_norm": 1.0, "lr": 6e-4, "steps": 20})
    for words in ("out runs/v1.0 ", "clip-norm 1 ", "lr 0.0006 ", "steps 20 "):
        assert words in page_of(folder).text


@pytest.mark.parametrize(
    "added",
    [
        b"5",
        b'{"loss": 1}',
        b'{"step": 9, "loss": null, "tokens": 3}',
        b'{"step": 9, "loss": "x"}',
        b'{"step": 9}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_line_of_metrics_that_holds_something_else_is_named(added, tmp_path):
    folder = started(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(added + b"\n")
    with pytest.raises(DataError, match=r"metrics.jsonl, line 4: .*; remove that line"):
        Run.load(folder)


def test_a_damaged_line_of_metrics_is_named_and_one_that_is_being_written_is_left_out(tmp_path):
    folder = started(tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole + '{"step": 4, "lo')
    assert [each["step"] for each in Run.load(folder).metrics] == [1, 2, 3]
    (folder / "metrics.jsonl").write_text(whole.replace('{"step": 2', "{step: 2"))
    with pytest.raises(DataError, match=r"metrics.jsonl, line 2"):
        Run.load(folder)


def test_a_long_run_is_thinned_to_means_and_ends_at_its_last_step():
    steps, values = np.arange(1, 10_001), np.arange(10_000) % 2.0
    few_steps, means = thinned(steps, values)
    assert len(few_steps) == len(means) == MOST_POINTS
    assert few_steps[-1] == 10_000
    assert np.allclose(means, 0.5, atol=0.05)
    assert thinned(steps[:7], values[:7])[0].tolist() == steps[:7].tolist()


def test_shares_of_a_stage_add_up_and_are_zero_for_one_that_never_ran():
    assert state_shares(STAGES["prefetch"]) == {"busy": 0.25, "starved": 0.5, "blocked": 0.25}
    never = dict.fromkeys(("busy_s", "starved_s", "blocked_s"), 0.0)
    assert set(state_shares(never).values()) == {0.0}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0006, "0.0006"), (1.5, "1.5"), (9999, "9,999"), (12_000, "12k"), (2.5e6, "2.5M"),
     (3e9, "3G"), (0, "0")],
)  # fmt: skip
def test_figures_at_an_axis_are_short(value, text):
    assert shown(value) == text
