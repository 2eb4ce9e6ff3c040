"""Learning-rate schedules."""

import pytest

from dflash_cache.train.schedule import learning_rate_factor
from tests.support.drafters import train_config


def factors(tmp_path, schedule, num_steps=100, warmup=0.1):
    config = train_config(tmp_path, schedule=schedule, warmup=warmup)
    return [learning_rate_factor(step, num_steps, config) for step in range(num_steps)]


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_warm_up_is_linear_and_reaches_the_peak(schedule, tmp_path):
    found = factors(tmp_path, schedule)
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(found) == 1.0


def test_cosine_falls_to_nearly_nothing(tmp_path):
    found = factors(tmp_path, "cosine")
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[55] == pytest.approx(0.5)
    assert found[-1] < 0.001


def test_wsd_is_stable_and_then_decays_linearly(tmp_path):
    found = factors(tmp_path, "wsd")
    assert found[10:81] == [1.0] * 71
    assert found[81:] == pytest.approx([(100 - step) / 20 for step in range(81, 100)])


def test_constant_stays_at_the_peak_without_warm_up_too(tmp_path):
    assert factors(tmp_path, "constant", warmup=0.0) == [1.0] * 100


def test_a_run_of_one_step_has_a_rate(tmp_path):
    assert factors(tmp_path, "cosine", num_steps=1) == [1.0]
