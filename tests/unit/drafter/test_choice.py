"""Sampling with drafts keeps the target's distribution: Pearson's chi-square over pairs of tokens.

Seeds are fixed, so a right rule passes always; the level says how rarely another seed would not.
"""

import pytest
import torch

from dflash_cache.drafter.choice import NO_DRAFTS, Drafts, Greedy, Sampled
from dflash_cache.drafter.generation import Limits, decode

VOCAB = 8
CRITICAL = 103.44  # chi-square with VOCAB ** 2 - 1 = 63 degrees of freedom, level 0.001
START = 3  # the prompt


def table(seed: int) -> torch.Tensor:
    """Logits [token before, token]: a model that sees one token."""
    generator = torch.Generator().manual_seed(seed)
    return 0.4 * torch.randn(VOCAB, VOCAB, generator=generator)


TARGET, DRAFTER = table(0), table(1)


class TableTarget:
    """Always answers the prompt by ``START``; after that a sequence follows ``TARGET``."""

    def __init__(self):
        self.begun = False

    def forward(self, input_ids):
        ids = torch.tensor(list(input_ids[0]))
        logits = TARGET[ids]
        if not self.begun:
            logits = torch.full((1, VOCAB), -1e9)
            logits[0, START] = 0
        self.begun = True
        return [(logits, torch.zeros(len(ids), 1, 1))]

    def crop(self, num_tokens):
        pass

    def keep(self, indices):
        pass


class TableProposer:
    """Drafts follow ``DRAFTER``; slots do not see one another, as in a block."""

    def observe(self, features):
        pass

    def propose(self, decodings, most):
        (decoding,), (count,) = decodings, most
        return [decoding.choice.draft(DRAFTER[[decoding.committed[-1]] * count])]


class CertainProposer(TableProposer):
    """Drafts without chance: token 2, then token 5."""

    def propose(self, decodings, most):
        return [Drafts(tokens=[2, 5][: most[0]])]


class AlwaysAccepting(Sampled):
    """The wrong rule."""

    def _num_accepted(self, p, drafts):
        return len(drafts.tokens)


class NeverCorrecting(Sampled):
    """Accepts by the rule and draws from p after a rejection: also wrong."""

    def verify(self, drafts, logits):
        accepted = self._num_accepted(self._probabilities(logits), drafts) if drafts.tokens else 0
        return drafts.tokens[:accepted] + super().verify(NO_DRAFTS, logits[accepted:][:1])


def chi_square(rule, proposer, temperature=1.0, draws=4_000) -> float:
    """Of ``draws`` draws of the two tokens after ``START``, against the target's distribution."""
    counts = torch.zeros(VOCAB, VOCAB)
    limits = Limits(new_tokens=3, block_size=3)
    for draw in range(draws):
        (decoded,) = decode(
            TableTarget(), [[0]], proposer=proposer, limits=limits,
            choices=[rule(temperature, seed=7, sequence=draw)],
        )  # fmt: skip
        start, first, second = decoded.tokens
        assert start == START
        counts[first, second] += 1
    p = torch.softmax(TARGET / temperature, dim=-1)
    expected = draws * p[START][:, None] * p
    assert expected.min() > 5  # else the statistic has another distribution
    return float(((counts - expected) ** 2 / expected).sum())


def test_two_tokens_drawn_with_drafts_at_temperature_1_have_the_targets_distribution():
    assert chi_square(Sampled, TableProposer(), draws=20_000) < CRITICAL


def test_another_temperature_and_drafts_without_chance_keep_the_distribution_too():
    assert chi_square(Sampled, TableProposer(), temperature=1.5) < CRITICAL
    assert chi_square(Sampled, CertainProposer()) < CRITICAL


@pytest.mark.parametrize("rule", [AlwaysAccepting, NeverCorrecting])
def test_wrong_rules_fail_the_same_test_with_a_fifth_of_the_draws(rule):
    assert chi_square(rule, TableProposer()) > 3 * CRITICAL


def test_draws_depend_on_seed_and_sequence_alone():
    def tokens(seed, sequence):
        choice = Sampled(1.0, seed=seed, sequence=sequence)
        return [choice.verify(NO_DRAFTS, TARGET[:1])[0] for _ in range(20)]

    assert tokens(1, 2) == tokens(1, 2)
    assert tokens(1, 2) != tokens(1, 3)
    assert tokens(1, 2) != tokens(2, 2)


def test_a_token_of_probability_0_is_never_drawn():
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 4] = 0.0
    for sequence in range(50):
        choice = Sampled(1.0, seed=0, sequence=sequence)
        assert choice.verify(NO_DRAFTS, logits) == [4]
        assert choice.verify(Drafts(tokens=[0]), logits.repeat(2, 1)) == [4]


def test_greedy_accepts_until_the_first_difference():
    logits = torch.nn.functional.one_hot(torch.tensor([1, 2, 3]), VOCAB).float()
    assert Greedy().verify(Drafts(tokens=[1, 5]), logits) == [1, 2]
    assert Greedy().verify(Drafts(tokens=[1, 2]), logits) == [1, 2, 3]
    assert Greedy().draft(logits).tokens == [1, 2, 3]
