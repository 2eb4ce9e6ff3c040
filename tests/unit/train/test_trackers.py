"""Figures reach their trackers."""

from importlib.util import find_spec

import pytest

from dflash_cache.errors import ConfigError
from dflash_cache.train import trackers
from tests.support.drafters import train_config


def test_a_tracker_that_is_not_installed_is_refused_with_the_way_to_install_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    trackers.require_tracker(train_config(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'dflash-cache\[tensorboard\]'"):
        trackers.require_tracker(train_config(tmp_path, tracker="tensorboard"))


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="an extra")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_what_was_logged_and_not_what_a_resume_undid(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = train_config(tmp_path, tracker="tensorboard")
    config.out.mkdir()
    for last_step, loss in ((0, 9.0), (2, 5.0)):
        for tracker in trackers.trackers_for(config, last_step):
            for step in range(last_step + 1, 5):
                tracker.log(step, {"loss": loss - step, "slot_accuracy": [0.5, 0.25]})
    events = EventAccumulator(str(config.out / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 8), (2, 7), (3, 2), (4, 1)]
    assert {e.value for e in events.Scalars("slot_accuracy/slot_02")} == {0.25}
    assert (config.out / "metrics.jsonl").exists()
