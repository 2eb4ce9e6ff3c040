"""One optimizer step: denominators, empty batches, faults."""

import math
from dataclasses import replace

import pytest
import torch

from dflash_cache.errors import TrainingError
from tests.support.drafters import draft_batch, drafter_config, drafter_step, uneven_sequences


def packed(batches):
    lengths = torch.tensor([batch.num_tokens for batch in batches])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return replace(
        batches[0],
        hidden_TKH=torch.cat([batch.hidden_TKH for batch in batches]),
        input_ids=torch.cat([batch.input_ids for batch in batches]),
        loss_mask=torch.cat([batch.loss_mask for batch in batches]),
        offsets=offsets,
        anchors=torch.cat([b.anchors + o for b, o in zip(batches, offsets, strict=False)]),
        row_ids=tuple(range(len(batches))),
    )


def test_four_micro_batches_of_one_equal_one_of_four(tmp_path):
    config = drafter_config()
    together, apart = drafter_step(tmp_path, config), drafter_step(tmp_path, config)
    for _ in range(3):
        one, four = together.step([packed(uneven_sequences())]), apart.step(uneven_sequences())
        assert one.loss == pytest.approx(four.loss, rel=1e-5)
        assert one.num_blocks == four.num_blocks
    pairs = zip(together.drafter.parameters(), apart.drafter.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-5


def test_a_fifth_row_left_over_at_accumulation_four_counts_in_full(tmp_path):
    config = drafter_config()
    apart, together = drafter_step(tmp_path, config), drafter_step(tmp_path, config)
    rest = draft_batch([30], [list(range(29))], seed=9)
    for step, first in ((apart, uneven_sequences()), (together, [packed(uneven_sequences())])):
        step.step(first)
        assert step.step([rest]).num_blocks == 29
    pairs = zip(together.drafter.parameters(), apart.drafter.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-5


def test_the_loss_is_one_weighted_mean_and_starts_near_the_logarithm_of_the_vocabulary(tmp_path):
    step = drafter_step(tmp_path, drafter_config())
    step._head = step._head * 1e-3
    result = step.step(uneven_sequences())
    assert result.loss == pytest.approx(math.log(64), rel=1e-2)


def test_a_step_without_a_supervised_slot_changes_nothing(tmp_path):
    step = drafter_step(tmp_path, drafter_config())
    before = [parameter.clone() for parameter in step.drafter.parameters()]
    empty = draft_batch([9, 3], [[], []])
    assert step.step([empty]) is None
    unsupervised = draft_batch([9], [[3]])
    unsupervised.loss_mask[:] = False
    assert step.step([unsupervised]) is None
    pairs = zip(before, step.drafter.parameters(), strict=True)
    assert all(old.equal(new) for old, new in pairs)
    assert step.optimizer.param_groups[0]["lr"] == step.optimizer.param_groups[0]["initial_lr"]


def test_an_empty_micro_batch_beside_a_full_one_does_not_matter(tmp_path):
    config = drafter_config()
    alone, beside = drafter_step(tmp_path, config), drafter_step(tmp_path, config)
    first = alone.step(uneven_sequences())
    second = beside.step([*uneven_sequences(), draft_batch([5], [[]])])
    assert first.loss == second.loss
    assert first.grad_norm == second.grad_norm


def test_a_loss_that_is_not_finite_names_the_rows(tmp_path):
    step = drafter_step(tmp_path, drafter_config())
    bad = draft_batch([8], [[1, 2]])
    bad.hidden_TKH[0] = torch.nan
    with pytest.raises(TrainingError, match=r"rows \[0\]"):
        step.step([bad])


def test_training_lowers_the_loss(tmp_path):
    step = drafter_step(tmp_path, drafter_config(), num_steps=30, lr=3e-3)
    losses = [step.step(uneven_sequences()).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
