"""Examples of drafts, token by token: accepted, not accepted, and what the target wrote."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_cache.runs.shown import shown_piece

from .tables import drafters_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """``kind`` is its class in the page's style sheet."""

    text: str
    kind: Literal["accepted", "rejected", "target"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """The first blocks of a prompt: of each, how many drafts were accepted, and its tokens."""

    title: str
    prompt: str
    first_token: Token
    blocks: Sequence[tuple[str, Sequence[Token]]]
    note: str


def examples_of(evaluation: Mapping[str, Any]) -> Iterator[Example]:
    """For each drafter those that its evaluation kept, if it kept any."""
    drafters = drafters_of(evaluation) if evaluation else {}
    for name, own in drafters.items():
        suffix = f", drafts of {name}" if len(drafters) > 1 else ""
        for example in own.get("examples", []):
            yield _example(example, suffix)


def _example(example: Mapping[str, Any], suffix: str) -> Example:
    category = f", {example['category']}" if "category" in example else ""
    blocks, num_blocks = example["blocks"], example["num_blocks"]
    return Example(
        title=f"Prompt {example['prompt']}{category}{suffix}",
        prompt="".join(map(shown_piece, example["prompt_end"])),
        first_token=Token(text=shown_piece(example["first_token"]), kind="target"),
        blocks=[_block(block) for block in blocks],
        note=f"The first {len(blocks)} of {num_blocks} blocks." if num_blocks > len(blocks) else "",
    )


def _block(block: Mapping[str, Any]) -> tuple[str, Sequence[Token]]:
    """In the order of the text: the target's token stands before the drafts that it ended."""
    drafts, accepted = block["drafts"], block["accepted"]
    tokens = [Token(text=shown_piece(each), kind="accepted") for each in drafts[:accepted]]
    if block["target_token"]:
        tokens.append(Token(text=shown_piece(block["target_token"]), kind="target"))
    tokens += [Token(text=shown_piece(each), kind="rejected") for each in drafts[accepted:]]
    return f"{accepted} of {len(drafts)}", tokens
