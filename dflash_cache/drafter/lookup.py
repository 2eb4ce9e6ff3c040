"""Prompt lookup: drafts copied from where the last tokens stood before. The plain base line."""

from collections.abc import Sequence

import torch

MAX_NGRAM = 3


class PromptLookup:
    """Proposes what followed the first occurrence of the last 3 (else 2, else 1) tokens."""

    def observe(self, features_TKH: torch.Tensor) -> None:
        """Hidden states are of no use here."""

    def propose(self, committed: Sequence[int], most: int) -> list[int]:
        tokens = list(committed)
        for size in range(min(MAX_NGRAM, len(tokens) - 1), 0, -1):
            ngram = tokens[-size:]
            for start in range(len(tokens) - size):
                if tokens[start : start + size] == ngram:
                    return tokens[start + size : start + size + most]
        return []
