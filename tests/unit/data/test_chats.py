import json

import pytest

from dflash_cache.data.chats import Chat, Text, UnusableRowError, parse_row
from dflash_cache.errors import DataError

ASKED = {"role": "user", "content": "q"}
ANSWERED = {"role": "assistant", "content": "a"}


def chat_of(row, has_template=True):
    found = parse_row(row, has_template=has_template)
    assert isinstance(found, Chat)
    return found


def test_sharegpt_speakers_become_roles():
    said = [("system", "s"), ("human", "q"), ("gpt", "a"), ("observation", "t")]
    row = {"conversations": [{"from": who, "value": text} for who, text in said]}
    roles = [(each["role"], each["content"]) for each in chat_of(row).messages]
    assert roles == [("system", "s"), ("user", "q"), ("assistant", "a"), ("tool", "t")]


def test_sharegpt_speakers_may_be_roles():
    said = [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]
    assert [each["role"] for each in chat_of({"messages": said}).messages] == ["user", "assistant"]


def test_a_column_of_system_words_comes_first():
    row = {"conversations": [{"from": "human", "value": "q"}], "system": "s"}
    assert chat_of(row).messages[0] == {"role": "system", "content": "s"}


@pytest.mark.parametrize("name", ["response", "completion"])
def test_a_prompt_and_its_response_are_a_chat_where_there_is_a_template(name):
    row = {"prompt": "q", name: "a"}
    assert chat_of(row).messages == [ASKED, ANSWERED]
    assert parse_row(row, has_template=False) == Text("q", "a")
    assert chat_of({"prompt": [ASKED], name: [ANSWERED]}).messages == [ASKED, ANSWERED]


def test_plain_text_is_learned_whole():
    assert parse_row({"text": "words"}, has_template=True) == Text("", "words")


def test_nulls_parts_and_arguments_become_what_templates_read():
    call = {"function": {"name": "f", "arguments": '{"x": null}'}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "thinking": "t"},
        ],
        "tools": json.dumps([{"name": "f"}]),
    }
    chat = chat_of(row)
    first, second = chat.messages
    assert first["content"] == "ab"
    assert second["content"] == ""
    assert second["tool_calls"][0]["function"]["arguments"] == {"x": None}
    assert second["reasoning_content"] == second["thinking"] == "t"
    assert chat.tools == [{"name": "f"}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "empty"),
        ({"messages": None}, "empty"),
        ({"text": ""}, "empty"),
        ({"text": None}, "empty"),
        ({"prompt": "", "response": "a"}, "empty"),
        ({"prompt": "a", "response": None}, "empty"),
        ({"messages": None, "conversations": []}, "empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not_text"),
        ({"messages": [{"role": "user", "text": "x"}]}, "not_text"),
        ({"messages": [{"from": "user", "text": "x"}]}, "not_text"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "not_text"),
    ],
)
def test_rows_that_hold_nothing_are_left_out_by_reason(row, reason):
    with pytest.raises(UnusableRowError) as caught:
        parse_row(row, has_template=True)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": None, "weight": 0}, {"role": "user"}]
)
def test_a_message_of_no_content_is_empty_in_every_kind_of_file(message):
    """parquet leaves the null out."""
    assert chat_of({"messages": [message]}).messages[0]["content"] == ""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input": "x"}, "it has input; expected messages, conversations"),
        ({}, "it has no columns"),
        ({"messages": "hello"}, "expected a list of objects"),
        ({"messages": [{"content": "x"}]}, "message 0 has no role; it has content"),
        ({"conversations": [{"from": "bard", "value": "x"}]}, "message 0 is from 'bard'"),
        ({"conversations": [{"from": ["human"], "value": "x"}]}, "message 0 is from ['human']"),
        ({"prompt": "a"}, "it has prompt; expected"),
        ({"text": 3}, "text is int, expected text"),
        ({"messages": [ASKED], "tools": "none"}, "expected a list, or JSON text of one"),
    ],
)
def test_rows_of_no_known_form_say_what_is_wrong(row, message):
    with pytest.raises(DataError) as caught:
        parse_row(row, has_template=True)
    assert message in str(caught.value)
