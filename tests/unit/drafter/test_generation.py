"""The decoding loop, with targets and proposers of known behaviour."""

import pytest
import torch

from dflash_cache.drafter.generation import decode
from dflash_cache.drafter.lookup import PromptLookup

VOCAB = 50


class CountingTarget:
    """Follows token t by t + 1, and checks that its state is cropped as it must be."""

    def __init__(self):
        self.tokens = []

    def forward(self, input_ids):
        self.tokens += input_ids.tolist()
        logits = torch.nn.functional.one_hot((input_ids + 1) % VOCAB, VOCAB).float()
        return logits, input_ids.float().view(-1, 1, 1)

    def crop(self, num_tokens):
        assert num_tokens <= len(self.tokens)
        del self.tokens[num_tokens:]


class ScriptedProposer:
    """Right for the first ``good`` drafts of each block, wrong after."""

    def __init__(self, good):
        self.good, self.seen, self.asked = good, [], []

    def observe(self, features_TKH):
        self.seen += features_TKH.flatten().int().tolist()

    def propose(self, committed, most):
        assert self.seen == list(committed[:-1]), "states of exactly the tokens before the last"
        self.asked.append(most)
        right = [(committed[-1] + 1 + k) % VOCAB for k in range(most)]
        return [t if k < self.good else (t + 7) % VOCAB for k, t in enumerate(right)]


@pytest.mark.parametrize("good", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("new_tokens", [1, 2, 7, 12])
def test_output_equals_the_targets_own_and_steps_add_up(good, new_tokens):
    plain = decode(CountingTarget(), [3, 4, 5], proposer=None, new_tokens=new_tokens)
    drafted = decode(
        CountingTarget(), [3, 4, 5], proposer=ScriptedProposer(good), new_tokens=new_tokens,
        block_size=4,
    )  # fmt: skip
    assert plain.tokens == list(range(6, 6 + new_tokens))
    assert drafted.tokens == plain.tokens
    assert plain.acceptance_lengths == [1] * (new_tokens - 1)
    assert sum(drafted.acceptance_lengths) == new_tokens - 1
    assert max(drafted.acceptance_lengths, default=1) <= min(good, 3) + 1


def test_decoding_ends_with_the_stop_token_even_inside_a_block():
    decoded = decode(
        CountingTarget(), [1], proposer=ScriptedProposer(9), new_tokens=20, block_size=8,
        stop_ids={5},
    )  # fmt: skip
    assert decoded.tokens == [2, 3, 4, 5]
    assert decoded.acceptance_lengths == [3]


def test_a_prompt_answered_by_a_stop_token_needs_no_step():
    decoded = decode(CountingTarget(), [4], proposer=None, new_tokens=9, stop_ids={5})
    assert decoded.tokens == [5]
    assert decoded.acceptance_lengths == []


@pytest.mark.parametrize(
    ("committed", "drafts"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2]),  # the last three tokens stood before
        ([5, 2, 3, 9, 1, 2, 3], [9, 1, 2]),  # only the last two
        ([3, 7, 8, 5, 3], [7, 8, 5]),  # only the last one
        ([1, 2, 3], []),
        ([4], []),
        ([4, 4], [4]),
    ],
)
def test_prompt_lookup_copies_what_followed_the_longest_match(committed, drafts):
    assert PromptLookup().propose(committed, 3) == drafts
