"""Training gives the same weights wherever its hidden states come from and however it is run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_cache.cache import Cache
from dflash_cache.config import BothConfig
from dflash_cache.data import plan_batches
from dflash_cache.errors import CacheIncompleteError, CacheMismatchError, ConfigError
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.outcome import load_outcome
from dflash_cache.runs.preparation import prepare
from dflash_cache.runs.train import TrainingRun, train
from dflash_cache.runs.waiting import TRAINING_STAGES
from dflash_cache.types import HiddenSegment
from tests.support.runs import (
    assert_same_training,
    extract_config,
    final_weights,
    metrics,
    train_config,
)

# Keys of a report that are about one start of a run and not about the run.
OF_THIS_START = {"wall_s", "waiting_share", "slow_stage", "critical_stage", "stages", "channels"}


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
    told = []
    report = both(config, told.append)
    in_turn = replace(train_config(cache_folder), out=tmp_path / "in-turn")
    train(in_turn)
    assert_same_training(tmp_path / "run", in_turn.out)
    assert report["extract"]["sequences"] == 40
    assert report["train"]["steps"] == 24
    for phase in ("train", "extract"):
        first, *_, last = [each for each in told if each.phase == phase]
        assert (first.done, first.over, last.done) == (0, False, last.total)
        assert last.over
        assert last.sample is None  # which would keep the pipeline's buffers
    train_first = next(each for each in told if each.phase == "train")
    assert set(train_first.sample().stages) == TRAINING_STAGES


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


def test_forty_steps_equal_twenty_a_kill_and_twenty(cache_folder, tmp_path):
    config = replace(
        train_config(cache_folder), out=tmp_path / "whole", steps=40, warmup=0.5, save_every=20
    )
    train(config)
    torn = replace(config, out=tmp_path / "torn")

    def fail(progress):
        if progress.done == 21:
            raise OSError("the machine was unplugged")

    with pytest.raises(OSError, match="unplugged"):
        train(torn, fail)
    train(torn)
    assert_same_training(config.out, torn.out)  # losses and learning rates among the figures


def test_a_run_resumes_from_the_checkpoint_before_a_torn_one(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "whole", save_every=5)
    train(config)
    torn = replace(config, out=tmp_path / "torn")

    def fail(progress):
        if progress.done == 11:
            raise OSError("the machine was unplugged")

    with pytest.raises(OSError, match="unplugged"):
        train(torn, fail)
    weights = torn.out / "checkpoints/step-00000010/model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    first = []
    with pytest.warns(UserWarning, match="step-00000010 is damaged or incomplete"):
        train(torn, lambda progress: first.append(progress.done))
    assert first[:2] == [5, 6]  # where it stands, then its first step
    assert_same_training(config.out, torn.out)


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}


def test_a_run_keeps_the_report_of_its_last_start_that_worked(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "run", epochs=1)
    report = train(config)
    cache = Cache.open(cache_folder / "cache")
    kept = load_outcome(tmp_path / "run")
    assert kept["train"] == report
    assert kept["cache"]["num_tokens"] == sum(each.num_tokens for each in cache.segments.values())
    train(config)  # nothing is left to do
    assert load_outcome(tmp_path / "run") == kept


def test_a_finished_run_is_left_as_it_is(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "run", epochs=1)
    first = train(config)
    before = contents(config.out)
    again = train(config, lambda progress: pytest.fail("a step was made"))
    assert contents(config.out) == before
    assert again["stages"] == {}
    assert {k: v for k, v in first.items() if k not in OF_THIS_START} == {
        k: v for k, v in again.items() if k not in OF_THIS_START
    }


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "training.json"])
def test_what_is_missing_of_a_finished_run_is_made_again(name, cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "run", epochs=1)
    first = train(config)
    path = config.out / "export" / name
    content = path.read_bytes()
    path.unlink()
    again = train(config)
    assert path.read_bytes() == content
    assert again["block_acceptance_length"] == first["block_acceptance_length"]


def test_measurements_and_keeping_the_best_change_no_weights(cache_folder, tmp_path):
    config = replace(train_config(cache_folder), out=tmp_path / "plain", epochs=1)
    train(config)
    measured = replace(
        config, out=tmp_path / "measured", measure_every=3, save_every=4, keep=1, keep_best=True
    )
    train(measured)
    weights, others = final_weights(config.out), final_weights(measured.out)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    name = "held_out_block_acceptance_length"
    assert [line["step"] for line in metrics(measured.out) if name in line] == [3, 4, 6, 8, 9, 12]


@pytest.mark.parametrize("more", [{"measure_every": 5}, {"keep_best": True}])
def test_what_would_wait_for_the_whole_extraction_is_refused_with_overlap(more, tmp_path):
    config = BothConfig(
        extract=extract_config(tmp_path), train=train_config(tmp_path, **more), overlap=True
    )
    with pytest.raises(ConfigError, match="nothing would overlap"):
        both(config)


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
