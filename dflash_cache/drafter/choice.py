"""How tokens are chosen from logits: greedily, or drawn at a temperature.

Axes: S drafts, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafts:
    """Draft tokens, and the probabilities [S, V] they were drawn with; None: without any chance."""

    tokens: list[int]
    probabilities: torch.Tensor | None = None


NO_DRAFTS = Drafts(tokens=[])


class Choice(Protocol):
    """One sequence's way to choose its tokens."""

    def draft(self, logits_SV: torch.Tensor) -> Drafts:
        """Draft tokens from the drafter's logits."""
        ...

    def verify(self, drafts: Drafts, logits: torch.Tensor) -> list[int]:
        """The accepted drafts and one token more, from the target's logits [S + 1, V]."""
        ...


class Greedy:
    """The likeliest token; a draft is accepted when it is the target's own choice."""

    def draft(self, logits_SV: torch.Tensor) -> Drafts:
        return Drafts(tokens=logits_SV.argmax(-1).tolist())

    def verify(self, drafts: Drafts, logits: torch.Tensor) -> list[int]:
        choices: list[int] = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafts.tokens) and drafts.tokens[accepted] == choices[accepted]:
            accepted += 1
        return choices[: accepted + 1]


class Sampled:
    """Draws at a temperature; speculative sampling (arXiv 2211.17192) keeps the distribution.

    The draws depend on ``seed`` and ``sequence`` alone, not on what else is decoded.
    """

    def __init__(self, temperature: float, *, seed: int, sequence: int) -> None:
        self._temperature = temperature
        state = np.random.SeedSequence((seed, sequence)).generate_state(1, np.uint64)
        self._generator = torch.Generator().manual_seed(int(state[0]))

    def draft(self, logits_SV: torch.Tensor) -> Drafts:
        probabilities = self._probabilities(logits_SV)
        return Drafts(tokens=self._draw(probabilities), probabilities=probabilities)

    def verify(self, drafts: Drafts, logits: torch.Tensor) -> list[int]:
        """A draft x is accepted with probability min(1, p(x) / q(x)).

        The token after the last accepted one is drawn from max(p - q, 0), normalised, or from p
        where all are accepted.
        """
        p, tokens = self._probabilities(logits), drafts.tokens
        accepted = self._num_accepted(p, drafts) if tokens else 0
        rest = p[accepted]
        if accepted < len(tokens):
            if drafts.probabilities is None:
                rest[tokens[accepted]] = 0
            else:
                rest = (rest - drafts.probabilities[accepted]).clamp(min=0)
        return [*tokens[:accepted], *self._draw(rest[None])]

    def _num_accepted(self, p: torch.Tensor, drafts: Drafts) -> int:
        tokens = torch.tensor(drafts.tokens, device=p.device)[:, None]
        p_of_draft = p[:-1].gather(1, tokens)
        uniform = self._uniform(len(tokens)).to(p.device)
        if drafts.probabilities is not None:
            uniform = uniform * drafts.probabilities.gather(1, tokens)
        return int((uniform < p_of_draft).int().cumprod(0).sum())

    def _probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits.double() / self._temperature, dim=-1)

    def _uniform(self, count: int) -> torch.Tensor:
        return torch.rand(count, 1, generator=self._generator, dtype=torch.float64)

    def _draw(self, weights: torch.Tensor) -> list[int]:
        """A token for each row of ``weights`` [rows, V], which need not add up to 1."""
        sums = weights.cumsum(-1)
        places = self._uniform(len(weights)).to(sums.device) * sums[:, -1:]
        found = torch.searchsorted(sums, places, right=True)  # right: never a weight of 0
        return found[:, 0].clamp(max=sums.shape[1] - 1).tolist()
