"""Caches of several datasets, and of one dataset extracted on several machines."""

from dataclasses import replace

import datasets
import pytest

from dflash_cache import demo
from dflash_cache.cache import Cache, CacheWriter, verify_cache
from dflash_cache.config import BothConfig, MergeConfig, VerifyConfig
from dflash_cache.errors import CacheIncompleteError, CacheMismatchError, ConfigError
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.merge import merge
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from tests.support.caches import assert_same_content
from tests.support.runs import extract_config, train_config


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two datasets of 14 and 10 rows, each in a cache of its own and one after the other."""
    folder = tmp_path_factory.mktemp("two")
    rows = datasets.load_from_disk(str(demo.DATA))
    for name, part in (("a", range(14)), ("b", range(14, 24))):
        rows.select(part).save_to_disk(folder / name)
        extract(of(folder, name, cache=folder / f"cache-{name}"))
    extract(of(folder, "a", cache=folder / "both"))
    extract(of(folder, "b", cache=folder / "both", append=True))
    return folder


def of(folder, name, **changes):
    return extract_config(folder, data=folder / name, limit=None, **changes)


def test_appended_rows_are_numbered_after_those_there_and_have_the_same_states(two):
    whole = Cache.open(two / "both")
    alone = [Cache.open(two / "cache-a"), Cache.open(two / "cache-b")]
    planned = sorted(row for segment in whole.plan for row in segment.row_ids.tolist())
    assert planned == list(range(24))
    assert [part.num_rows for part in whole.spec.parts] == [14, 10]
    first_segments = whole.spec.first_segments
    for number, cache in enumerate(alone):
        for index in cache.segments:
            found, expected = whole.read(first_segments[number] + index), cache.read(index)
            assert found.row_ids.tolist() == (expected.row_ids + 14 * number).tolist()
            assert found.hidden_TKH.tobytes() == expected.hidden_TKH.tobytes()
    assert verify_cache(two / "both") == []


def test_training_takes_all_parts(two, tmp_path):
    report = train(train_config(tmp_path, cache=two / "both", epochs=1))
    lengths = sum(segment.num_tokens for segment in Cache.open(two / "both").segments.values())
    held_out = train_config(tmp_path).holdout
    assert report["steps"] == (24 - held_out) // 3
    assert 0 < report["tokens"] < lengths


def test_other_rows_are_refused_with_the_flag_that_adds_them(two):
    with pytest.raises(CacheMismatchError, match=r"(?s)dataset_fingerprint.*--append"):
        extract(of(two, "b", cache=two / "cache-a"))


def test_rows_that_are_there_are_never_added_again_in_another_order(two):
    with pytest.raises(CacheMismatchError, match="plan_seed: 5, expected 0"):
        extract(of(two, "b", cache=two / "both", append=True, plan_seed=5))


def test_another_form_is_never_appended(two):
    with pytest.raises(CacheMismatchError, match="target_layer_ids"):
        extract(of(two, "a", cache=two / "cache-b", append=True, target_layers=(1, 2)))


@pytest.mark.parametrize("again", [{}, {"append": True}], ids=["without the flag", "with it"])
def test_a_finished_append_has_nothing_left_to_do(two, again):
    before = dict(Cache.open(two / "both").segments)
    extract(of(two, "b", cache=two / "both", **again))
    extract(of(two, "a", cache=two / "both", **again))
    assert Cache.open(two / "both").segments == before


def test_caches_of_different_rows_merge_into_what_appending_makes(two, tmp_path):
    sources = (str(two / "cache-a"), str(two / "cache-b"))
    report = merge(MergeConfig(caches=sources, into=str(tmp_path / "merged")))
    assert (report["sequences"], report["parts"], report["missing"]) == (24, 2, 0)
    assert_same_content(Cache.open(tmp_path / "merged"), Cache.open(two / "both"))
    assert verify_cache(tmp_path / "merged") == []


def test_merging_takes_no_space_where_there_are_hard_links(two, tmp_path):
    merge(MergeConfig(caches=(str(two / "cache-a"),), into=str(tmp_path / "merged")))
    shards = list((tmp_path / "merged").rglob("c.0.0.0"))
    assert shards
    assert all(shard.stat().st_nlink > 1 for shard in shards)


def test_merge_and_verify_say_how_far_they_are(two, tmp_path):
    told, into = [], tmp_path / "c"
    sources = (str(two / "cache-a"), str(two / "cache-b"))
    merge(MergeConfig(caches=sources, into=str(into)), told.append)
    verify(VerifyConfig(cache=str(into)), told.append)
    total = len(Cache.open(into).segments)
    expected = [(phase, done + 1) for phase in ("merge", "verify") for done in range(total)]
    assert [(each.phase, each.done) for each in told] == expected
    assert {each.total for each in told} == {total}


def test_shares_of_one_plan_from_several_machines_merge_into_the_whole(two, tmp_path):
    for number in (1, 2):
        cache = tmp_path / f"share-{number}"
        told = []
        extract(of(two, "a", cache=cache, share=f"{number}/2"), told.append)
        assert told[-1].done == told[-1].total < len(Cache.open(cache).plan)
        assert told[-1].figures["rows"] == told[-1].figures["rows_planned"]
        assert verify_cache(cache) == []
        with pytest.raises(CacheIncompleteError):
            Cache.open(cache).require_complete()
    sources = tuple(str(tmp_path / f"share-{number}") for number in (1, 2))
    merge(MergeConfig(caches=sources, into=str(tmp_path / "merged")))
    assert_same_content(Cache.open(tmp_path / "merged"), Cache.open(two / "cache-a"))


def test_a_merge_that_was_cut_short_goes_on(two, tmp_path, monkeypatch):
    config = MergeConfig(
        caches=(str(two / "cache-a"), str(two / "cache-b")), into=str(tmp_path / "merged")
    )
    commits, commit = [], CacheWriter.commit

    def failing(writer, folder, segment):
        commits.append(segment.index)
        if len(commits) == 2:
            raise OSError("no space left on device")
        commit(writer, folder, segment)

    with monkeypatch.context() as patch:
        patch.setattr(CacheWriter, "commit", failing)
        with pytest.raises(OSError, match="no space"):
            merge(config)
    assert merge(config)["missing"] == 0
    assert_same_content(Cache.open(tmp_path / "merged"), Cache.open(two / "both"))


def test_caches_of_different_form_are_not_merged(two, tmp_path):
    extract(of(two, "a", cache=tmp_path / "other", target_layers=(1, 2)))
    caches = (str(two / "cache-a"), str(tmp_path / "other"))
    with pytest.raises(CacheMismatchError, match="target_layer_ids"):
        merge(MergeConfig(caches=caches, into=str(tmp_path / "merged")))
    assert not (tmp_path / "merged" / "spec.json").exists()


def test_a_cache_is_not_merged_into_itself(two):
    with pytest.raises(ConfigError, match="another folder"):
        merge(MergeConfig(caches=(str(two / "both"),), into=str(two / "both")))


def test_damage_in_several_parts_is_mended_from_each_dataset(two, tmp_path):
    config = MergeConfig(
        caches=(str(two / "cache-a"), str(two / "cache-b")), into=str(tmp_path / "cache")
    )
    merge(config)
    last = Cache.open(tmp_path / "cache").spec.first_segments[-1] - 1
    damaged = [
        f"cache.zarr/segments/{0:08d}/input_ids/c.0",
        f"cache.zarr/segments/{last:08d}/hidden_states/c.0.0.0",
        "cache.zarr/plan/0001/row_ids/c.0",
        "ledger/0000.jsonl",
    ]
    for name in damaged:
        (tmp_path / "cache" / name).unlink()
    report = verify(VerifyConfig(cache=tmp_path / "cache", repair=True))
    assert (report["bad"], report["missing"]) == ([], 0)
    assert_same_content(Cache.open(tmp_path / "cache"), Cache.open(two / "both"))


def test_a_run_goes_on_only_with_the_parts_that_it_began_with(two, tmp_path):
    train(train_config(tmp_path, cache=two / "cache-a", steps=2))
    with pytest.raises(CacheMismatchError, match="parts: 2, expected 1"):
        train(train_config(tmp_path, cache=two / "both", steps=4))


def both_of(folder, out, **changes):
    extraction = of(folder, "b", **changes)
    return BothConfig(
        extract=extraction,
        train=train_config(out, cache=extraction.cache, holdout=4, steps=2),
        overlap=True,
    )


def test_training_beside_an_extraction_of_a_share_is_refused_and_waits_for_nothing(two, tmp_path):
    config = both_of(two, tmp_path, cache=tmp_path / "cache", share="1/2")
    for overlap in (True, False):
        with pytest.raises(ConfigError, match=r"training needs all \d+ segments.*--share"):
            both(replace(config, overlap=overlap))
    assert not (tmp_path / "cache").exists()


def test_both_goes_on_with_an_appended_dataset_as_it_began(two, tmp_path):
    merge(MergeConfig(caches=(str(two / "cache-a"),), into=str(tmp_path / "cache")))
    config = both_of(two, tmp_path, cache=tmp_path / "cache", append=True)
    first = both(config)
    assert both(config)["train"]["loss_last"] == first["train"]["loss_last"]


def test_what_cannot_be_merged_leaves_no_cache_behind(two, tmp_path):
    extract(of(two, "b", cache=tmp_path / "other", plan_seed=5))
    caches = (str(two / "both"), str(tmp_path / "other"))
    with pytest.raises(CacheMismatchError, match="plan_seed"):
        merge(MergeConfig(caches=caches, into=str(tmp_path / "merged")))
    assert not (tmp_path / "merged" / "spec.json").exists()


def test_a_source_is_not_merged_into_itself_through_a_link(two, tmp_path):
    (tmp_path / "link").symlink_to(two / "cache-a")
    caches = (str(two / "cache-a"), str(two / "cache-b"))
    with pytest.raises(ConfigError, match="another folder"):
        merge(MergeConfig(caches=caches, into=str(tmp_path / "link")))
