"""Bad rows of a dataset and rows with bad states: refused, left out, counted, and too many."""

import pytest

from dflash_cache.cache import Cache
from dflash_cache.config import BothConfig, EvaluateConfig, ExtractConfig, TrainConfig
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.runs.both import both
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from tests.support.tiny_targets import (
    NAN_TOKEN,
    VOCAB_SIZE,
    random_rows,
    rows_of,
    save_rows,
    save_spoilt_target,
    save_target,
)

BAD = {3: (1, VOCAB_SIZE), 7: (0, -1)}  # row: position, id


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``target``; ``rows``: thirty of them, two with ids that cannot be."""
    folder = tmp_path_factory.mktemp("bad")
    save_target(folder / "target")
    ids = [list(row) for row in random_rows(30, max_len=40)["input_ids"]]
    ids = [[*row, 1, 2, 3, 4] for row in ids]
    for row, (position, bad) in BAD.items():
        ids[row][position] = bad
    save_rows(folder / "rows", rows_of(ids))
    return folder


def config(folder, cache, **settings):
    given = {"data": folder / "rows", "target": str(folder / "target"), "devices": ("cpu",)}
    given |= {"segment_tokens": 100}
    return ExtractConfig(cache=cache, **given | settings)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """A target for which every row with ``NAN_TOKEN`` has no finite state, and ten rows of it."""
    folder = tmp_path_factory.mktemp("spoilt")
    save_spoilt_target(folder / "target")
    ids = [[20 + row, 1, 2, 3, 4, 5] for row in range(10)]
    ids[2][4] = ids[6][0] = NAN_TOKEN
    save_rows(folder / "rows", rows_of(ids))
    return folder


def test_bad_rows_are_refused_by_row_and_position_before_a_target_is_loaded(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("dflash_cache.target.Target.load", None)
    with pytest.raises(DataError) as caught:
        extract(config(folder, tmp_path / "cache"))
    assert str(caught.value) == (
        f"row 3: position 1: id {VOCAB_SIZE} is outside the target's vocabulary 0..511. "
        "1 more row has faults. Mend these rows, or leave them out with --on-bad-row drop"
    )
    assert not (tmp_path / "cache").exists()


def test_bad_rows_that_are_dropped_are_counted_and_in_the_ledger_with_their_fault(folder, tmp_path):
    report = extract(config(folder, tmp_path / "cache", on_bad_row="drop"))
    cache = Cache.open(tmp_path / "cache")
    assert (report["sequences"], report["dropped"]) == (28, {"id_out_of_range": 2})
    assert {row.row_id: row.detail for row in cache.ledger} == {
        row: f"position {position}: id {bad} is outside the target's vocabulary 0..511"
        for row, (position, bad) in BAD.items()
    }
    kept = {row for index in cache.segments for row in cache.read(index).row_ids.tolist()}
    assert kept == set(range(30)) - set(BAD)
    assert cache.spec.parts[0].on_bad_row == "drop"


def test_an_evaluation_on_such_data_needs_the_policy_too(folder, tmp_path):
    training = TrainConfig(
        cache=str(tmp_path / "cache"), out=tmp_path / "run", device="cpu", draft_layers=1,
        block_size=4, anchors=2, steps=1, holdout=2, mask_token_id=5,
    )  # fmt: skip
    extraction = config(folder, str(tmp_path / "cache"), on_bad_row="drop")
    both(BothConfig(extract=extraction, train=training))
    settings = {"target": extraction.target, "data": extraction.data, "new_tokens": 2}
    settings |= {"drafter": (tmp_path / "run" / "export",), "device": "cpu"}
    with pytest.raises(DataError, match="row 3: position 1: id 512"):
        evaluate(EvaluateConfig(**settings))
    assert evaluate(EvaluateConfig(**settings, on_bad_row="drop"))["prompts"] == 2


@pytest.mark.parametrize(("share", "stops_at"), [(0.0, 1), (0.1, 2)])
def test_too_many_rows_without_finite_states_stop_the_extraction_and_the_last_is_named(
    spoilt, tmp_path, share, stops_at
):
    settings = {"segment_tokens": 6, "writers": 1, "readers": 1}
    with pytest.raises(DataError) as caught:
        extract(config(spoilt, tmp_path / "cache", max_dropped=share, **settings))
    found = [row for row in Cache.open(tmp_path / "cache").ledger if row.reason == "non_finite"]
    assert len(found) == stops_at
    assert f"states of {stops_at} of 10 rows are not finite" in str(caught.value)
    assert f"--max-dropped {share:g} allows" in str(caught.value)
    assert f"the last one is row {found[-1].row_id}, {found[-1].detail}" in str(caught.value)


def test_an_extraction_that_was_stopped_stays_so_until_more_rows_may_be_dropped(
    spoilt, tmp_path, monkeypatch
):
    settings = {"segment_tokens": 6, "writers": 1}
    with pytest.raises(DataError, match="more than --max-dropped 0 allows"):
        extract(config(spoilt, tmp_path / "cache", max_dropped=0.0, **settings))
    with monkeypatch.context() as patch:
        patch.setattr("dflash_cache.target.Target.load", None)  # no target is loaded for that
        with pytest.raises(DataError, match="more than --max-dropped 0 allows"):
            extract(config(spoilt, tmp_path / "cache", max_dropped=0.0, **settings))
    report = extract(config(spoilt, tmp_path / "cache", max_dropped=0.2, **settings))
    assert (report["sequences"], report["dropped"]) == (8, {"non_finite": 2})


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_of_rows_that_cannot_be_is_refused(folder, tmp_path, share):
    with pytest.raises(ConfigError, match="--max-dropped"):
        config(folder, tmp_path / "cache", max_dropped=share)
