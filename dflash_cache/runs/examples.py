"""Examples for a reader: what became of each draft in the first blocks of a few prompts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from dflash_cache.config import EvaluateConfig
from dflash_cache.data import TokenPieces
from dflash_cache.drafter.generation import Decoded, Step

from .prompts import Prompts

MOST_BLOCKS = 8  # of a prompt
MOST_PROMPT_TOKENS = 32  # of a prompt's end


class Examples:
    """The same prompts for every drafter, chosen by their places: nobody picked good ones."""

    def __init__(self, prompts: Prompts, count: int, pieces: TokenPieces) -> None:
        self._prompts = prompts
        self._pieces = pieces
        names = prompts.categories or [""] * len(prompts.token_ids)
        self._indices = spread(names, count)

    @classmethod
    def choose(cls, config: EvaluateConfig, prompts: Prompts, folder: Path) -> Self:
        """As many as are wanted, in the words of the tokenizer of the target in ``folder``."""
        pieces = TokenPieces.load(folder) if config.examples else TokenPieces(None)
        return cls(prompts, config.examples, pieces)

    def of(self, decoded: Sequence[Decoded]) -> list[dict[str, Any]]:
        """Of each example, given the outputs of all prompts.

        {prompt, category (where there are any), prompt_end [piece], first_token piece, blocks
        [{drafts [piece], accepted, target_token piece or None}], num_blocks (in all)}. The first
        token and of each block the accepted drafts and the target's token begin the output.
        """
        return [self._example(index, decoded[index]) for index in self._indices]

    def _example(self, index: int, decoded: Decoded) -> dict[str, Any]:
        categories = self._prompts.categories
        prompt = self._prompts.token_ids[index]
        return {
            "prompt": index,
            **({"category": categories[index]} if categories else {}),
            "prompt_end": self._pieces.of(prompt[-MOST_PROMPT_TOKENS:]),
            "first_token": self._pieces.of(decoded.tokens[:1])[0],
            "blocks": [self._block(step) for step in decoded.steps[:MOST_BLOCKS]],
            "num_blocks": len(decoded.steps),
        }

    def _block(self, step: Step) -> dict[str, Any]:
        own = None if step.target_token is None else self._pieces.of([step.target_token])[0]
        return {
            "drafts": self._pieces.of(step.drafts),
            "accepted": step.num_accepted,
            "target_token": own,
        }


def spread(names: Sequence[str], count: int) -> list[int]:
    """Up to ``count`` places: the first of each name, then the second ones, and so on."""
    seen: Counter[str] = Counter()
    ranks = []
    for name in names:
        ranks.append(seen[name])
        seen[name] += 1
    by_rank = sorted(range(len(names)), key=ranks.__getitem__)
    return sorted(by_rank[:count])
