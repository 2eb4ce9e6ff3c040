"""What of a chat is answered anew. The rest is in tests/integration/test_regenerate.py."""

from datetime import datetime

import pytest

from dflash_cache.data.chats import UnusableRowError
from dflash_cache.data.conversation import parse_conversation
from dflash_cache.errors import DataError


def test_fields_of_messages_that_no_template_knows_stay_behind():
    message = {"role": "user", "content": "hi", "timestamp": datetime(2024, 1, 1), "hashed_ip": "x"}
    conversation = parse_conversation({"messages": [message], "id": 7})
    assert conversation.prompts == [[{"role": "user", "content": "hi"}]]
    assert conversation.columns == {"id": 7}


@pytest.mark.parametrize("old", [{"response": ""}, {"response": None}, {"completion": []}])
def test_an_old_answer_beside_a_prompt_is_not_looked_at(old):
    conversation = parse_conversation({"prompt": "hi"} | old)
    assert conversation.prompts == [[{"role": "user", "content": "hi"}]]


def test_a_prompt_of_another_type_is_named_and_an_empty_one_has_nothing_to_answer():
    with pytest.raises(DataError, match="prompt is 5, expected text or messages"):
        parse_conversation({"prompt": 5})
    for prompt in ("", None, []):
        with pytest.raises(UnusableRowError):
            parse_conversation({"prompt": prompt})


@pytest.mark.parametrize("last_turn_only", [False, True])
@pytest.mark.parametrize("content", ["", None, []])
def test_an_empty_turn_of_the_user_is_not_answered(content, last_turn_only):
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": content},
    ]
    with pytest.raises(UnusableRowError, match="a turn of the user is empty"):
        parse_conversation({"messages": said}, last_turn_only=last_turn_only)
