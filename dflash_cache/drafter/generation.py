"""Greedy speculative decoding: the drafter proposes a block, the target checks it in one pass.

Axes: T tokens, K context layers, H hidden size, B block size.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .attention import plan_tiles
from .model import DFlashDrafter, KeyValue


class DecodingTarget(Protocol):
    """A target's decoding state for one sequence."""

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ids [T]: logits [T, vocabulary] and hidden states [T, K, H]."""
        ...

    def crop(self, num_tokens: int) -> None:
        """Forget everything after the first ``num_tokens`` tokens."""
        ...


class Proposer(Protocol):
    """Proposes what may follow."""

    def observe(self, features_TKH: torch.Tensor) -> None:
        """Take the hidden states of newly committed tokens."""
        ...

    def propose(self, committed: Sequence[int], most: int) -> list[int]:
        """At most ``most`` draft tokens to follow ``committed``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """New tokens, and how many each verify step committed (the bonus token included)."""

    tokens: list[int]
    acceptance_lengths: list[int]


class DrafterProposer:
    """The drafter's proposals for one sequence; keeps the context's keys and values."""

    def __init__(self, drafter: DFlashDrafter, embedding: torch.Tensor, head: torch.Tensor) -> None:
        self._drafter = drafter
        self._embedding = embedding
        self._head = head
        self._context: list[KeyValue] = []
        self._num_tokens = 0

    def observe(self, features_TKH: torch.Tensor) -> None:
        num_new = len(features_TKH)
        positions = torch.arange(
            self._num_tokens, self._num_tokens + num_new, device=features_TKH.device
        )
        new = self._drafter.context(features_TKH.to(self._embedding.dtype), positions)
        if self._context:
            new = [
                (torch.cat([key, new_key]), torch.cat([value, new_value]))
                for (key, value), (new_key, new_value) in zip(self._context, new, strict=True)
            ]
        self._context = new
        self._num_tokens += num_new

    def propose(self, committed: Sequence[int], most: int) -> list[int]:
        size = min(self._drafter.config.block_size, most + 1)
        device = self._embedding.device
        tokens = torch.full((size,), self._drafter.config.mask_token_id, device=device)
        tokens[0] = committed[-1]
        start = len(committed) - 1
        anchor = torch.tensor([start])
        hidden = self._drafter(
            self._embedding[tokens],
            torch.arange(start, start + size, device=device),
            self._context,
            plan_tiles(torch.tensor([0, start + 1]), anchor),
            anchor.to(device),
        )
        return torch.nn.functional.linear(hidden[1:], self._head).argmax(-1).tolist()


@torch.inference_mode()
def decode(
    target: DecodingTarget,
    prompt: Sequence[int],
    *,
    proposer: Proposer | None,
    new_tokens: int,
    block_size: int = 2,
    stop_ids: Collection[int] = (),
) -> Decoded:
    """Greedy decoding of at most ``new_tokens`` tokens, ending after a stop token.

    With ``proposer`` None it is the target's own decoding, a token a step. With one, each step
    checks a block; accepted are the drafts equal to the target's own choice.
    """
    logits, features = target.forward(torch.tensor(list(prompt)))
    committed = [*prompt, int(logits[-1].argmax())]
    lengths: list[int] = []
    end = len(prompt) + new_tokens
    if proposer:
        proposer.observe(features)
    while len(committed) < end and committed[-1] not in stop_ids:
        room = end - len(committed)
        drafts = proposer.propose(committed, min(block_size - 1, room)) if proposer else []
        start = len(committed) - 1
        logits, features = target.forward(torch.tensor([committed[-1], *drafts]))
        choices = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
            accepted += 1
        new = _until_stop(choices[: min(accepted + 1, room)], stop_ids)
        committed += new
        lengths.append(len(new))
        target.crop(start + len(new))
        if proposer:
            proposer.observe(features[: len(new)])
    return Decoded(tokens=committed[len(prompt) :], acceptance_lengths=lengths)


def _until_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens
