"""Loss masks for the chat templates of known families, against masks made by hand.

⟦ and ⟧ stand around what is learned.
"""

import json
from dataclasses import replace

import pytest
from tokenizers import processors
from transformers.utils.chat_template_utils import render_jinja_template

from dflash_cache.data.chats import parse_row
from dflash_cache.data.templates import ChatTemplate
from dflash_cache.data.tokenization import RowBatch, Tokenization
from dflash_cache.errors import DataError
from tests.support.tiny_tokenizers import (
    NOW,
    as_marked,
    byte_tokenizer,
    parts,
    template_source,
    tokenized,
)

TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"zone": "text"}}}
TOOL_TEXT, TOOL_INDENTED = json.dumps(TOOL), json.dumps(TOOL, indent=1)


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def answer(text, reasoning=None):
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    ],
}
RESULT = {"role": "tool", "content": "noon"}

ONE = [user("Hi"), answer("Hello")]
SEVERAL = [system("Be kind."), user("Hi"), answer("Hello"), user("é?"), answer("<b>ü</b>\n\nBye")]
TOOLS = [user("Time?"), CALL, RESULT, answer("It is noon.")]
THINKING = [user("2+2?"), answer("4", "easy"), user("3+3?"), answer("6", "also")]

QWEN_SYSTEM = "<|im_start|>system\nBe kind.<|im_end|>\n"
QWEN_TOOLS = f"<|im_start|>system\n# Tools\n{TOOL_TEXT}\n<|im_end|>\n"
LLAMA_SYSTEM = "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 03 Feb 2031\n\n"
LLAMA_USER = "<|start_header_id|>user<|end_header_id|>\n\n"
LLAMA_ANSWER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
OSS_SYSTEM = "<|start|>system<|message|>Today: 2031-02-03<|end|>"


def qwen(*turns):
    return "".join(f"<|im_start|>{role}\n{text}\n" for role, text in turns)


# (template, messages, tools, thinking) -> the text
CASES = {
    "qwen3 one turn": (
        ("qwen3", ONE, None, None),
        qwen(("user", "Hi<|im_end|>"), ("assistant", "⟦<think>\n\n</think>\n\nHello<|im_end|>⟧")),
    ),
    "qwen3 several turns": (
        ("qwen3", SEVERAL, None, None),
        QWEN_SYSTEM
        + qwen(
            ("user", "Hi<|im_end|>"),
            ("assistant", "⟦Hello<|im_end|>⟧"),
            ("user", "é?<|im_end|>"),
            ("assistant", "⟦<think>\n\n</think>\n\n<b>ü</b>\n\nBye<|im_end|>⟧"),
        ),
    ),
    "qwen3 without thinking": (
        ("qwen3", SEVERAL, None, False),
        QWEN_SYSTEM
        + qwen(
            ("user", "Hi<|im_end|>"),
            ("assistant", "⟦Hello<|im_end|>⟧"),
            ("user", "é?<|im_end|>"),
            ("assistant", "<think>\n\n</think>\n\n⟦<b>ü</b>\n\nBye<|im_end|>⟧"),
        ),
    ),
    "qwen3 thinking": (
        ("qwen3", THINKING, None, True),
        qwen(
            ("user", "2+2?<|im_end|>"),
            ("assistant", "⟦4<|im_end|>⟧"),
            ("user", "3+3?<|im_end|>"),
            ("assistant", "⟦<think>\nalso\n</think>\n\n6<|im_end|>⟧"),
        ),
    ),
    "qwen3 tools": (
        ("qwen3", TOOLS, [TOOL], None),
        QWEN_TOOLS
        + qwen(
            ("user", "Time?<|im_end|>"),
            (
                "assistant",
                (
                    '⟦\n<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
                    "<|im_end|>⟧"
                ),
            ),
            ("user", "<tool_response>\nnoon\n</tool_response><|im_end|>"),
            ("assistant", "⟦<think>\n\n</think>\n\nIt is noon.<|im_end|>⟧"),
        ),
    ),
    "llama3 several turns": (
        ("llama3", SEVERAL, None, None),
        (
            f"{LLAMA_SYSTEM}Be kind.<|eot_id|>{LLAMA_USER}Hi<|eot_id|>"
            f"{LLAMA_ANSWER}⟦Hello<|eot_id|>⟧"
            f"{LLAMA_USER}é?<|eot_id|>{LLAMA_ANSWER}⟦<b>ü</b>\n\nBye<|eot_id|>⟧"
        ),
    ),
    "llama3 tools": (
        ("llama3", TOOLS, [TOOL], None),
        (
            f"{LLAMA_SYSTEM}<|eot_id|>{LLAMA_USER}{TOOL_INDENTED}\nTime?<|eot_id|>{LLAMA_ANSWER}"
            '⟦{"name": "clock", "parameters": {"zone": "UTC"}}<|eot_id|>⟧'
            "<|start_header_id|>ipython<|end_header_id|>\n\nnoon<|eot_id|>"
            f"{LLAMA_ANSWER}⟦It is noon.<|eot_id|>⟧"
        ),
    ),
    "gemma3 several turns": (
        ("gemma3", SEVERAL, None, None),
        (
            "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\n⟦Hello<end_of_turn>⟧\n"
            "<start_of_turn>user\né?<end_of_turn>\n"
            "<start_of_turn>model\n⟦<b>ü</b>\n\nBye<end_of_turn>⟧\n"
        ),
    ),
    "mistral several turns": (
        ("mistral", SEVERAL, None, None),
        (
            "<s>[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]⟦ Hello</s>⟧"
            "[INST]é?[/INST]⟦ <b>ü</b>\n\nBye</s>⟧"
        ),
    ),
    "mistral tools": (
        ("mistral", TOOLS, [TOOL], None),
        (
            f"<s>[AVAILABLE_TOOLS][{TOOL_TEXT}][/AVAILABLE_TOOLS][INST]Time?[/INST]"
            '⟦[TOOL_CALLS][{"name": "clock", "arguments": {"zone": "UTC"}}]</s>⟧'
            "[TOOL_RESULTS]noon[/TOOL_RESULTS]⟦ It is noon.</s>⟧"
        ),
    ),
    "gpt-oss several turns": (
        ("gpt_oss", SEVERAL, None, None),
        (
            f"{OSS_SYSTEM}<|start|>developer<|message|>Be kind.<|end|>"
            "<|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>Hello<|end|>⟧"
            "<|start|>user<|message|>é?<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|><b>ü</b>\n\nBye<|return|>⟧"
        ),
    ),
    "gpt-oss thinking": (
        ("gpt_oss", THINKING, None, None),
        (
            f"{OSS_SYSTEM}<|start|>user<|message|>2+2?<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>4<|end|>⟧"
            "<|start|>user<|message|>3+3?<|end|>"
            "<|start|>assistant⟦<|channel|>analysis<|message|>also<|end|>"
            "<|start|>assistant<|channel|>final<|message|>6<|return|>⟧"
        ),
    ),
    "gpt-oss tools": (
        ("gpt_oss", TOOLS, [TOOL], None),
        (
            f"{OSS_SYSTEM}<|start|>developer<|message|>\n{TOOL_TEXT}<|end|>"
            "<|start|>user<|message|>Time?<|end|>"
            "<|start|>assistant⟦ to=functions.clock<|channel|>commentary<|message|>"
            '{"zone": "UTC"}<|call|>⟧'
            "<|start|>functions.clock to=assistant<|message|>noon<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>It is noon.<|return|>⟧"
        ),
    ),
}
MARKS = pytest.mark.parametrize("marks", [True, False], ids=["marks", "no marks"])


def row_of(messages, tools=None):
    return {"messages": messages, "tools": tools}


def check(batch, expected):
    """The ids and the mask are those of the parts of ``expected``, made one by one."""
    assert as_marked(batch) == [expected]
    ids, mask = [], []
    for place, part in enumerate(expected.replace("⟧", "⟦").split("⟦")):
        tokens = byte_tokenizer().encode(part).ids
        ids += tokens
        mask += [place % 2] * len(tokens)
    assert batch.input_ids.tolist() == ids
    assert batch.loss_mask.tolist() == mask


@MARKS
@pytest.mark.parametrize("name", CASES)
def test_a_mask_equals_the_one_made_by_hand(name, marks):
    (template, messages, tools, thinking), expected = CASES[name]
    source = template_source(template, marks=marks)
    check(tokenized(source, row_of(messages, tools), thinking=thinking), expected)


@MARKS
@pytest.mark.parametrize("name", CASES)
def test_with_the_last_turn_only_earlier_answers_are_not_learned(name, marks):
    (template, messages, tools, thinking), expected = CASES[name]
    source = template_source(template, marks=marks)
    row = row_of(messages, tools)
    earlier, _, last = expected.rpartition("⟦")
    earlier = earlier.replace("⟦", "").replace("⟧", "")
    batch = tokenized(source, row, thinking=thinking, last_turn_only=True)
    check(batch, f"{earlier}⟦{last}")


@pytest.mark.parametrize("name", CASES)
def test_templates_render_and_mark_as_transformers_does(name):
    (template, messages, tools, thinking), _ = CASES[name]
    source = template_source(template, marks=True).replace("strftime_now", "'2031' or strftime_now")
    chat = parse_row(row_of(messages, tools), has_template=True)
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    variables |= {} if thinking is None else {"enable_thinking": thinking}
    theirs, spans = render_jinja_template(
        [chat.messages], chat.tools, chat_template=source, return_assistant_tokens_mask=True,
        **variables,
    )  # fmt: skip
    ours = ChatTemplate(source, variables, NOW).render(chat.messages, chat.tools)
    assert ours == (theirs[0], spans[0])


@MARKS
@pytest.mark.parametrize("template", ["qwen3", "llama3", "gemma3", "mistral", "gpt_oss"])
def test_truncation_in_an_answer_keeps_ids_and_mask_together(template, marks):
    source = template_source(template, marks=marks)
    row = row_of(SEVERAL)
    whole = tokenized(source, row)
    stop = int(whole.loss_mask.nonzero()[0][2]) + 1  # three tokens into the first answer
    for length in (stop, len(whole.input_ids) - 5, len(whole.input_ids)):
        cut = tokenized(source, row, max_seq_len=length)
        assert cut.lengths.tolist() == [length]
        assert cut.input_ids.tolist() == whole.input_ids[:length].tolist()
        assert cut.loss_mask.tolist() == whole.loss_mask[:length].tolist()
        assert cut.truncated.tolist() == [length < len(whole.input_ids)]
    (left_out,) = tokenized(source, row, max_seq_len=stop - 3).left_out
    assert left_out.reason == "no_loss_token"


@pytest.mark.parametrize(
    ("template", "messages", "tools"),
    [
        ("mistral", [*ONE, *TOOLS], [TOOL]),  # tools move to the last question
        ("qwen3", [user("Time?"), CALL | {"reasoning_content": "look"}, *TOOLS[2:], *ONE], None),
    ],
    ids=["tools that move", "reasoning that goes"],
)
def test_a_chat_whose_history_is_written_anew_is_refused_by_row_and_message(
    template, messages, tools
):
    source = template_source(template, marks=False)
    rows = [row_of(ONE), row_of(messages, tools)]
    with pytest.raises(DataError, match=r"row 1: where the answer in message \d .*last-turn-only"):
        tokenized(source, *rows)
    (_, last) = as_marked(tokenized(source, *rows, last_turn_only=True))
    assert last.count("⟦") == 1
    both = tokenized(template_source(template, marks=True), *rows)
    assert as_marked(both)[1].count("⟦") == 3


def test_a_chat_that_the_template_refuses_is_left_out_with_its_words():
    source = template_source("gemma3", marks=False)
    batch = tokenized(source, row_of([user("a"), user("b"), answer("c")]), row_of(ONE))
    (left_out,) = batch.left_out
    assert (left_out.row, left_out.reason) == (0, "template")
    assert "turns must go user, model" in left_out.message
    assert len(batch.lengths) == 1


def test_blanks_that_a_tokenizer_gives_no_place_belong_to_where_they_stand():
    trimming = byte_tokenizer()
    trimming.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer = replace(
        parts(template_source("mistral", marks=False)), tokenizer_json=trimming.to_str()
    )
    rows = [row_of([user("Hi  "), answer("  Hello  ")])]
    work = Tokenization(tokenizer=tokenizer, now=NOW).start()
    batch = work(RowBatch(first_row=0, rows=rows, bytes_read=0))
    check(batch, "<s>[INST]Hi  [/INST]⟦   Hello  </s>⟧")
