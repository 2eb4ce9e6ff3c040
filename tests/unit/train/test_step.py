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


def gradients(step, batches):
    for batch in batches:
        loss, _ = step.forward(batch)
        loss.weighted_sum.backward()
    return [parameter.grad for parameter in step.drafter.parameters()]


def test_rows_of_2_and_of_100_supervised_tokens_count_alike_in_one_batch_and_in_four(tmp_path):
    batches = []
    for seed, supervised in enumerate((2, 100, 2, 100)):
        batch = draft_batch([110], [list(range(110 - supervised, 109))], seed=seed)
        batch.loss_mask[: 110 - supervised] = False
        batches.append(batch)
    config = drafter_config()
    together, apart = (drafter_step(tmp_path, config, lr=1e-3) for _ in range(2))
    assert together.step([packed(batches)]).loss == pytest.approx(apart.step(batches).loss, 1e-5)
    pairs = zip(together.drafter.parameters(), apart.drafter.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= 1e-5


@pytest.mark.parametrize("lengths", [[127], [128], [129], [257], [2], [3, 128, 1, 257]])
def test_rows_at_odd_lengths_with_loss_on_their_last_3_tokens_give_a_finite_loss(lengths, tmp_path):
    step = drafter_step(tmp_path, drafter_config(block_size=16))
    anchors = [[p for p in (n - 3, n - 2) if p >= 0] if n > 1 else [] for n in lengths]
    batch = draft_batch(lengths, anchors)
    batch.loss_mask[:] = False
    for end in batch.offsets[1:].tolist():
        batch.loss_mask[max(0, end - 3) : end] = True
    result = step.step([batch])
    assert math.isfinite(result.loss)
    assert result.num_blocks == len(batch.anchors)


def test_activation_checkpoints_change_memory_and_not_gradients(tmp_path):
    config = drafter_config()
    plain = gradients(drafter_step(tmp_path, config), uneven_sequences())
    again = gradients(
        drafter_step(tmp_path, config, checkpoint_activations=True), uneven_sequences()
    )
    assert all(a.equal(b) for a, b in zip(plain, again, strict=True))


def test_computing_in_bfloat16_keeps_float32_weights_and_nearly_the_same_loss(tmp_path):
    config = drafter_config()
    exact = drafter_step(tmp_path, config).step(uneven_sequences())
    step = drafter_step(tmp_path, config, compute_dtype="bfloat16")
    rounded = step.step(uneven_sequences())
    assert {parameter.dtype for parameter in step.drafter.parameters()} == {torch.float32}
    assert rounded.loss == pytest.approx(exact.loss, rel=2e-2)
    assert rounded.loss != exact.loss


def test_a_slots_teacher_is_the_state_one_token_before_it(tmp_path):
    step = drafter_step(tmp_path, drafter_config(), loss="kl")
    last = torch.arange(9.0)[:, None].expand(9, 2)
    teacher = step._teacher(last, torch.tensor([2, 6])).view(2, 4, 2)[..., 0]
    assert teacher[:, 1:].tolist() == [[2, 3, 4], [6, 7, 8]]
