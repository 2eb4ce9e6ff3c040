"""The decoding loop, with targets and proposers of known behaviour."""

import pytest
import torch

from dflash_cache.drafter.choice import Drafts, Greedy
from dflash_cache.drafter.generation import Decoding, Limits, decode
from dflash_cache.drafter.lookup import PromptLookup

VOCAB = 50


class CountingTarget:
    """Follows token t by t + 1, and checks that its states are cropped as they must be."""

    def __init__(self):
        self.sequences = []

    def forward(self, input_ids):
        self.sequences = self.sequences or [[] for _ in input_ids]
        outputs = []
        for tokens, ids in zip(self.sequences, input_ids, strict=True):
            tokens.extend(ids)
            own = torch.tensor(ids)
            logits = torch.nn.functional.one_hot((own + 1) % VOCAB, VOCAB).float()
            outputs.append((logits, own.float().view(-1, 1, 1)))
        return outputs

    def crop(self, num_tokens):
        for tokens, count in zip(self.sequences, num_tokens, strict=True):
            assert count <= len(tokens)
            del tokens[count:]

    def keep(self, indices):
        self.sequences = [self.sequences[index] for index in indices]


class ScriptedProposer:
    """Right for the first ``good`` drafts of each block, wrong after."""

    def __init__(self, good):
        self.good, self.seen = good, []

    def observe(self, features):
        self.seen = self.seen or [[] for _ in features]
        for seen, own in zip(self.seen, features, strict=True):
            seen.extend(own.flatten().int().tolist())

    def propose(self, decodings, most):
        return [self._propose(*each) for each in zip(self.seen, decodings, most, strict=True)]

    def _propose(self, seen, decoding, most):
        committed = decoding.committed
        assert seen == committed[:-1], "states of exactly the tokens before the last"
        right = [(committed[-1] + 1 + k) % VOCAB for k in range(most)]
        wrong = [(t + 7) % VOCAB for t in right]
        return Drafts(tokens=right[: self.good] + wrong[self.good :])

    def keep(self, indices):
        self.seen = [self.seen[index] for index in indices]


def decode_one(prompt, proposer, **limits):
    return decode(CountingTarget(), [prompt], proposer=proposer, limits=Limits(**limits))[0]


@pytest.mark.parametrize("good", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("new_tokens", [1, 2, 7, 12])
def test_output_equals_the_targets_own_and_steps_add_up(good, new_tokens):
    plain = decode_one([3, 4, 5], None, new_tokens=new_tokens)
    drafted = decode_one([3, 4, 5], ScriptedProposer(good), new_tokens=new_tokens, block_size=4)
    assert plain.tokens == list(range(6, 6 + new_tokens))
    assert drafted.tokens == plain.tokens
    assert plain.acceptance_lengths == [1] * (new_tokens - 1)
    assert sum(drafted.acceptance_lengths) == new_tokens - 1
    assert max(drafted.acceptance_lengths, default=1) <= min(good, 3) + 1


def test_decoding_ends_with_the_stop_token_even_inside_a_block():
    decoded = decode_one([1], ScriptedProposer(9), new_tokens=20, block_size=8, stop_ids={5})
    assert decoded.tokens == [2, 3, 4, 5]
    assert decoded.acceptance_lengths == [3]


def test_a_step_says_what_became_of_each_draft():
    (first, second) = decode_one([1], ScriptedProposer(2), new_tokens=7, block_size=5).steps
    assert (first.drafts, first.num_accepted, first.target_token) == ([3, 4, 12, 13], 2, 5)
    assert (second.drafts, second.num_accepted, second.target_token) == ([6, 7, 15], 2, 8)


@pytest.mark.parametrize("limits", [{"new_tokens": 3}, {"new_tokens": 9, "stop_ids": {4}}])
def test_a_text_that_ends_with_an_accepted_draft_has_no_token_of_the_target_after_it(limits):
    decoded = decode_one([1], ScriptedProposer(9), block_size=4, **limits)
    (step,) = decoded.steps
    assert decoded.tokens == [2, 3, 4]
    assert step.drafts[:2] == [3, 4]
    assert (step.num_accepted, step.target_token) == (2, None)


def test_a_prompt_answered_by_a_stop_token_needs_no_step():
    decoded = decode_one([4], None, new_tokens=9, stop_ids={5})
    assert decoded.tokens == [5]
    assert decoded.acceptance_lengths == []


@pytest.mark.parametrize("good", [0, 2, 9])
def test_sequences_that_end_apart_are_decoded_together_as_each_alone(good):
    prompts = [[4], [1], [9, 10], [2, 3], [40, 41, 42]]  # the first needs no step
    limits = {"new_tokens": 9, "block_size": 4, "stop_ids": {5}}
    together = decode(
        CountingTarget(), prompts, proposer=ScriptedProposer(good), limits=Limits(**limits)
    )
    assert together == [decode_one(prompt, ScriptedProposer(good), **limits) for prompt in prompts]
    assert [len(each.tokens) for each in together] == [1, 4, 9, 2, 9]


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
    decoding = Decoding(committed, 100, Greedy())
    assert PromptLookup().propose([decoding], [3]) == [Drafts(tokens=drafts)]
