"""Speculative decoding: a proposer drafts a block, the target checks it in one pass.

Several sequences may be decoded at once; each is decoded as it would be alone.

Axes: T tokens, K context layers, H hidden size, V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from .choice import NO_DRAFTS, Choice, Drafts, Greedy

Output = tuple[torch.Tensor, torch.Tensor]  # logits [T, V] and hidden states [T, K, H]


class DecodingTarget(Protocol):
    """A target's decoding state for the sequences that are still decoded, in their order."""

    def forward(self, input_ids: Sequence[Sequence[int]]) -> list[Output]:
        """Append each sequence's ids; the first call takes the prompts."""
        ...

    def crop(self, num_tokens: Sequence[int]) -> None:
        """Forget everything after each sequence's first ``num_tokens`` tokens."""
        ...

    def keep(self, indices: Sequence[int]) -> None:
        """Forget the other sequences."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A verify step: the draft tokens, how many were accepted, and the target's own token.

    ``target_token`` stands in the place of the first draft that was not accepted, or after the
    last draft. It is None where the text ends with an accepted draft; drafts after that one are
    no part of the text.
    """

    drafts: list[int]
    num_accepted: int
    target_token: int | None

    @property
    def tokens(self) -> list[int]:
        """What the step committed."""
        own = [] if self.target_token is None else [self.target_token]
        return self.drafts[: self.num_accepted] + own


@dataclass(slots=True)
class Decoding:
    """A sequence under way: prompt and new tokens, at most ``end`` of them, and its steps."""

    committed: list[int]
    end: int
    choice: Choice
    steps: list[Step] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.end - len(self.committed)

    def commit(self, drafts: list[int], chosen: list[int], stop_ids: Collection[int]) -> int:
        """Append the accepted drafts and a token more, ``chosen``, up to the end: how many."""
        new = _until_stop(chosen[: self.room], stop_ids)
        num_accepted = min(len(chosen) - 1, len(new))
        own = new[num_accepted] if num_accepted < len(new) else None
        self.steps.append(Step(drafts=drafts, num_accepted=num_accepted, target_token=own))
        self.committed += new
        return len(new)


class Proposer(Protocol):
    """Proposes what may follow, for the sequences that are still decoded, in their order."""

    def observe(self, features: Sequence[torch.Tensor]) -> None:
        """Take the hidden states [T, K, H] of each sequence's newly committed tokens."""
        ...

    def propose(self, decodings: Sequence[Decoding], most: Sequence[int]) -> list[Drafts]:
        """At most ``most`` draft tokens for each sequence."""
        ...

    def keep(self, indices: Sequence[int]) -> None:
        """Forget the other sequences."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When decoding ends (after a stop token, or so many tokens), and the size of a block."""

    new_tokens: int
    block_size: int = 2
    stop_ids: Collection[int] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """New tokens: one that answers the prompt, then those of each verify step."""

    tokens: list[int]
    steps: list[Step]

    @property
    def acceptance_lengths(self) -> list[int]:
        """How many tokens each step committed (the bonus token included)."""
        return [len(step.tokens) for step in self.steps]


@torch.inference_mode()
def decode(
    target: DecodingTarget,
    prompts: Sequence[Sequence[int]],
    *,
    proposer: Proposer | None,
    limits: Limits,
    choices: Sequence[Choice] | None = None,
) -> list[Decoded]:
    """Decode ``prompts`` together; ``choices`` has one for each, and is greedy by default.

    With ``proposer`` None it is the target's own decoding, a token a step. With one, each step
    checks a block and commits the accepted drafts and one token more.
    """
    decodings = [
        Decoding(list(prompt), len(prompt) + limits.new_tokens, choice)
        for prompt, choice in zip(prompts, choices or [Greedy()] * len(prompts), strict=True)
    ]
    outputs = target.forward(prompts)
    for decoding, (logits, _) in zip(decodings, outputs, strict=True):
        decoding.committed += decoding.choice.verify(NO_DRAFTS, logits[-1:])
    if proposer:
        proposer.observe([features for _, features in outputs])
    live = _unfinished(decodings, limits, target, proposer)
    while live:
        _step(live, limits, target, proposer)
        live = _unfinished(live, limits, target, proposer)
    return [
        Decoded(tokens=each.committed[len(prompt) :], steps=each.steps)
        for prompt, each in zip(prompts, decodings, strict=True)
    ]


def _step(
    live: Sequence[Decoding], limits: Limits, target: DecodingTarget, proposer: Proposer | None
) -> None:
    """Draft, check and commit for each sequence."""
    drafts = [NO_DRAFTS] * len(live)
    if proposer:
        most = [min(limits.block_size - 1, decoding.room) for decoding in live]
        drafts = proposer.propose(live, most)
    blocks = [
        [decoding.committed[-1], *own.tokens] for decoding, own in zip(live, drafts, strict=True)
    ]
    outputs = target.forward(blocks)
    num_new = [
        decoding.commit(own.tokens, decoding.choice.verify(own, logits), limits.stop_ids)
        for decoding, own, (logits, _) in zip(live, drafts, outputs, strict=True)
    ]
    target.crop([len(decoding.committed) - 1 for decoding in live])
    if proposer:
        proposer.observe(
            [features[:count] for count, (_, features) in zip(num_new, outputs, strict=True)]
        )


def _unfinished(
    decodings: Sequence[Decoding],
    limits: Limits,
    target: DecodingTarget,
    proposer: Proposer | None,
) -> list[Decoding]:
    """Those that go on; target and proposer forget the others."""
    indices = [
        index
        for index, decoding in enumerate(decodings)
        if decoding.room > 0 and decoding.committed[-1] not in limits.stop_ids
    ]
    if indices and len(indices) < len(decodings):
        target.keep(indices)
        if proposer:
            proposer.keep(indices)
    return [decodings[index] for index in indices]


def _until_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens
