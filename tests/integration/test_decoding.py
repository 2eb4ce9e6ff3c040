"""Decoding with real targets' caches: blocks that are rolled back, sequences side by side."""

import pytest
import torch

from dflash_cache.drafter.choice import Drafts, Sampled
from dflash_cache.drafter.generation import Limits, decode
from dflash_cache.target import BatchedDecoder, LayerCapture, Target, TargetDecoder
from tests.support.tiny_targets import load_plain, save_target

LAYERS = (1, 4, 6)
NEW_TOKENS, BLOCK = 24, 6
DENSE = ("qwen3", "llama", "gemma3", "qwen3_moe")
LENGTHS = (50, 1, 33, 7)  # gemma3's window is of 32 tokens


@pytest.fixture(scope="module", params=[*DENSE, "qwen3_5"])
def folder(request, tmp_path_factory):
    return save_target(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def capture(folder):
    return LayerCapture(Target.load(folder, dtype="float32", device="cpu"), LAYERS)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 512, (n,), generator=generator).tolist() for n in LENGTHS]


class PartlyRight:
    """Knows what the target writes, and spoils the drafts from a place that changes.

    It checks that it is shown the states of all tokens but the last, as one pass gives them.
    """

    def __init__(self, outputs, states):
        self._whole, self._states = outputs, states
        self._seen = [states_TKH[:0] for states_TKH in states]

    def observe(self, features):
        self._seen = [
            torch.cat([seen, own]) for seen, own in zip(self._seen, features, strict=True)
        ]
        for seen, expected in zip(self._seen, self._states, strict=True):
            torch.testing.assert_close(seen, expected[: len(seen)], rtol=0, atol=1e-4)

    def propose(self, decodings, most):
        return [self._drafts(*each) for each in zip(self._whole, decodings, most, strict=True)]

    def _drafts(self, whole, decoding, most):
        start = len(decoding.committed)
        assert decoding.committed == whole[:start]
        good = start * start % BLOCK
        right = whole[start : start + most]
        return Drafts(tokens=right[:good] + [(token + 1) % 512 for token in right[good:]])

    def keep(self, indices):
        self._whole = [self._whole[index] for index in indices]
        self._states = [self._states[index] for index in indices]
        self._seen = [self._seen[index] for index in indices]


@pytest.fixture(scope="module")
@torch.no_grad()
def wholes(folder) -> list[list[int]]:
    """Prompts with greedy text, each token from a pass over the whole without any cache."""
    model, wholes = load_plain(folder), prompts()
    for tokens in wholes:
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return wholes


def states_of(capture, tokens):
    return capture.hidden_states([torch.tensor(tokens)])


def test_drafts_partly_right_leave_the_greedy_text_and_the_states_as_they_are(capture, wholes):
    limits = Limits(new_tokens=NEW_TOKENS, block_size=BLOCK)
    for prompt, whole in zip(prompts(), wholes, strict=True):
        proposer = PartlyRight([whole], [states_of(capture, whole)])
        (decoded,) = decode(TargetDecoder(capture), [prompt], proposer=proposer, limits=limits)
        assert decoded.tokens == whole[len(prompt) :]
        assert len(set(decoded.acceptance_lengths)) >= 3  # blocks were cut at several places


def test_sequences_decoded_together_get_the_greedy_text_of_each_alone(capture, wholes):
    if capture.target.shape.hybrid:
        with pytest.raises(ValueError, match="recurrent"):
            BatchedDecoder(capture)
        return
    stop = wholes[2][len(prompts()[2]) + 9]  # one or more sequences leave early
    limits = Limits(new_tokens=NEW_TOKENS, block_size=BLOCK, stop_ids={stop})
    states = [states_of(capture, whole) for whole in wholes]
    together = decode(
        BatchedDecoder(capture), prompts(), proposer=PartlyRight(wholes, states), limits=limits
    )
    for prompt, whole, own, decoded in zip(prompts(), wholes, states, together, strict=True):
        (alone,) = decode(
            TargetDecoder(capture), [prompt], proposer=PartlyRight([whole], [own]), limits=limits
        )
        assert decoded == alone
        assert decoded.tokens == whole[len(prompt) :][: len(decoded.tokens)]
    assert len({len(decoded.tokens) for decoded in together}) > 1


def test_sampled_texts_do_not_depend_on_what_is_decoded_beside_them(capture):
    if capture.target.shape.hybrid:
        pytest.skip("a target with a recurrent state decodes one sequence at a time")
    limits = Limits(new_tokens=12)

    def sampled(target, indices):
        choices = [Sampled(1.0, seed=3, sequence=index) for index in indices]
        chosen = [prompts()[index] for index in indices]
        return decode(target, chosen, proposer=None, limits=limits, choices=choices)

    together = sampled(BatchedDecoder(capture), range(len(LENGTHS)))
    alone = [sampled(TargetDecoder(capture), [index])[0] for index in range(len(LENGTHS))]
    assert together == alone
