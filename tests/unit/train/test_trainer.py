"""The loop around the step: what it does with batches, stops, measurements and figures."""

import json

import pytest
import torch

from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.errors import RankError, TrainingError
from dflash_cache.pipeline import Cancelled
from dflash_cache.train import CheckpointStore, Position, Trainer
from dflash_cache.train.batches import TrainingBatch
from tests.support.drafters import draft_batch, drafter_config, drafter_step, train_config


def steps_of(*, rows_in_epoch=4, empty=()):
    """A batch a step, endlessly; those numbered in ``empty`` have lost all their rows."""
    number, epoch = 0, 0
    while True:
        for row in range(1, rows_in_epoch + 1):
            ends = row == rows_in_epoch
            position = Position(epoch=epoch + ends, row=0 if ends else row)
            batch = None if number in empty else draft_batch([9], [[1, 3]], seed=number)
            yield TrainingBatch(batch=batch, position=position)
            number += 1
        epoch += 1


def trainer(tmp_path, num_steps=8, **changes):
    settings = {"epochs": 2, "log_every": 1} | changes
    config = train_config(tmp_path, **settings)
    store = CheckpointStore(config.out / "checkpoints", config.keep, keep_best=config.keep_best)
    config.out.mkdir(exist_ok=True)
    step = drafter_step(tmp_path, drafter_config(), num_steps, **settings)
    return Trainer(step, config, num_steps, store, store.newest())


def unmeasured():
    raise AssertionError("measured without being asked to")


def ignored(state, result):
    pass


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]


def test_every_figure_that_a_reader_looks_for_is_logged(tmp_path):
    trainer(tmp_path, 2, steps=2).run(steps_of(), ignored, unmeasured)
    first, _ = lines(tmp_path)
    assert set(first) == {
        "step", "epoch", "loss", "block_acceptance_length", "slot_accuracy", "lr", "grad_norm",
        "tokens", "tokens_per_s", "waiting_share", "memory_bytes",
    }  # fmt: skip
    assert len(first["slot_accuracy"]) == 3
    assert 0 <= first["waiting_share"] <= 1
    assert first["memory_bytes"] > 1 << 24


def test_a_step_that_lost_its_rows_is_passed_over_and_the_epochs_still_end(tmp_path):
    each = trainer(tmp_path)
    each.run(steps_of(empty=(2, 3, 7)), ignored, unmeasured)
    assert each.state.step == 5
    assert each.state.position == Position(epoch=2)


def test_an_epoch_without_any_row_is_an_error_and_no_endless_loop(tmp_path):
    with pytest.raises(TrainingError, match="dropped every row"):
        trainer(tmp_path, steps=8).run(steps_of(empty=range(4, 8)), ignored, unmeasured)


@pytest.mark.parametrize("stop", [Cancelled("train"), RankError("rank 1 of 2 failed")])
def test_a_stop_here_or_elsewhere_saves_the_last_whole_step(stop, tmp_path):
    each = trainer(tmp_path)

    def stopped():
        batches = steps_of()
        for _ in range(3):
            yield next(batches)
        raise stop

    with pytest.raises(type(stop)):
        each.run(stopped(), ignored, unmeasured)
    again = trainer(tmp_path)
    assert again.state.step == 3
    weights = again.step.drafter.state_dict()
    assert all(torch.equal(weights[n], w) for n, w in each.step.drafter.state_dict().items())


def test_an_error_of_the_step_itself_saves_nothing(tmp_path):
    each = trainer(tmp_path)
    each.step._head[:] = torch.nan
    with pytest.raises(TrainingError, match="rows"):
        each.run(steps_of(), ignored, unmeasured)
    assert not (tmp_path / "run/checkpoints").exists()


def measure_as(*lengths):
    """Measurements with these block acceptance lengths, in turn."""
    left = list(lengths)

    def measure():
        accuracy = BlockAccuracy.zero(4)
        accuracy.accepted, accuracy.blocks = left.pop(0) - 1, 1
        return accuracy

    return measure


def test_measurements_come_every_so_many_steps_and_are_logged(tmp_path):
    trainer(tmp_path, measure_every=3).run(steps_of(), ignored, measure_as(1.5, 2.5))
    name = "held_out_block_acceptance_length"
    found = [(line["step"], line[name]) for line in lines(tmp_path) if name in line]
    assert found == [(3, 1.5), (6, 2.5)]


def test_keep_best_measures_at_each_checkpoint_and_keeps_the_best(tmp_path):
    each = trainer(tmp_path, save_every=2, keep=1, keep_best=True)
    each.run(steps_of(), ignored, measure_as(2.0, 3.0, 2.5, 1.0))
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008"]
    record = json.loads((tmp_path / "run/checkpoints/step-00000004/state.json").read_text())
    assert record["block_acceptance_length"] == 3.0


def test_figures_after_the_resumed_step_are_cut(tmp_path):
    trainer(tmp_path, 4, steps=4, save_every=2, keep=4).run(steps_of(), ignored, unmeasured)
    newest = tmp_path / "run/checkpoints/step-00000004/optimizer.pt"
    newest.unlink()
    with pytest.warns(UserWarning, match="going back"):
        again = trainer(tmp_path, 4, steps=4)
    assert again.state.step == 2
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
