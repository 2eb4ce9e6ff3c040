"""What is refused before it costs anything, and what a refusal must not leave behind."""

from dataclasses import replace

import pytest

from dflash_cache.cache import CacheWriter, writer_lock
from dflash_cache.config import BothConfig
from dflash_cache.errors import CacheBusyError, CacheMismatchError, ConfigError, DataError
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import train
from tests.support.runs import extract_config, metrics, train_config
from tests.support.tiny_targets import build_target, rows_of, save_rows, save_target

NAN_TOKEN = 13


def tiny_extract(folder, target, rows, **changes):
    settings = {"data": rows, "target": str(target), "limit": None, "target_layers": (1, 4)}
    return extract_config(folder, **settings | changes)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A target without a tokenizer, one whose token 13 is not finite, and rows; half hold it."""
    folder = tmp_path_factory.mktemp("tiny")
    save_target(folder / "target")
    broken = build_target()
    broken.get_input_embeddings().weight.data[NAN_TOKEN] = float("nan")
    broken.save_pretrained(folder / "broken")
    save_rows(
        folder / "rows",
        rows_of([[5 + i, NAN_TOKEN if i % 2 else 4, 7, 8, 9] * 3 for i in range(20)]),
    )
    save_rows(folder / "all-broken", rows_of([[5 + i, NAN_TOKEN, 7, 8] * 3 for i in range(8)]))
    return folder


def test_dropped_rows_make_steps_smaller_and_no_epoch_longer_or_shorter(tiny, tmp_path):
    broken = {"segment_tokens": 45, "max_dropped": 1.0}
    extract(tiny_extract(tmp_path, tiny / "broken", tiny / "rows", **broken))
    config = train_config(tmp_path, mask_token_id=500, holdout=0, batch_size=5, epochs=3)
    assert train(config)["steps"] == 3 * 4  # of 5 planned rows each; 10 of the 20 are left
    assert max(line["epoch"] for line in metrics(config.out)) == 3
    assert train(config)["steps"] == 12


def test_an_extraction_that_keeps_no_row_is_an_error_that_says_why(tiny, tmp_path):
    with pytest.raises(DataError, match=r"every row was left out.*non_finite \(layer 1, position"):
        extract(tiny_extract(tmp_path, tiny / "broken", tiny / "all-broken", max_dropped=1.0))


def test_a_refused_setting_does_not_claim_the_run_folder(tiny, tmp_path):
    extract(tiny_extract(tmp_path, tiny / "target", tiny / "rows"))
    config = train_config(tmp_path, epochs=1, holdout=0)
    with pytest.raises(ConfigError, match="choose an id"):
        train(config)
    for mask in (512, -1):
        with pytest.raises(ConfigError, match=r"rows 0\.\.511"):
            train(replace(config, mask_token_id=mask))
    assert train(replace(config, mask_token_id=511))["steps"] > 0


def test_the_targets_own_special_tokens_are_refused_as_mask(tmp_path):
    extract(extract_config(tmp_path))
    for special in (1, 3):  # pad and end of sequence of the bundled target
        with pytest.raises(ConfigError, match="pad, begin or end token"):
            train(train_config(tmp_path, mask_token_id=special))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": 5000}, "--mask-token-id 5000"),
        ({"holdout": 40.0}, "leaves no row"),
        ({"holdout": 0.0}, "--evaluate needs held-out rows"),
        ({"device": "cuda:9"}, "--device cuda:9"),
        ({"block_size": 500}, "positions"),
    ],
)
def test_settings_of_phase_two_are_refused_before_phase_one(changes, message, overlap, tmp_path):
    config = BothConfig(
        extract=extract_config(tmp_path),
        train=train_config(tmp_path, **changes),
        overlap=overlap,
        evaluate=True,
    )
    with pytest.raises(ConfigError, match=message):
        both(config)
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_of_other_settings_is_refused_before_phase_one(tmp_path, monkeypatch):
    extract(extract_config(tmp_path))
    train(train_config(tmp_path, epochs=1))
    monkeypatch.setattr(CacheWriter, "commit", None)
    other = BothConfig(
        extract=extract_config(tmp_path, cache=tmp_path / "other"),
        train=train_config(tmp_path, cache=tmp_path / "other", epochs=1, lr=0.5),
    )
    with pytest.raises(CacheMismatchError, match=r"--lr 0\.5"):
        both(other)
    assert not (tmp_path / "other").exists()


def test_two_trainers_of_one_run_are_kept_apart(tmp_path):
    extract(extract_config(tmp_path))
    config = train_config(tmp_path, epochs=1)
    with writer_lock(config.out, "--out"), pytest.raises(CacheBusyError, match="another --out"):
        train(config)
    assert train(config)["steps"] > 0
