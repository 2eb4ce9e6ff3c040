"""Prompt lookup: drafts copied from where the last tokens stood before. The plain base line."""

from collections.abc import Sequence

import torch

from .choice import Drafts
from .generation import Decoding

MAX_NGRAM = 3


class PromptLookup:
    """Proposes what followed the first occurrence of the last 3 (else 2, else 1) tokens."""

    def observe(self, features: Sequence[torch.Tensor]) -> None:
        """Hidden states are of no use here."""

    def keep(self, indices: Sequence[int]) -> None:
        """There is nothing to forget."""

    def propose(self, decodings: Sequence[Decoding], most: Sequence[int]) -> list[Drafts]:
        return [
            Drafts(tokens=_followers(decoding.committed, count))
            for decoding, count in zip(decodings, most, strict=True)
        ]


def _followers(tokens: list[int], most: int) -> list[int]:
    for size in range(min(MAX_NGRAM, len(tokens) - 1), 0, -1):
        ngram = tokens[-size:]
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == ngram:
                return tokens[start + size : start + size + most]
    return []
