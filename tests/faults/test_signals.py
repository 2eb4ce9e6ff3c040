"""kill -9, Ctrl-C and SIGTERM at random moments: running again finishes the job."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dflash_cache import demo
from dflash_cache.cache import Cache
from tests.support.runs import assert_same_training

# Ten times the time a stop may take in the design, for a machine that is shared.
PATIENCE_S = 150
STOP_S = 15


def command(folder, *more: str) -> list[str]:
    flags = {
        "data": demo.DATA, "target": demo.TARGET, "cache": folder / "cache", "out": folder / "run",
        "limit": 60, "segment-tokens": 512, "batch-tokens": 512, "draft-layers": 1,
        "block-size": 4, "anchors": 4, "batch-size": 2, "epochs": 2, "holdout": 6,
        "save-every": 5, "log-every": 1, "prefetch-bytes": 1, "device": "cpu",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "dflash_cache.cli", "both", *words, *more, "--json"]


def finish(folder, *more: str) -> dict:
    done = subprocess.run(
        command(folder, *more), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def arrays(folder) -> dict[int, dict[str, np.ndarray]]:
    cache = Cache.open(folder / "cache")
    segments = [cache.read(index) for index in range(len(cache.plan))]
    names = ("row_ids", "offsets", "input_ids", "loss_mask", "hidden_TKH")
    return {s.index: {name: getattr(s, name) for name in names} for s in segments}


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untroubled")
    began = time.monotonic()
    report = finish(folder)
    return folder, report, time.monotonic() - began


def assert_equal_to(untroubled, folder) -> None:
    expected = arrays(untroubled)
    found = arrays(folder)
    assert expected.keys() == found.keys()
    for index, segment in expected.items():
        for name, array in segment.items():
            np.testing.assert_array_equal(array, found[index][name])
    assert_same_training(untroubled / "run", folder / "run")


def stop_after(seconds: float, number: signal.Signals, words: list[str]) -> tuple[int, str, float]:
    """Run ``words``, send the signal, return (exit code, stderr, seconds until it ended)."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    sent = time.monotonic()
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr, time.monotonic() - sent


def kill_and_resume(untroubled, folder, moments: int, *, overlap: bool, seed: int) -> None:
    reference, _, whole_s = untroubled
    rng = random.Random(seed)
    mode = ["--overlap"] if overlap else []
    for _ in range(moments):
        devices = ",".join(["cpu"] * rng.choice([1, 2, 3]))
        words = command(folder, *mode, "--devices", devices, "--writers", str(rng.choice([1, 3])))
        code, stderr, _ = stop_after(rng.uniform(0.3, 1.0) * whole_s, signal.SIGKILL, words)
        assert code in (0, -signal.SIGKILL), stderr
    report = finish(folder, *mode)
    assert report["extract"]["sequences"] == 60
    assert_equal_to(reference, folder)


@pytest.mark.parametrize("overlap", [False, True])
def test_killed_and_resumed_equals_uninterrupted(overlap, untroubled, tmp_path):
    kill_and_resume(untroubled, tmp_path, 3, overlap=overlap, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(2, 8))  # a test may take minutes, not an hour
def test_killed_at_30_moments_and_resumed_equals_uninterrupted(seed, overlap, untroubled, tmp_path):
    kill_and_resume(untroubled, tmp_path, 5, overlap=overlap, seed=seed)


def interrupt_and_resume(untroubled, folder, moments: int, *, overlap: bool, seed: int) -> None:
    reference, _, whole_s = untroubled
    rng = random.Random(seed)
    mode = ["--overlap"] if overlap else []
    for number in [signal.SIGINT, signal.SIGTERM] * (moments // 2):
        words = command(folder, *mode, "--writers", "1", "--readers", "1")
        code, stderr, stop_s = stop_after(rng.uniform(0.4, 0.9) * whole_s, number, words)
        assert code in (0, 128 + number, -number), stderr
        assert stop_s < STOP_S, f"stopping took {stop_s:.1f} s"
        if code == 128 + number:
            assert "the same command continues" in stderr
    finish(folder, *mode)
    assert_equal_to(reference, folder)


@pytest.mark.parametrize(("overlap", "moments"), [(False, 2), (True, 2)])
def test_interrupted_and_resumed_equals_uninterrupted(overlap, moments, untroubled, tmp_path):
    interrupt_and_resume(untroubled, tmp_path, moments, overlap=overlap, seed=3)


@pytest.mark.torture
@pytest.mark.parametrize("overlap", [False, True])
def test_interrupted_at_20_moments_and_resumed_equals_uninterrupted(overlap, untroubled, tmp_path):
    interrupt_and_resume(untroubled, tmp_path, 20, overlap=overlap, seed=4)
