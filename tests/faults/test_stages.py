"""A stage that fails ends the command with the original error, in either phase."""

import threading

import pytest

from dflash_cache.cache import Cache, CacheWriter, SegmentWriter
from dflash_cache.config import BothConfig
from dflash_cache.data import TokenRows
from dflash_cache.runs import train, workers
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.train import DrafterStep, batches
from tests.support.runs import assert_same_training, extract_config, train_config


class PlannedFaultError(Exception):
    """Raised where a test wants a failure."""


# stage -> where it is made to fail (owner, name of the function)
STAGES = {
    "read": (TokenRows, "sequence"),
    "target": (workers, "capture_batch"),
    "write": (SegmentWriter, "append"),
    "finish": (SegmentWriter, "finish"),
    "commit": (CacheWriter, "commit"),
    "prefetch": (Cache, "read"),
    "pack": (batches, "pack"),
    "train": (DrafterStep, "step"),
    "measure": (train, "measure_held_out"),
    "export": (train, "export_drafter"),
}
NAMES = {"finish": "write", "measure": "train", "export": "train"}


def fail_at_call(monkeypatch, owner, name: str, number: int) -> None:
    """Let the call numbered ``number`` raise, and all after it."""
    original = getattr(owner, name)
    calls = []

    def failing(*arguments, **keywords):
        calls.append(name)
        if len(calls) >= number:
            raise PlannedFaultError(name)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, failing)


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "/" in thread.name}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_failing_stage_ends_the_run_with_its_error_and_leaves_it_resumable(
    stage, overlap, tmp_path, monkeypatch
):
    config = BothConfig(
        extract=extract_config(tmp_path, devices=("cpu", "cpu")),
        train=train_config(tmp_path, epochs=1, save_every=3),
        overlap=overlap,
    )
    with monkeypatch.context() as patch:
        fail_at_call(patch, *STAGES[stage], 1 if stage in ("measure", "export") else 3)
        with pytest.raises(PlannedFaultError) as caught:
            both(config)
    assert any(repr(NAMES.get(stage, stage)) in note for note in caught.value.__notes__)
    assert own_threads() == set()
    report = both(config)
    assert report["extract"]["sequences"] == 40
    assert report["train"]["steps"] == 12


def test_a_run_resumed_after_a_fault_in_the_overlap_equals_an_untroubled_one(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    extract(extract_config(whole))
    train.train(train_config(whole))
    torn = tmp_path / "torn"
    config = BothConfig(
        extract=extract_config(torn), train=train_config(torn, save_every=2), overlap=True
    )
    for number in (2, 5, 9):
        with monkeypatch.context() as patch:
            fail_at_call(patch, DrafterStep, "step", number)
            with pytest.raises(PlannedFaultError):
                both(config)
    both(config)
    assert_same_training(whole / "run", torn / "run")
