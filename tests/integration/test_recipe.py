"""Settings of the recipe: layers, windows, the target's distribution as the goal."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.config import BothConfig, InspectConfig, PlanConfig
from dflash_cache.drafter.config import FULL, SLIDING, DrafterConfig
from dflash_cache.errors import CacheMismatchError, ConfigError, DataError
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.inspect import inspect
from dflash_cache.runs.plan import plan
from dflash_cache.runs.train import train
from dflash_cache.train import as_tensor
from tests.support.architectures import build
from tests.support.runs import assert_same_training, extract_config, metrics, train_config
from tests.support.tiny_targets import load_plain, rows_of, save_rows

LAYERS = (1, 3, 4)


def small(folder, **changes):
    return extract_config(folder, **{"limit": 16, "target_layers": LAYERS} | changes)


def training(folder, **changes):
    return train_config(folder, **{"epochs": 1, "holdout": 3} | changes)


@pytest.fixture(scope="module")
def with_last(tmp_path_factory):
    folder = tmp_path_factory.mktemp("last")
    extract(small(folder, keep_last=True))
    return folder


def test_the_last_state_kept_is_the_heads_input_and_the_others_are_as_without_it(
    with_last, tmp_path
):
    extract(small(tmp_path))
    kept, plain = (Cache.open(str(folder / "cache")) for folder in (with_last, tmp_path))
    segment, without = kept.read(0), plain.read(0)
    assert segment.hidden_TKH.shape[1] == len(LAYERS) + 1
    assert np.array_equal(segment.hidden_TKH[:, :-1], without.hidden_TKH)
    head = kept.target.embedding if kept.target.head is None else kept.target.head
    ids = torch.from_numpy(segment.input_ids[: segment.offsets[1]]).long()
    with torch.no_grad():
        expected = load_plain(demo.TARGET)(input_ids=ids[None]).logits[0]
    found = as_tensor(segment.hidden_TKH)[: len(ids), -1] @ as_tensor(head).T
    assert (found - expected).abs().max() <= 1e-3
    with pytest.raises(CacheMismatchError, match="keep_last"):
        extract(small(tmp_path, keep_last=True))


def test_plan_sizes_the_layer_more(tmp_path):
    few, more = (
        plan(PlanConfig(**asdict(small(tmp_path, keep_last=each)))) for each in (False, True)
    )
    states = few["tokens"] * 256 * 4
    assert more["bytes_estimated"]["crc32c"] - few["bytes_estimated"]["crc32c"] == states


def test_training_towards_the_targets_distribution_lowers_the_divergence(with_last, tmp_path):
    config = replace(training(with_last, loss="kl", epochs=8), out=tmp_path / "run")
    train(config)
    losses = [line["loss"] for line in metrics(config.out)]
    assert 0 < losses[-1] < 0.8 * losses[0]


def test_the_last_state_is_no_feature(with_last, tmp_path):
    extract(small(tmp_path))
    config = replace(training(with_last), out=tmp_path / "other")
    train(config)
    train(training(tmp_path))
    assert_same_training(config.out, tmp_path / "run")


def test_a_goal_that_the_cache_cannot_give_is_refused_before_any_work(tmp_path):
    config = BothConfig(extract=small(tmp_path), train=training(tmp_path, loss="kl"))
    with pytest.raises(ConfigError, match="--keep-last"):
        both(config)
    assert list(tmp_path.iterdir()) == []


def test_the_heads_input_is_not_kept_where_it_does_not_tell_the_distribution(tmp_path):
    config = build("gemma2").config  # its logits are capped
    config.vocab_size = 4096  # as the demo's rows need
    config.save_pretrained(tmp_path / "target")
    asked = PlanConfig(**asdict(small(tmp_path, target=str(tmp_path / "target"), keep_last=True)))
    with pytest.raises(ConfigError, match=r"--keep-last: .* scales or caps its logits"):
        plan(replace(asked, target_layers=(0, 2)))


def test_training_on_some_layers_equals_a_cache_of_those_alone(with_last, tmp_path):
    extract(small(tmp_path, target_layers=(1, 4)))
    config = replace(training(with_last, target_layers=(1, 4)), out=tmp_path / "subset")
    train(config)
    train(training(tmp_path))
    assert_same_training(config.out, tmp_path / "run")
    assert DrafterConfig.load(config.out / "export").target_layer_ids == (1, 4)


@pytest.mark.parametrize("layers", [(1, 2), (4, 1), (3, 3)])
def test_layers_that_are_not_cached_or_do_not_ascend_are_refused(layers, with_last, tmp_path):
    with pytest.raises(ConfigError, match=r"the cache has layers 1,3,4"):
        train(replace(training(with_last, target_layers=layers), out=tmp_path / "run"))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_window_is_for_all_layers_but_the_last_and_changes_the_weights(with_last, tmp_path):
    config = training(with_last, draft_layers=3, sliding_window=8)
    report = train(replace(config, out=tmp_path / "window"))
    exported = DrafterConfig.load(tmp_path / "window" / "export")
    assert exported.layer_types == (SLIDING, SLIDING, FULL)
    assert exported.sliding_window == 8
    wide = train(replace(config, sliding_window=None, out=tmp_path / "wide"))
    assert wide["loss_last"] != report["loss_last"]


def test_rows_without_a_loss_token_are_skipped_and_counted_and_a_dataset_of_them_refused(tmp_path):
    rows = rows_of([[5 + i, 6, 7, 8, 9, 10] for i in range(12)])
    silent = rows.map(lambda row, i: {"loss_mask": [0] * 6 if i < 8 else row["loss_mask"]},
                      with_indices=True)  # fmt: skip
    save_rows(tmp_path / "some", silent)
    save_rows(tmp_path / "none", silent.select(range(8)))
    report = extract(small(tmp_path, data=tmp_path / "some", limit=None))
    assert report["dropped"] == {"no_loss_token": 8}
    trained = train(training(tmp_path, holdout=0))
    assert trained["steps"] == 2
    assert np.isfinite(trained["loss_last"])
    with pytest.raises(DataError, match="none of 8 rows can be trained on"):
        extract(small(tmp_path, data=tmp_path / "none", cache=str(tmp_path / "b"), limit=None))


def test_rows_beyond_the_last_full_accumulation_are_trained_on(with_last, tmp_path):
    config = training(with_last, holdout=11, batch_size=1, grad_accum=4, epochs=2)
    assert train(replace(config, out=tmp_path / "run"))["steps"] == 2 * 2  # 4 rows, then 1


def test_naming_all_cached_layers_is_the_same_run_as_naming_none(tmp_path):
    config = extract_config(tmp_path, limit=12)
    extract(config)
    train(train_config(tmp_path, steps=1, holdout=2))
    layers = Cache.open(config.cache).spec.target_layer_ids
    assert train(train_config(tmp_path, steps=1, holdout=2, target_layers=layers))["stages"] == {}


def test_inspect_shows_the_last_state_among_the_layers(with_last):
    cache = Cache.open(with_last / "cache")
    row = int(cache.read(0).row_ids[0])
    report = inspect(InspectConfig(cache=str(with_last / "cache"), row=row, quality=True, sample=2))
    names = [*LAYERS, "last"]
    assert [layer["layer"] for layer in report["row"]["layers"]] == names
    assert [layer["layer"] for layer in report["quality"]["layers"]] == names


def test_a_block_longer_than_the_targets_positions_is_refused(with_last, tmp_path):
    config = replace(training(with_last), out=tmp_path / "run", block_size=100_000)
    with pytest.raises(ConfigError, match="--block-size 100000: the target has only"):
        train(config)
    assert not (tmp_path / "run" / "run.json").exists()
