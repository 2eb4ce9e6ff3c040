"""The loss and the accuracy beside it."""

import math

import pytest
import torch
from torch.nn import functional

from dflash_cache.drafter import loss
from dflash_cache.drafter.loss import BlockAccuracy, slot_loss, slot_weights


def random_slots(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(6 * 4, 8, generator=generator, requires_grad=True)
    head = torch.randn(10, 8, generator=generator)
    labels = torch.randint(0, 10, (6, 4), generator=generator)
    supervised = torch.rand(6, 4, generator=generator) > 0.4
    supervised[:, 0] = False
    return hidden, head, labels, supervised


@pytest.mark.parametrize(("size", "gamma"), [(16, 7), (10, 5), (8, 4), (6, 3)])
def test_slot_weights_decay_from_one_and_leave_out_slot_zero(size, gamma):
    expected = [0.0] + [math.exp(-(k - 1) / gamma) for k in range(1, size)]
    assert slot_weights(size).tolist() == pytest.approx(expected)


def test_gamma_may_be_given():
    assert slot_weights(4, 2.0).tolist() == pytest.approx([0, 1, math.exp(-0.5), math.exp(-1)])


def test_the_sums_are_those_of_the_formula():
    hidden, head, labels, supervised = random_slots()
    weights = slot_weights(4)
    found = slot_loss(hidden, head, labels, supervised, weights)
    logits = (hidden.detach() @ head.T).view(6, 4, 10)
    total, weight = 0.0, 0.0
    for s in range(6):
        for k in range(4):
            if supervised[s, k]:
                entropy = functional.cross_entropy(logits[s, k], labels[s, k])
                total += float(weights[k] * entropy)
                weight += float(weights[k])
    assert float(found.weighted_sum.detach()) == pytest.approx(total, rel=1e-5)
    assert float(found.weight_sum) == pytest.approx(weight, rel=1e-6)
    assert found.correct.equal((logits.argmax(-1) == labels) & supervised)


def test_the_head_in_chunks_gives_the_same_loss_and_gradient(monkeypatch):
    results = []
    for elements in (1 << 26, 30):  # all at once, then three slots at a time
        monkeypatch.setattr(loss, "CHUNK_ELEMENTS", elements)
        hidden, head, labels, supervised = random_slots()
        found = slot_loss(hidden, head, labels, supervised, slot_weights(4))
        found.weighted_sum.backward()
        results.append((found, hidden.grad))
    (whole, whole_grad), (chunked, chunked_grad) = results
    assert torch.allclose(whole.weighted_sum, chunked.weighted_sum, rtol=1e-6)
    assert whole.correct.equal(chunked.correct)
    assert (whole_grad - chunked_grad).abs().max() <= 1e-6


def test_nothing_supervised_gives_zero_sums_and_no_nan():
    hidden, head, labels, supervised = random_slots()
    found = slot_loss(hidden, head, labels, torch.zeros_like(supervised), slot_weights(4))
    assert float(found.weighted_sum.detach()) == 0
    assert float(found.weight_sum) == 0


def test_block_acceptance_length_counts_leading_correct_slots_and_the_bonus():
    accuracy = BlockAccuracy.zero(4)
    correct = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
    supervised = torch.tensor([[0, 1, 1, 1]] * 3, dtype=torch.bool)
    accuracy.add(correct, supervised)
    assert accuracy.block_acceptance_length == pytest.approx((4 + 2 + 1) / 3)
    assert accuracy.slot_accuracy == pytest.approx([2 / 3, 2 / 3, 1], abs=1e-6)


def test_accuracy_without_blocks_is_zero():
    accuracy = BlockAccuracy.zero(3)
    assert accuracy.block_acceptance_length == 0
    assert accuracy.slot_accuracy == [0.0, 0.0]


@pytest.mark.parametrize("elements", [1 << 26, 30])
def test_with_a_teacher_it_is_the_divergence_from_the_teachers_distribution(elements, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", elements)
    hidden, head, labels, supervised = random_slots()
    teacher = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
    found = slot_loss(hidden, head, labels, supervised, slot_weights(4), teacher)
    wanted = (teacher @ head.T).softmax(-1)
    divergence = (wanted * (wanted.log() - (hidden.detach() @ head.T).log_softmax(-1))).sum(-1)
    weights = slot_weights(4) * supervised
    assert float(found.weighted_sum.detach()) == pytest.approx(
        float((divergence.view(6, 4) * weights).sum()), rel=1e-5
    )
    same = slot_loss(teacher, head, labels, supervised, slot_weights(4), teacher)
    assert float(same.weighted_sum) == pytest.approx(0, abs=1e-5)
