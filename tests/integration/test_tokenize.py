"""From files of chats to the tokens that an extraction reads."""

import json
import shutil
from dataclasses import replace

import datasets
import pytest

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.config import TokenizeConfig
from dflash_cache.errors import CacheBusyError, CacheMismatchError, ConfigError, DataError
from dflash_cache.runs import tokenize as run
from dflash_cache.runs.extract import extract
from dflash_cache.runs.tokenize import BATCH_ROWS, tokenize
from tests.support.runs import extract_config
from tests.support.tiny_targets import save_target
from tests.support.tiny_tokenizers import (
    byte_tokenizer,
    save_chats,
    save_tokenizer,
    template_source,
    tokenized,
)

QWEN = template_source("qwen3", marks=False)


def chat(number, **more):
    question = {"role": "user", "content": f"Say {number}."}
    return {"messages": [question, {"role": "assistant", "content": f"It is {number}."}], **more}


ROWS = [
    chat(1),
    {"conversations": [{"from": "human", "value": "Say 2."}, {"from": "gpt", "value": "2."}]},
    {"prompt": "Say 3.", "response": "3, three."},
    {"messages": [{"role": "user", "content": "And?"}]},
    {"text": "plain words"},
    chat(1),
    {"messages": None},
    chat(8),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target of 512 embeddings with a byte-level tokenizer and a template."""
    folder = save_target(tmp_path_factory.mktemp("tokenize") / "target")
    return save_tokenizer(folder, QWEN)


@pytest.fixture
def config(tmp_path, target):
    chats = save_chats(tmp_path / "chats.jsonl", ROWS)
    return TokenizeConfig(chats=chats, target=str(target), out=tmp_path / "tokens", workers=1)


def rows_in(folder):
    return [
        (row["input_ids"], row["loss_mask"]) for row in datasets.load_from_disk(folder).to_list()
    ]


def test_chats_of_all_forms_become_a_dataset_and_a_cache(config, tmp_path):
    report = tokenize(config)
    assert (report["rows"], report["sequences"]) == (8, 6)
    assert report["dropped"] == {"no_answer": 1, "empty": 1}
    assert report["dropped_first"]["no_answer"].startswith("row 3: ")
    rows = rows_in(config.out)
    lengths = sorted(len(ids) for ids, _ in rows)
    assert report["tokens"] == sum(lengths)
    assert report["lengths"] == {
        "shortest": lengths[0],
        "median": lengths[2],
        "percentile_95": lengths[-1],
        "longest": lengths[-1],
    }
    learned = sum(sum(mask) for _, mask in rows)
    assert report["mask_share"] == pytest.approx(learned / sum(lengths), abs=1e-4)
    ids, mask = rows[2]
    answer = [token for token, learn in zip(ids, mask, strict=True) if learn]
    text = byte_tokenizer().decode(answer, skip_special_tokens=False)
    assert text == "<think>\n\n</think>\n\n3, three.<|im_end|>"
    cache = tmp_path / "cache"
    extracted = extract(
        extract_config(tmp_path, data=config.out, target=config.target, target_layers=(1, 4))
    )
    assert (extracted["sequences"], extracted["tokens"]) == (6, report["tokens"])
    assert len(Cache.open(str(cache)).segments) == 1


def test_chats_for_the_demo_target_become_its_tokens_and_a_cache(tmp_path):
    chats = save_chats(tmp_path / "chats.jsonl", [chat(number) for number in range(3)])
    out = tmp_path / "tokens"
    tokenize(TokenizeConfig(chats=chats, target=str(demo.TARGET), out=out, workers=1))
    settings = {"data": out, "target_layers": (1,)}
    assert extract(extract_config(tmp_path, **settings))["sequences"] == 3


def test_processes_make_what_one_makes(config, monkeypatch):
    tokenize(config)
    monkeypatch.setattr(run, "BATCH_ROWS", 3)
    other = replace(config, out=config.out.with_name("other"), workers=2)
    report = tokenize(other)
    assert report["dropped_first"]["empty"].startswith("row 6: ")
    assert rows_in(other.out) == rows_in(config.out)


def test_duplicates_are_dropped_across_batches(config, monkeypatch):
    monkeypatch.setattr(run, "BATCH_ROWS", 2)
    report = tokenize(replace(config, deduplicate=True))
    assert report["dropped"]["duplicate"] == 1
    assert report["dropped_first"]["duplicate"].startswith("row 5: ")
    assert len(rows_in(config.out)) == report["sequences"] == 5


def test_truncated_rows_are_counted_and_files_are_begun_anew(config, monkeypatch):
    monkeypatch.setattr(run, "BATCH_ROWS", 1)
    monkeypatch.setattr("dflash_cache.data.token_files.FILE_TOKENS", 60)
    report = tokenize(replace(config, max_seq_len=37))
    assert report["lengths"]["longest"] == 37
    assert report["truncated"] == sum(len(ids) == 37 for ids, _ in rows_in(config.out)) == 4
    assert len(list(config.out.glob("*.arrow"))) > 1


def test_a_limit_is_of_rows_and_categories_are_kept(config):
    save_chats(config.chats, [chat(1, category="math"), chat(2), *ROWS])
    assert tokenize(replace(config, limit=2))["rows"] == 2
    assert datasets.load_from_disk(config.out)["category"][:] == ["math", None]


def test_half_a_character_in_a_category_becomes_its_escape(config):
    save_chats(config.chats, [chat(1, category="a\ud800"), chat(2, category="b")])
    assert tokenize(config)["dropped"] == {}
    assert datasets.load_from_disk(config.out)["category"][:] == ["a\\ud800", "b"]


@pytest.mark.parametrize("record", ["{}", "[]", '{"report": {}, "settings": 5}', "{"])
def test_a_folder_with_another_record_is_not_taken_for_ours(config, record):
    config.out.mkdir()
    (config.out / "tokenize.json").write_text(record)
    with pytest.raises(ConfigError, match="is not a folder that tokenize wrote; name another"):
        tokenize(config)


def test_a_path_that_arrow_could_not_open_is_refused(config):
    out = config.out.with_name("z\udce9")  # a byte that is no UTF-8
    with pytest.raises(ConfigError, match="the path is no UTF-8; name another folder"):
        tokenize(replace(config, out=out))


def test_a_category_that_comes_after_many_rows_without_one_is_kept(config):
    rows = [chat(number % 7) for number in range(BATCH_ROWS)]
    save_chats(config.chats, [*rows, chat(1, category="math")])
    tokenize(config)
    assert datasets.load_from_disk(config.out)["category"][:] == [None] * len(rows) + ["math"]


def test_the_same_command_again_does_nothing_and_another_is_refused(config, monkeypatch):
    report = tokenize(config)
    monkeypatch.setattr(run, "_write", None)
    assert tokenize(replace(config, workers=2)) == report
    moved = shutil.copy(config.chats, config.chats.with_name("copied.jsonl"))  # at another time
    assert tokenize(replace(config, chats=moved)) == report
    with pytest.raises(CacheMismatchError, match=r"--max-seq-len 9, made with None"):
        tokenize(replace(config, max_seq_len=9))
    save_chats(config.chats, ROWS[:3])
    with pytest.raises(CacheMismatchError, match=r"made from something else:\n  files"):
        tokenize(config)


def test_a_folder_of_something_else_is_left_alone(config):
    config.out.mkdir()
    with pytest.raises(ConfigError, match="is not a folder that tokenize wrote"):
        tokenize(config)


def test_what_fails_leaves_no_folder_and_what_was_killed_is_begun_anew(config):
    before = {path.name for path in config.out.parent.iterdir()}
    save_chats(config.chats, [*ROWS, {"messages": [{"content": "x"}]}])
    with pytest.raises(DataError, match="row 8: message 0 has no role"):
        tokenize(config)
    assert {path.name for path in config.out.parent.iterdir()} == before
    left = config.out.with_name(".tokens.unfinished") / "content"
    left.mkdir(parents=True)
    (left / "data-00007.arrow").write_bytes(b"half")
    save_chats(config.chats, ROWS)
    tokenize(config)
    assert len(rows_in(config.out)) == 6
    assert {path.name for path in config.out.parent.iterdir()} == before | {"tokens"}
    assert not (config.out / "data-00007.arrow").exists()


def test_two_at_once_do_not_write_one_folder(config):
    with (
        run.writer_lock(config.out.with_name(".tokens.unfinished")),
        pytest.raises(CacheBusyError, match="choose another --out"),
    ):
        tokenize(config)


def test_a_dataset_without_an_answer_is_an_error_that_says_why(config):
    save_chats(config.chats, [ROWS[3], ROWS[3], ROWS[6]])
    message = r"none of 3 rows can be trained on: 2 no_answer \(row 0: .*\); 1 empty"
    with pytest.raises(DataError, match=message):
        tokenize(config)
    assert not config.out.exists()


@pytest.mark.parametrize(("row", "share"), [("words " * 30, "100.00%"), (None, "0.")])
def test_a_mask_that_is_hardly_meant_is_a_warning(config, row, share):
    long = chat(1)
    long["messages"][0]["content"] = "x" * 5000
    save_chats(config.chats, [{"text": row} if row else long])
    (warning,) = tokenize(config)["warnings"]
    assert f"the loss mask is 1 on {share}" in warning


def test_a_template_of_ones_own_takes_the_place_of_the_targets(config, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text(template_source("llama3", marks=True))
    report = tokenize(replace(config, chat_template=path, limit=1))
    assert report["mask_from"] == "generation marks"
    ids, mask = rows_in(config.out)[0]
    answer = [token for token, learn in zip(ids, mask, strict=True) if learn]
    assert byte_tokenizer().decode(answer, skip_special_tokens=False) == "It is 1.<|eot_id|>"


@pytest.mark.parametrize(
    ("text", "message"), [("{% if %}", "the chat template, line 1"), (None, "own.jinja")]
)
def test_a_template_that_is_none_is_refused_before_any_row(config, tmp_path, text, message):
    path = tmp_path / "own.jinja"
    if text:
        path.write_text(text)
    config.chats.write_text("no row\n")
    with pytest.raises(ConfigError, match=message):
        tokenize(replace(config, chat_template=path))


def test_without_a_template_pairs_are_joined_and_chats_refused():
    batch = tokenized(None, ROWS[2], ROWS[4])
    text = byte_tokenizer().decode(batch.input_ids.tolist(), skip_special_tokens=False)
    assert text == "Say 3.3, three.</s>plain words"
    assert batch.loss_mask.tolist() == [0] * 6 + [1] * (len("3, three.") + 1 + len("plain words"))
    with pytest.raises(ConfigError, match=r"no chat template.*--chat-template"):
        tokenized(None, ROWS[0])


def test_a_target_without_a_tokenizer_is_named(config, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ConfigError, match=r"empty has no tokenizer's files; copy tokenizer\.json"):
        tokenize(replace(config, target=str(tmp_path / "empty")))
