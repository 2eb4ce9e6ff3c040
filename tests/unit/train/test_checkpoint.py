"""Checkpoints are whole or absent."""

import pytest
import torch

from dflash_cache.errors import TrainingError
from dflash_cache.train.checkpoint import CheckpointStore, TrainingState, load_states
from dflash_cache.train.order import Position


def newest(store):
    folder, state = store.newest()
    return state, *load_states(folder)


def save(store, step, score=None):
    state = TrainingState(
        step=step, position=Position(epoch=1, row=step), num_tokens=9, loss_first=2.0, loss_last=1.0
    )
    store.save(state, {"w": torch.full((3,), float(step))}, {"lr": step / 10}, score)
    return state


def test_the_newest_checkpoint_comes_back_as_it_was(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    save(store, 9)
    state = save(store, 10)
    found, weights, optimizer = newest(store)
    assert found == state
    assert weights["w"].tolist() == [10.0] * 3
    assert optimizer == {"lr": 1.0}


def test_only_the_newest_few_are_kept_counted_by_number(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        save(store, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("damage", ["halve", "delete", "flip"])
def test_a_torn_checkpoint_is_skipped_with_a_warning(name, damage, tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    older = save(store, 1)
    save(store, 2)
    path = tmp_path / "step-00000002" / name
    content = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "halve":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000002 is damaged or incomplete"):
        found, weights, _ = newest(store)
    assert found == older
    assert weights["w"].tolist() == [1.0] * 3


def test_a_torn_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (tmp_path / "step-00000001" / "optimizer.pt").unlink()
    save(store, 1)
    assert store.newest() is not None


def test_what_a_crash_left_half_written_is_cleared_and_never_read(tmp_path):
    (tmp_path / ".writing-step-00000007").mkdir()
    store = CheckpointStore(tmp_path, keep=2)
    assert store.newest() is None
    save(store, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


def test_torn_checkpoints_of_later_steps_do_not_push_out_whole_ones(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 200)
    save(store, 400)
    (tmp_path / "step-00000400" / "optimizer.pt").unlink()
    save(store, 201)
    with pytest.warns(UserWarning, match="step-00000400"):
        _, found = store.newest()
    assert found.step == 201


def test_when_all_checkpoints_are_torn_nothing_starts_over(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1)
    (tmp_path / "step-00000001" / "model.safetensors").unlink()
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(TrainingError, match="another --out"),
    ):
        store.newest()


def test_folders_of_other_names_are_no_checkpoints(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)
    (tmp_path / "step-best").mkdir()
    (tmp_path / "step-00000001.bak").mkdir()
    save(store, 2)
    assert store.newest()[1].step == 2
    assert (tmp_path / "step-best").exists()


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    store = CheckpointStore(tmp_path, keep=2, keep_best=True)
    for step, score in ((1, 1.5), (2, 3.0), (3, None), (4, 2.0), (5, 2.5)):
        save(store, step, score)
    names = ["step-00000002", "step-00000004", "step-00000005"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    save(store, 6, 3.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000006"]


def test_without_keep_best_a_score_keeps_nothing(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, 3.0)
    save(store, 2, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
