"""A row of chats, answered by the target: what is recorded of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_cache.data.chats import UnusableRowError
from dflash_cache.data.conversation import Conversation, parse_conversation
from dflash_cache.errors import DataError, RefusedError, ServerError
from dflash_cache.types import Answer

Record = dict[str, Any]


class Answering(Protocol):
    """A target that answers, wherever it runs."""

    def answer(
        self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None, seed: int
    ) -> Answer: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RowAnswering:
    """Turns rows into records."""

    target: Answering
    seed: int
    last_turn_only: bool
    drop_refused: bool

    def record(self, number: int, row: Mapping[str, Any]) -> Record:
        """Of row ``number``: ``chat``, a row for ``tokenize``, with ``answers``, ``truncated`` and

        ``tokens``; or why it is left out, ``dropped`` and ``message``. ``DataError`` names a row of
        no known form, or a turn that was refused.
        """
        try:
            conversation = parse_conversation(row, last_turn_only=self.last_turn_only)
            return {"row": number, **self._answered(number, conversation)}
        except UnusableRowError as error:
            return {"row": number, "dropped": error.reason, "message": str(error)}
        except DataError as error:
            raise DataError(f"row {number}: {error}") from error
        except ServerError as error:
            error.add_note(f"asked for row {number}")
            raise

    def _answered(self, number: int, conversation: Conversation) -> Record:
        messages: list[Mapping[str, Any]] = []
        answers: list[Answer] = []
        for prompt in conversation.prompts:
            messages += prompt
            turn = len(messages)
            try:
                answer = self.target.answer(messages, conversation.tools, self.seed + number)
            except RefusedError as error:
                raise self._refusal(turn, error) from error
            calls_tool = "tool_calls" in answer.message
            if not answer.message["content"].strip() and not calls_tool:
                raise UnusableRowError("empty_answer", f"the answer, message {turn}, is empty")
            messages.append(answer.message)
            answers.append(answer)
            if calls_tool:
                break  # nobody knows what the tool would give
        tools = {"tools": conversation.tools} if conversation.tools else {}
        return {
            "chat": {**conversation.columns, **tools, "messages": messages},
            "answers": len(answers),
            "truncated": sum(each.truncated for each in answers),
            "tokens": sum(each.num_tokens for each in answers),
        }

    def _refusal(self, turn: int, error: RefusedError) -> Exception:
        if self.drop_refused:
            return UnusableRowError("refused", f"the answer, message {turn}: {error}")
        return DataError(
            f"the answer, message {turn}: {error}. Mend the row, or leave such rows out with "
            "--on-refused drop"
        )
