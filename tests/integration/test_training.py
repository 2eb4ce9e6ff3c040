"""Training gives the same weights wherever its hidden states come from and however it is run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_cache.cache import Cache
from dflash_cache.config import BothConfig
from dflash_cache.data import plan_batches
from dflash_cache.errors import CacheIncompleteError, CacheMismatchError
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import prepare
from dflash_cache.runs.train import TrainingRun, train
from dflash_cache.types import HiddenSegment
from tests.support.runs import assert_same_training, extract_config, metrics, train_config

# Keys of a report that are about one start of a run and not about the run.
OF_THIS_START = {"wall_s", "waiting_share", "slow_stage", "stages"}


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extracted")
    extract(extract_config(folder))
    return folder


class LiveStates:
    """Segments straight from the target's forward pass, with no cache between."""

    def __init__(self, preparation):
        self._preparation = preparation
        (self._capture,) = load_captures(preparation).values()

    def read(self, index, row_ids=None):
        plan = self._preparation.plan[index]
        pairs = zip(plan.row_ids.tolist(), plan.lengths.tolist(), strict=True)
        sequences = [self._preparation.rows.sequence(row, length) for row, length in pairs]
        ids = [torch.from_numpy(s.input_ids).long() for s in sequences]
        batches = plan_batches(plan.lengths, self._preparation.config.batch_tokens)
        states = torch.cat([self._capture.hidden_states(ids[batch]) for batch in batches])
        wanted = [i for i, s in enumerate(sequences) if row_ids is None or s.row_id in row_ids]
        offsets = np.cumsum([0, *plan.lengths])
        return HiddenSegment(
            index=index,
            row_ids=plan.row_ids[wanted],
            offsets=np.cumsum([0, *plan.lengths[wanted]]),
            input_ids=np.concatenate([sequences[i].input_ids for i in wanted]),
            loss_mask=np.concatenate([sequences[i].loss_mask for i in wanted]),
            hidden_TKH=np.concatenate(
                [states[offsets[i] : offsets[i + 1]].numpy() for i in wanted]
            ),
        )


def test_training_from_the_cache_equals_training_from_live_states(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "cached")
    train(config)
    live = replace(config, out=tmp_path / "live")
    run = TrainingRun(live, Cache.open(cache_folder / "cache"))
    source = LiveStates(prepare(extract_config(cache_folder)))
    with Pipeline("live") as pipeline:
        run.spawn(pipeline, source, lambda progress: None)
        pipeline.start()
    assert_same_training(config.out, live.out)


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu", "cpu")])
def test_both_and_both_overlap_give_the_same_weights(devices, cache_folder, tmp_path):
    config = BothConfig(
        extract=extract_config(tmp_path, devices=devices),
        train=train_config(tmp_path),
        overlap=True,
    )
    report = both(config)
    in_turn = replace(train_config(cache_folder), out=tmp_path / "in-turn")
    train(in_turn)
    assert_same_training(tmp_path / "run", in_turn.out)
    assert report["extract"]["sequences"] == 40
    assert report["train"]["steps"] == 24


@pytest.mark.parametrize("grad_accum", [1, 2])
@pytest.mark.parametrize("stop_at", [3, 14])
def test_a_run_that_failed_and_was_resumed_equals_an_uninterrupted_one(
    stop_at, grad_accum, cache_folder, tmp_path
):
    config = replace(
        train_config(cache_folder), out=tmp_path / "whole", grad_accum=grad_accum, save_every=2,
        epochs=4,
    )  # fmt: skip
    train(config)
    torn = replace(config, out=tmp_path / "torn", prefetch_readers=1, prefetch_bytes=1)

    def fail(progress):
        if progress.done == stop_at:
            raise OSError("the machine was unplugged")

    with pytest.raises(OSError, match="unplugged") as caught:
        train(torn, fail)
    assert any("'train'" in note for note in caught.value.__notes__)
    report = train(torn)
    assert report["steps"] == metrics(config.out)[-1]["step"]
    assert_same_training(config.out, torn.out)


def test_a_finished_run_is_left_as_it_is(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "run", epochs=1)
    first = train(config)
    steps = []
    again = train(config, lambda progress: steps.append(progress.done))
    assert steps == []
    assert {k: v for k, v in first.items() if k not in OF_THIS_START} == {
        k: v for k, v in again.items() if k not in OF_THIS_START
    }


def test_another_setting_is_refused_by_name_in_a_started_run(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "run", epochs=1)
    train(config)
    with pytest.raises(CacheMismatchError, match=r"--lr 0\.5, the run has 0\.001"):
        train(replace(config, lr=0.5))


def test_an_unfinished_cache_is_refused_with_the_way_to_finish_it(tmp_path):
    config = extract_config(tmp_path)

    def fail(progress):
        if progress.done == 3:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        extract(config, fail)
    with pytest.raises(CacheIncompleteError, match=r"holds 3 of .* run the same"):
        train(train_config(tmp_path))
