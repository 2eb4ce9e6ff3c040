"""Chats answered anew by a served target, and by one that runs here."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_cache import demo
from dflash_cache.cache import writer_lock
from dflash_cache.config import RegenerateConfig, TokenizeConfig
from dflash_cache.errors import (
    CacheBusyError,
    CacheCorruptError,
    CacheMismatchError,
    ConfigError,
    DataError,
    ServerError,
)
from dflash_cache.pipeline import Cancelled
from dflash_cache.runs.asked_target import asked_target
from dflash_cache.runs.regenerate import regenerate
from dflash_cache.runs.tokenize import tokenize
from dflash_cache.serving import client
from tests.support.chat_server import ChatServer, answer_to
from tests.support.tiny_tokenizers import save_chats


def user(content):
    return {"role": "user", "content": content}


def old(content="old"):
    return {"role": "assistant", "content": content}


def answered(*messages):
    """``messages`` with the server's answer behind them."""
    return [*messages, {"role": "assistant", "content": answer_to(list(messages))}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ChatServer(tmp_path_factory.mktemp("server"))
    yield server.start()
    server.kill()


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)


@pytest.fixture
def config(tmp_path, server):
    save_chats(tmp_path / "prompts.jsonl", [{"prompt": "one"}])
    return RegenerateConfig(
        data=tmp_path / "prompts.jsonl",
        out=tmp_path / "chats.jsonl",
        server=server.address,
        retries=3,
        concurrency=4,
    )


def chats(config, *rows, **settings):
    """The report, and the rows that come of ``rows``."""
    save_chats(config.data, list(rows))
    return chats_again(config, **settings)


def chats_again(config, **settings):
    report = regenerate(replace(config, **settings))
    return report, [json.loads(line) for line in config.out.read_text().splitlines()]


def test_every_turn_is_answered_in_the_light_of_the_new_answers(config):
    system = {"role": "system", "content": "Be brief."}
    two_turns = {"messages": [system, user("a"), old(), user("b"), old()], "id": 7, "other": 1}
    shared = {
        "conversations": [
            {"from": "gpt", "value": "a greeting that nobody asked for"},
            {"from": "human", "value": "c"},
            {"from": "gpt", "value": "old"},
            {"from": "gpt", "value": "and more"},
            {"from": "human", "value": "d"},
        ],
        "category": "math",
    }
    report, rows = chats(config, two_turns, shared, {"prompt": "e", "response": "old"})
    first = answered(system, user("a"))
    second = answered(user("c"))
    assert rows == [
        {"id": 7, "messages": answered(*first, user("b"))},
        {"category": "math", "messages": answered(*second, user("d"))},
        {"messages": answered(user("e"))},
    ]
    figures = {name: report[name] for name in ("rows", "chats", "answers", "tokens", "truncated")}
    assert figures == {"rows": 3, "chats": 3, "answers": 5, "tokens": 35, "truncated": 0}


def test_the_last_turn_alone_keeps_earlier_answers_and_calls(config, server):
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    history = [user("a"), calling, {"role": "tool", "content": "42"}]
    row = {"messages": [*history, old()], "tools": [{"type": "function"}]}
    _, rows = chats(config, {"messages": [user("x"), old(), user("y"), old()]}, row,
                    last_turn_only=True)  # fmt: skip
    assert rows == [
        {"messages": answered(user("x"), old(), user("y"))},
        {"tools": [{"type": "function"}], "messages": answered(*history)},
    ]
    sent = next(each for each in server.requests if len(each["messages"]) == 3 and "tools" in each)
    assert sent["tools"] == [{"type": "function"}]
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"at": 1}'


def test_what_has_no_answer_is_left_out_and_counted(config):
    tool = {"messages": [user("a"), old(), {"role": "tool", "content": "42"}, old()]}
    report, rows = chats(
        config, {"prompt": "cut"}, {"text": "plain"}, {"prompt": "empty"}, tool,
        {"messages": []}, {"messages": [old()]}, {"prompt": "think"}, {"prompt": "busy"},
        {"messages": [user("call"), old(), user("more"), old()]},
    )  # fmt: skip
    assert report["dropped"] == {"no_prompt": 2, "empty_answer": 1, "tool_calls": 1, "empty": 1}
    assert report["dropped_first"]["empty_answer"] == "row 2: the answer, message 1, is empty"
    assert (report["rows"], report["chats"], report["truncated"]) == (9, 4, 1)
    assert [row["messages"][0]["content"] for row in rows] == ["cut", "think", "busy", "call"]
    assert rows[1]["messages"][1]["reasoning_content"] == "thought"
    assert [each["role"] for each in rows[3]["messages"]] == ["user", "assistant"]
    assert rows[3]["messages"][1]["tool_calls"][0]["function"]["name"] == "look"


def test_a_refused_row_is_named_and_may_be_left_out(config):
    rows = [{"prompt": "one"}, {"messages": [user("a"), old(), user("refuse"), old()]}]
    with pytest.raises(
        DataError, match=r"row 1: the answer, message 3: .*status 400, maximum context length is 16"
    ):
        chats(config, *rows)
    report, found = chats_again(config, on_refused="drop")
    assert report["dropped"] == {"refused": 1}
    assert found == [{"messages": answered(user("one"))}]


def test_thinking_and_sampling_are_sent_and_a_greedy_request_has_no_seed(config, server):
    chats(config, {"prompt": "how it is sent"}, thinking=False, max_tokens=9)
    assert server.requests[-1] == {
        "model": "tiny", "messages": [user("how it is sent")], "temperature": 0.0, "top_p": 1.0,
        "max_tokens": 9, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip


def test_half_a_character_passes_through(config):
    _, rows = chats(config, {"prompt": "half \ud800 and ü"})
    assert rows[0]["messages"][0]["content"] == "half \ud800 and ü"


def test_a_missing_server_a_wrong_model_and_a_wrong_key_say_what_to_do(
    config, tmp_path, monkeypatch
):
    with pytest.raises(ServerError, match=r"status 404, other is not served.* --model"):
        regenerate(replace(config, model="other"))
    with pytest.raises(ServerError, match=r"status 404.*Look at the address"):
        regenerate(replace(config, server=config.server + "/nowhere"))
    guarded = ChatServer(tmp_path, key="secret")
    with pytest.raises(ServerError, match=r"asked 4 times: .*give the same command again"):
        regenerate(replace(config, server=guarded.address))
    guarded.start()
    try:
        with pytest.raises(ServerError, match=r"the key is wrong.*OPENAI_API_KEY"):
            regenerate(replace(config, server=guarded.address))
        monkeypatch.setenv("OPENAI_API_KEY", "secr\u00e9t")
        with pytest.raises(ConfigError, match="OPENAI_API_KEY holds characters that no key has"):
            regenerate(replace(config, server=guarded.address))
        monkeypatch.setenv("OPENAI_API_KEY", "secret\n")  # as a file of it ends
        assert regenerate(replace(config, server=guarded.address))["chats"] == 1
    finally:
        guarded.kill()
    assert "secret" not in (tmp_path / "chats.jsonl.settings.json").read_text()


def test_a_begun_file_goes_on_with_the_same_settings_alone(config):
    rows = [{"prompt": "one"}, {"prompt": "refuse"}]
    with pytest.raises(DataError):
        chats(config, *rows, concurrency=1)
    with pytest.raises(
        CacheMismatchError, match=r"was begun from something else:\n  --max-tokens 9"
    ):
        chats_again(config, max_tokens=9)
    journal = config.out.with_name(".chats.jsonl.unfinished") / "journal"
    whole = journal.read_bytes()
    assert whole.count(b"\n") == 1
    journal.write_bytes(whole.replace(b"answer", b"ANSWER"))
    with pytest.raises(CacheCorruptError, match=r"journal, byte 0: .* delete the line"):
        chats_again(config)
    journal.write_bytes(whole + whole[:20])  # as a crash leaves it
    moved = shutil.copy(config.data, config.data.with_name("copied.jsonl"))  # at another time
    report, found = chats_again(config, data=moved, on_refused="drop")
    assert report["resumed"] == 1
    assert found == [{"messages": answered(user("one"))}]
    again, _ = chats_again(config, on_refused="drop")
    assert again["resumed"] == again["rows"] == 2  # nothing was left to do
    save_chats(config.data, [{"prompt": "another one"}])
    with pytest.raises(CacheMismatchError, match="was made from something else:\n  files"):
        chats_again(config)


def test_two_writers_and_a_file_of_something_else_are_refused(config):
    with (
        writer_lock(config.out.with_name(".chats.jsonl.unfinished")),
        pytest.raises(CacheBusyError, match="choose another --out"),
    ):
        regenerate(config)
    with pytest.raises(ConfigError, match="lies among the files of --data"):
        regenerate(replace(config, data=config.out.parent))
    config.out.write_text("mine")
    with pytest.raises(ConfigError, match="is not a file that regenerate wrote"):
        regenerate(config)


@pytest.mark.parametrize("record", ["{}", "[]", '{"report": {"rows": 1}}', "{"])
def test_chats_with_another_record_are_not_taken_for_ours(config, record):
    config.out.write_text("{}\n")
    config.out.with_name("chats.jsonl.settings.json").write_text(record)
    with pytest.raises(ConfigError, match="is not a file that regenerate wrote"):
        regenerate(config)


def test_when_no_row_had_an_answer_the_same_command_asks_again(config):
    rows = [{"prompt": "empty once 1"}, {"prompt": "empty once 2"}]
    with pytest.raises(DataError, match=r"none of 2 rows .* the same command asks for all"):
        chats(config, *rows)
    report, again = chats_again(config)
    assert again == [{"messages": answered(user(row["prompt"]))} for row in rows]
    assert report["resumed"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server": None}, "give --server .* or --target"),
        ({"target": "t"}, "not both"),
        ({"server": "localhost:8000"}, "expected an address such as"),
        ({"server": "http://"}, "expected an address such as"),
        ({"server": "http://[1"}, "expected an address such as"),
        ({"server": "http://127.0.0.1:99999/v1"}, "expected an address such as"),
        ({"server": "http://a..b/v1"}, "expected an address such as"),
        ({"top_p": 1.5}, "at most 1"),
        ({"out": "chats.json"}, "named .jsonl"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, tmp_path, settings, message):
    if "out" in settings:
        settings = {"out": tmp_path / settings["out"]}
    with pytest.raises(ConfigError, match=message):
        replace(config, **settings)


def test_the_demo_target_answers_here_as_transformers_does_and_as_when_it_is_served(tmp_path):
    rows = [
        {"prompt": "What does len return?"},
        {"messages": [user("Name a type."), old(), user("And another?"), old()]},
        {"prompt": "word " * 600},
    ]
    data = save_chats(tmp_path / "prompts.jsonl", rows)
    shared = {"data": data, "max_tokens": 12, "on_refused": "drop"}
    here = RegenerateConfig(
        **shared, out=tmp_path / "here.jsonl", target=str(demo.TARGET), device="cpu"
    )
    report = regenerate(here)
    assert (report["chats"], report["answers"]) == (2, 3)
    assert "600" not in report["dropped_first"]["refused"]
    assert "512 positions" in report["dropped_first"]["refused"]

    tokenizer = AutoTokenizer.from_pretrained(demo.TARGET)
    model = AutoModelForCausalLM.from_pretrained(demo.TARGET, dtype=torch.float32)
    for line in here.out.read_text().splitlines():
        messages = json.loads(line)["messages"]
        for number in range(1, len(messages), 2):
            prompt = tokenizer.apply_chat_template(
                messages[:number], add_generation_prompt=True, return_tensors="pt"
            )
            output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
            new = output[0, prompt["input_ids"].shape[1] :]
            assert messages[number]["content"] == tokenizer.decode(new, skip_special_tokens=True)

    save_chats(data, rows[:2])
    server = ChatServer(tmp_path, target=demo.TARGET)
    try:
        served = replace(
            here, target=None, server=server.start().address, out=tmp_path / "served.jsonl"
        )
        regenerate(served)
    finally:
        server.kill()
    assert served.out.read_text() == here.out.read_text()
    tokens = TokenizeConfig(
        chats=served.out, target=str(demo.TARGET), out=tmp_path / "tokens", workers=1
    )
    assert tokenize(tokens)["sequences"] == 2


def test_sampling_here_is_repeated_by_its_seed(tmp_path):
    data = save_chats(tmp_path / "prompts.jsonl", [{"prompt": "Say"}, {"prompt": "Say"}])
    config = RegenerateConfig(
        data=data, out=tmp_path / "a.jsonl", target=str(demo.TARGET), device="cpu",
        max_tokens=12, temperature=1.0,
    )  # fmt: skip
    regenerate(config)
    regenerate(replace(config, out=tmp_path / "b.jsonl"))
    regenerate(replace(config, out=tmp_path / "c.jsonl", seed=9))
    first, second, third = ((tmp_path / f"{name}.jsonl").read_text() for name in "abc")
    assert first == second != third
    one, other = first.splitlines()
    assert one != other  # a row's seed is its own

    with asked_target(config) as (target, _):
        assert target._generation.top_k == 0  # not transformers' own 50
        target.abort()  # as a stop does while an answer is written
        with pytest.raises(Cancelled):
            target.answer([user("Say")], None, 0)
