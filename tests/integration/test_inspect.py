"""What ``inspect`` shows. Axes in names: T tokens, K layers, H hidden size."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from transformers import AutoTokenizer

from dflash_cache import demo
from dflash_cache.cache import Cache, float32_states, uncommit, writer_lock
from dflash_cache.config import InspectConfig
from dflash_cache.errors import CacheIncompleteError, CacheMismatchError, ConfigError
from dflash_cache.runs.extract import extract
from dflash_cache.runs.inspect import inspect
from dflash_cache.target import LayerCapture
from tests.support.refusals import DATA, write_rows
from tests.support.runs import extract_config
from tests.support.tiny_targets import save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("inspect")
    extract(extract_config(made, codec="fp8", limit=12))
    return made


def show(folder, **changes):
    return inspect(InspectConfig(cache=str(folder / "cache"), **changes))


def run(folder, *arguments):
    command = [sys.executable, "-m", "dflash_cache.cli", "inspect", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_sizes_and_lengths_are_those_of_the_cache(folder):
    report, cache = show(folder), Cache.open(folder / "cache")
    lengths = np.concatenate([segment.lengths for segment in cache.plan])
    assert report["segments"] == report["segments_planned"] == len(cache.plan)
    assert report["sequences"] == 12 == sum(p["rows"] for p in report["lengths"]["histogram"])
    assert report["tokens"] == lengths.sum()
    assert report["lengths"]["shortest"] == lengths.min()
    assert report["lengths"]["longest"] == lengths.max()
    for part in report["lengths"]["histogram"]:
        inside = (part["from"] <= lengths) & (lengths <= part["to"])
        assert part["rows"] == inside.sum()
    assert report["bytes_raw"] == lengths.sum() * cache.spec.token_bytes
    assert report["codec"] == "fp8"
    assert report["writer"] is None
    assert report["identity"] == cache.spec.as_dict()


def test_an_unfinished_cache_shows_what_is_done_of_what_is_planned(tmp_path):
    extract(extract_config(tmp_path, limit=12))
    cache = Cache.open(tmp_path / "cache")
    gone = max(cache.segments)
    uncommit(cache, {gone})
    report = show(tmp_path)
    assert (report["segments"], report["segments_planned"]) == (gone, gone + 1)
    assert report["sequences"] == 12 - len(cache.plan[gone].row_ids)
    row = int(cache.plan[gone].row_ids[0])
    with pytest.raises(ConfigError, match=f"--row {row}: its segment is not extracted yet"):
        show(tmp_path, row=row)
    uncommit(cache, set(cache.segments))
    assert show(tmp_path)["lengths"] is None
    with pytest.raises(CacheIncompleteError, match="holds no sequence yet"):
        show(tmp_path, quality=True)


def test_dropped_rows_are_counted_by_reason_and_are_in_no_length(tmp_path, monkeypatch):
    exact = LayerCapture.hidden_states

    def spoiled(capture, sequences, check=lambda: None):
        states = exact(capture, sequences, check).clone()
        states[0] = np.nan
        return states

    monkeypatch.setattr(LayerCapture, "hidden_states", spoiled)
    extract(extract_config(tmp_path, limit=12, max_dropped=1.0))
    report = show(tmp_path)
    rows = [row.row_id for row in Cache.open(tmp_path / "cache").ledger]
    assert report["dropped"] == {"non_finite": len(rows)}
    counted = sum(part["rows"] for part in report["lengths"]["histogram"])
    assert counted == report["sequences"] == 12 - len(rows)
    with pytest.raises(ConfigError, match=f"--row {rows[0]}: it was left out, for non_finite"):
        show(tmp_path, row=rows[0])


def test_a_row_shows_its_ids_mask_and_norms(folder):
    cache = Cache.open(folder / "cache")
    plan = cache.plan[-1]
    row = int(plan.row_ids[-1])
    shown, segment = show(folder, row=row)["row"], cache.read(plan.index)
    start, stop = segment.offsets[-2:]
    assert (shown["row_id"], shown["segment"]) == (row, plan.index)
    assert shown["input_ids"] == segment.input_ids[start:stop].tolist()
    assert shown["loss_mask"] == segment.loss_mask[start:stop].tolist()
    norms_TK = np.linalg.norm(float32_states(segment)[start:stop], axis=2)
    assert [layer["layer"] for layer in shown["layers"]] == list(cache.spec.target_layer_ids)
    for name, expected in (("smallest", norms_TK.min(0)), ("largest", norms_TK.max(0))):
        found = [layer[f"norm_{name}"] for layer in shown["layers"]]
        np.testing.assert_allclose(found, expected)


def test_a_row_that_no_dataset_has_is_refused(folder):
    with pytest.raises(ConfigError, match=r"--row 999: .*cache has rows 0..11"):
        show(folder, row=999)


def test_the_quality_of_8_bit_states_is_measured_layer_by_layer(folder):
    report = show(folder, quality=True, sample=5)["quality"]
    assert report["rows"] == 5
    for layer in report["layers"]:
        assert 0.02 < layer["relative_error"] < 0.03
        assert 0.999 < layer["cosine"] < 1
        assert 1 / 256 <= layer["saturated"] < 0.02  # each token's largest value is


def test_lossless_states_differ_by_what_recomputation_gives(tmp_path):
    extract(extract_config(tmp_path, limit=6))
    report = show(tmp_path, quality=True, sample=99)["quality"]
    assert report["rows"] == 6
    for layer in report["layers"]:
        assert layer["relative_error"] < 1e-5
        assert layer["cosine"] == pytest.approx(1)
        assert layer["saturated"] == 0


def test_quality_against_another_dataset_is_refused(folder, tmp_path):
    other = tmp_path / "rows.jsonl"
    other.write_text(json.dumps({"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}) + "\n")
    with pytest.raises(CacheMismatchError, match="dataset_fingerprint"):
        show(folder, quality=True, data=other)
    assert show(folder, quality=True, sample=1, data=demo.DATA)["quality"]["rows"] == 1


def test_quality_against_another_target_is_refused(folder, tmp_path):
    with pytest.raises(CacheMismatchError, match="target_weights_hash"):
        show(folder, quality=True, target=str(save_target(tmp_path / "other")))


def test_the_command_takes_the_cache_with_and_without_its_flag(folder):
    alone, flag = run(folder, "cache"), run(folder, "--cache", "cache", "--row", "3")
    assert alone[0] == flag[0] == 0
    first, second = json.loads(alone[1].splitlines()[-1]), json.loads(flag[1].splitlines()[-1])
    assert second.pop("row")["row_id"] == 3
    assert first == second == json.loads(json.dumps(show(folder)))
    assert run(folder)[0] == 2
    code, _, message = run(folder, "cache", "--cache", "other")
    assert code == 2
    assert "give one of them" in message


def test_whoever_writes_the_cache_is_named(folder):
    with writer_lock(folder / "cache"):
        report = json.loads(run(folder, "cache")[1].splitlines()[-1])
    assert set(report["writer"]) == {"host", "pid", "since"}


@pytest.mark.parametrize(
    ("more", "imported"), [("", "set()"), ("'--row', '3'", "{'datasets'}")], ids=["cache", "row"]
)
def test_torch_is_not_imported_and_the_datasets_library_for_a_text_alone(folder, more, imported):
    program = (
        "import sys\nfrom dflash_cache.cli.main import app\n"
        f"app(['inspect', 'cache', {more}], standalone_mode=False)\n"
        "sys.exit(str({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == imported


def test_a_dataset_is_looked_into_before_there_is_a_target(tmp_path):
    good = {"input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]}
    rows = [good] * 8 + [good | {"loss_mask": [0, 1]}, good | {"input_ids": [], "loss_mask": []}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    report = inspect(InspectConfig(cache=str(tmp_path / "rows.parquet")))
    assert (report["rows"], report["sequences"], report["tokens"]) == (10, 8, 32)
    assert report["dropped"] == {"mask_length": 1, "empty": 1}
    assert report["dropped_first"]["mask_length"] == "row 8 loss_mask has 2 values for 4 ids"
    assert report["mask_share"] == 0.5
    assert report["warnings"] == []
    with pytest.raises(ConfigError, match=r"--quality is of a cache"):
        inspect(InspectConfig(cache=str(tmp_path / "rows.parquet"), quality=True))
    with pytest.raises(ConfigError, match=r"--row 10: .*rows.parquet has rows 0\.\.9"):
        inspect(InspectConfig(cache=str(tmp_path / "rows.parquet"), row=10))


@pytest.mark.parametrize(("flag", "words"), [(0, "answers are tiny"), (1, "plain text")])
def test_a_mask_that_learns_from_nothing_or_everything_is_a_warning(tmp_path, flag, words):
    rows = [{"input_ids": [5, 6, 7, 8], "loss_mask": [flag] * 4}] * 8
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (warning,) = inspect(InspectConfig(cache=str(tmp_path / "rows.parquet")))["warnings"]
    assert words in warning


def test_the_text_of_a_row_is_in_runs_of_its_mask(folder):
    target = str(demo.TARGET)
    of_cache = show(folder, row=3)["row"]
    of_data = inspect(InspectConfig(cache=str(demo.DATA), row=3, target=target))["row"]
    assert of_cache["input_ids"] == of_data["input_ids"]
    assert of_cache["text"] == of_data["text"]
    assert [run["learned"] for run in of_data["text"]] == [False, True]
    assert of_data["text"][0]["text"].startswith("<|im_start|>user\n")
    whole = AutoTokenizer.from_pretrained(target).decode(of_data["input_ids"])
    assert "".join(run["text"] for run in of_data["text"]) == whole
    assert inspect(InspectConfig(cache=str(demo.DATA), row=3))["row"]["text"] is None
    with pytest.raises(ConfigError, match=r"--target .* gives no tokenizer.json"):
        show(folder, row=3, target=str(folder))


@pytest.mark.parametrize("name", ["null-id", "negative-id", "large-id", "short-mask", "mask-of-2"])
def test_a_bad_row_of_a_dataset_is_shown_with_what_is_wrong(tmp_path, name):
    write_rows(tmp_path / "rows.parquet", DATA[name][1])
    looked = InspectConfig(cache=str(tmp_path / "rows.parquet"), row=3, target=str(demo.TARGET))
    if name == "large-id":  # a dataset alone does not say how large the vocabulary is
        with pytest.raises(ConfigError, match=r"its tokenizer has ids 0\.\.4095, and the row has"):
            inspect(looked)
        return
    row = inspect(looked)["row"]
    json.dumps(row, allow_nan=False)
    assert row["left_out"]
    assert row["text"] is None
    (whole,) = (inspect(replace(looked, row=4))["row"],)
    assert (whole["left_out"], whole["input_ids"]) == (None, [5, 6, 7, 8])
    assert [run["learned"] for run in whole["text"]] == [False, True]


def test_a_folder_that_is_neither_cache_nor_dataset_is_said_to_be_no_cache(folder, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is no cache: it has no spec\.json"):
        inspect(InspectConfig(cache=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"--split train: .* is no dataset"):
        show(folder, split="train")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, r"run does not exist; name a cache, or a dataset"),
        ("run.json", r"folder of a run.*: dflash-cache report .*run$"),
        ("training.json", r"is a drafter.*: dflash-cache evaluate --target M --drafter .*run "),
    ],
    ids=["nothing", "run", "drafter"],
)
def test_what_is_no_cache_is_said_to_be_what_it_is_with_the_command_for_it(tmp_path, name, words):
    if name:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(ConfigError, match=words):
        inspect(InspectConfig(cache=str(tmp_path / "run")))


def test_an_id_that_no_target_has_is_named_without_a_vocabulary(tmp_path):
    write_rows(tmp_path / "rows.parquet", DATA["negative-id"][1])
    report = inspect(InspectConfig(cache=str(tmp_path / "rows.parquet")))
    assert report["dropped_first"] == {"id_out_of_range": "row 3 position 1: id -1 is no token's"}


def test_chats_in_the_place_of_tokens_are_told_of_the_command_that_makes_them(tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    program = "import sys\nfrom dflash_cache.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", tmp_path / "chats.jsonl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "dflash-cache tokenize CHATS" in done.stderr
    assert len(done.stderr.splitlines()) == 1  # and no bar of the datasets library
