"""Where the answers stand in a rendered chat whose template does not mark them.

What a turn added is found by rendering parts of the chat, and each step is checked: where parts do
not fit together the chat is refused, for a guessed mask ruins a drafter without a sign.
"""

from collections.abc import Callable, Sequence

from dflash_cache.errors import DataError

from .chats import Message, UnusableRowError
from .templates import Span

Render = Callable[..., str]  # (messages, *, prompt=False) -> text
_PROBE = "\ufdd0"  # a character that Unicode keeps out of texts


def answer_spans(
    render: Render, messages: Sequence[Message], *, last_turn_only: bool = False
) -> tuple[str, list[Span]]:
    """The text of ``messages``, which end with an answer, and the span of each answer in it.

    An answer starts behind the prompt that the target is given for it, and ends with its end mark;
    white space behind that belongs to the frame. ``DataError`` names a turn that cannot be told.
    """
    whole = render(messages)
    turns = [number for number, each in enumerate(messages) if each["role"] == "assistant"]
    spans = []
    for turn in turns[-1:] if last_turn_only else turns:
        end = _end(render, messages, turn, whole)
        start = _start(render, messages, turn, whole)
        if start > end:
            raise _refusal(turn, "a past answer is shorter than the prompt for it")
        spans.append((start, start + len(whole[start:end].rstrip())))
    return whole, spans


def _end(render: Render, messages: Sequence[Message], turn: int, whole: str) -> int:
    if turn == len(messages) - 1:
        return len(whole)
    alone = render(messages[: turn + 1])
    if whole.startswith(alone):
        return len(alone)
    # Some templates write the last turn in another way than earlier ones: with its reasoning, or
    # with another end mark. Without this turn the text must lack it and nothing else.
    before = render(messages[:turn])
    try:
        without = render([*messages[:turn], *messages[turn + 1 :]])
    except UnusableRowError as error:
        raise _refusal(turn, f"without this turn {error}") from error
    rest = without.removeprefix(before)
    end = len(whole) - len(rest)
    if not (without.startswith(before) and whole.startswith(before) and whole.endswith(rest)):
        raise _refusal(turn, "the turns before it or after it change with it")
    return end


def _start(render: Render, messages: Sequence[Message], turn: int, whole: str) -> int:
    prompt = render(messages[:turn], prompt=True)
    if whole.startswith(prompt):
        return len(prompt)
    # Some prompts say more than a past turn keeps, such as an empty block of reasoning.
    before = render(messages[:turn])
    if not (prompt.startswith(before) and whole.startswith(before)):
        raise _refusal(turn, "the turns before it are written in another way once it has followed")
    probe = {"role": "assistant", "content": _PROBE}
    other = render([*messages[:turn], probe, *messages[turn + 1 :]])
    start = _num_shared(prompt, whole, other)
    if start < len(before):
        raise _refusal(turn, "the turns before it change with it")
    return start


def _num_shared(*texts: str) -> int:
    """How many first characters all ``texts`` have in common."""
    shortest = min(map(len, texts))
    columns = enumerate(zip(*texts, strict=False))
    return next((place for place, column in columns if len(set(column)) > 1), shortest)


def _refusal(turn: int, why: str) -> DataError:
    return DataError(
        f"where the answer in message {turn} stands cannot be told from this chat template: {why}. "
        "Use --last-turn-only, or --chat-template with a template that has {% generation %} marks"
    )
