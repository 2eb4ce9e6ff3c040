"""What a served target's completions are taken for."""

import pytest

from dflash_cache.errors import ServerError
from dflash_cache.serving.target import _answer

ADDRESS = "http://host/v1"


def completion(**changes):
    message = {"role": "assistant", "content": "a part"}
    choice = {"message": message, "finish_reason": "stop"} | changes
    return {"choices": [choice], "usage": {"completion_tokens": 2}}


@pytest.mark.parametrize(
    ("reason", "truncated"), [("stop", False), ("length", True), ("content_filter", True)]
)
def test_an_answer_that_did_not_end_by_itself_is_a_truncated_one(reason, truncated):
    assert _answer(completion(finish_reason=reason), ADDRESS).truncated is truncated


@pytest.mark.parametrize(
    "wrong",
    [
        completion(message={"content": [{"type": "text", "text": "parts"}]}),
        completion() | {"usage": {"completion_tokens": "many"}},
        completion() | {"usage": {"completion_tokens": float("inf")}},
        completion(message={"content": "a", "reasoning_content": {"a": 1}}),
        completion(message={"content": "a", "tool_calls": "yes"}),
        {"choices": []},
        [],
    ],
)
def test_what_is_no_completion_is_a_servers_error(wrong):
    with pytest.raises(ServerError, match=r"--server http://host/v1: .* no chat completion"):
        _answer(wrong, ADDRESS)
