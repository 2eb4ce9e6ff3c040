"""Several processes train as one: same weights, every row once an epoch, one end for all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash_cache.config import BothConfig
from dflash_cache.errors import ConfigError
from dflash_cache.runs.both import both
from dflash_cache.runs.devices import training_device
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import train
from dflash_cache.train import DrafterStep
from tests.support import ranks as support
from tests.support import ranks_step
from tests.support.drafters import drafter_config, drafter_step, uneven_sequences
from tests.support.runs import extract_config, final_weights, metrics, train_config

EPOCH_ROWS = 34
STEPS_IN_EPOCH = 9


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extracted")
    extract(extract_config(folder))
    return folder


@pytest.fixture(scope="module")
def whole(cache_folder):
    """Trained on one rank, uninterrupted."""
    config = support.ranks_config(cache_folder, cache_folder / "whole")
    train(config)
    return config.out


def largest_difference(weights, others) -> float:
    assert weights.keys() == others.keys()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def noted_rows(out: Path, rank: int = 0) -> list[list[int]]:
    return [json.loads(line) for line in (out / f"rows-{rank}").read_text().splitlines()]


def test_two_ranks_equal_four_micro_batches_on_one(tmp_path):
    one = drafter_step(tmp_path, drafter_config())
    for _ in range(3):
        one.step(uneven_sequences())
    done = support.torchrun(Path(ranks_step.__file__), tmp_path / "weights.safetensors")
    assert done.returncode == 0, done.stderr
    first, second = (load_file(tmp_path / f"weights.{rank}") for rank in (0, 1))
    assert largest_difference(first, second) == 0
    assert largest_difference(one.drafter.state_dict(), first) <= 1e-5


def test_one_rank_two_ranks_one_rank_sees_every_row_once_an_epoch(
    cache_folder, whole, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    out.mkdir()
    config = support.ranks_config(cache_folder, out)

    def stop_after(progress):
        if progress.done == 3:
            support.unplug()

    monkeypatch.setattr(DrafterStep, "step", support.NotedStep(out / "rows-0"))
    with pytest.raises(OSError, match="unplugged"):
        train(replace(config, save_every=1), stop_after)
    first = noted_rows(out)
    monkeypatch.undo()
    done = train_until_fault(cache_folder, out, "error", after=8)
    assert done.returncode == 1
    assert "OSError: the machine was unplugged" in done.stderr
    assert "rank 1 of 2 failed or was stopped" in done.stderr  # what the other one says
    second, other = noted_rows(out)[len(first) :], noted_rows(out, 1)
    assert len(second) == len(other) == 8
    monkeypatch.setattr(DrafterStep, "step", support.NotedStep(out / "rows-0"))
    train(config)
    third = noted_rows(out)[len(first) + 8 :]
    steps = first[:-1] + [a + b for a, b in zip(second, other, strict=True)] + third
    assert len(steps) == 2 * STEPS_IN_EPOCH
    for epoch in (steps[:STEPS_IN_EPOCH], steps[STEPS_IN_EPOCH:]):
        rows = [row for step in epoch for row in step]
        assert len(rows) == len(set(rows)) == EPOCH_ROWS
    assert largest_difference(final_weights(whole), final_weights(out)) <= 1e-5


def train_until_fault(cache_folder, out, fault, *, after):
    return support.torchrun(Path(support.__file__), cache_folder, out, 1, after, fault)


@pytest.mark.parametrize("fault", ["SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.torture)])
def test_a_signal_at_one_rank_ends_all_and_one_rank_goes_on(fault, cache_folder, whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    done = train_until_fault(cache_folder, out, fault, after=5)
    assert done.returncode == 1
    said = {
        "SIGTERM": "rank 1 of 2 failed or was stopped",
        "SIGKILL": "one of them was killed or cannot be reached",
    }
    assert said[fault] in done.stderr
    lines = metrics(out)
    report = train(support.ranks_config(cache_folder, out))
    assert report["steps"] == 2 * STEPS_IN_EPOCH
    assert metrics(out)[: len(lines)] == lines  # no step was made twice
    assert len(lines) in (5, 6)
    assert [line["tokens"] for line in metrics(out)] == [line["tokens"] for line in metrics(whole)]
    assert largest_difference(final_weights(whole), final_weights(out)) <= 1e-5


def test_a_rank_takes_the_cpu_or_a_device_of_its_own(monkeypatch):
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert training_device("") == "cuda:1"
    assert training_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="2 processes of this machine cannot share it"):
        training_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="this machine has 1 CUDA devices"):
        training_device("")


def test_both_under_torchrun_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start it without torchrun"):
        both(BothConfig(extract=extract_config(tmp_path), train=train_config(tmp_path)))
    assert list(tmp_path.iterdir()) == []
