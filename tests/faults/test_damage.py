"""Flipped bytes, cut files, missing files: each is found, none is trained on, all are mended."""

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
from transformers import AutoConfig

from dflash_cache import demo
from dflash_cache.cache import Cache, uncommit, verify_cache
from dflash_cache.config import VerifyConfig
from dflash_cache.errors import CacheCorruptError, CacheIncompleteError, DflashCacheError
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from tests.support.runs import extract_config, final_weights, train_config

KINDS = ("flip", "cut", "delete")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    extract(extract_config(folder, limit=24, codec="lz4"))
    return folder / "cache"


@pytest.fixture
def cache(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "cache")
    return tmp_path / "cache"


def files_of(cache: Path) -> list[Path]:
    """Every file; the lock holds no data."""
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.name != "lock")


def damage(path: Path, kind: str, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if kind == "delete" or not content:
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(content)


def damage_is_found_and_undone(cache: Path, pristine: Path, kind: str, times: int) -> None:
    rng = random.Random(times)
    files = files_of(cache)
    for _ in range(times):
        path = rng.choice(files)
        damage(path, kind, rng)
        assert verify_cache(cache), f"{kind} of {path} was not found"
        shutil.copy(pristine / path.relative_to(cache), path)
    assert verify_cache(cache) == []


@pytest.mark.parametrize(("kind", "times"), [("flip", 1000), ("cut", 200), ("delete", 100)])
def test_random_damage_to_any_file_is_found_by_verify(kind, times, cache, pristine):
    damage_is_found_and_undone(cache, pristine, kind, times)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_every_single_file_is_found_by_verify(kind, cache, pristine):
    rng = random.Random(0)
    for path in files_of(cache):
        damage(path, kind, rng)
        faults = verify_cache(cache)
        assert faults, f"{kind} of {path} was not found"
        assert any(path.name in fault.problem for fault in faults)
        shutil.copy(pristine / path.relative_to(cache), path)


def training_files(cache: Path) -> list[Path]:
    """What training reads: everything but Zarr's metadata of segments, and the ledger."""
    read = [path for path in files_of(cache) if path.name.startswith("c.")]
    return [*read, cache / "spec.json", cache / "commits.log"]


def test_damage_in_what_training_reads_stops_it_and_never_changes_a_weight(cache, pristine):
    config = train_config(cache.parent, epochs=1)
    train(config)
    expected = final_weights(config.out)
    rng = random.Random(1)
    files = training_files(cache)
    for _ in range(40):
        shutil.rmtree(config.out, ignore_errors=True)
        path, kind = rng.choice(files), rng.choice(KINDS)
        damage(path, kind, rng)
        error = error_of(config)
        if isinstance(error, CacheIncompleteError):
            assert path.name == "commits.log", path
        elif error is not None:
            assert path.name in str(error) or "spec.json" in str(error), (path, kind, str(error))
        else:  # the final norm is kept for later use, training does not need it
            assert "norm" in path.parts, f"{kind} of {path} went unnoticed"
            weights = final_weights(config.out)
            assert all(weights[name].equal(expected[name]) for name in expected)
        shutil.copy(pristine / path.relative_to(cache), path)


def error_of(config) -> DflashCacheError | None:
    try:
        train(config)
    except DflashCacheError as error:
        return error
    return None


def test_damaged_states_are_named_by_chunk_and_rows_with_the_way_to_mend_them(cache):
    shard = next(cache.rglob("c.0.0.0"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CacheCorruptError, match=r"chunk 0.* rows \d+.*verify --cache .* --repair"):
        train(train_config(cache.parent))


def test_swapped_segments_of_one_size_are_found(cache):
    shards = sorted(cache.rglob("c.0.0.0"))
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    shards[0].write_bytes(second)
    shards[1].write_bytes(first)
    assert len({fault.segment for fault in verify_cache(cache)}) == 2
    with pytest.raises(CacheCorruptError):
        train(train_config(cache.parent))


def test_foreign_files_are_named_and_left_alone(cache):
    foreign = [cache / "notes.txt", cache / "cache.zarr" / "segments" / "00000001" / "x.partial"]
    for path in foreign:
        path.write_text("mine")
    problems = " ".join(fault.problem for fault in verify_cache(cache))
    assert all(str(path) in problems for path in foreign)
    report = verify(VerifyConfig(cache=cache, repair=True))
    assert len(report["bad"]) == 2
    assert all(path.read_text() == "mine" for path in foreign if path.exists())
    assert foreign[0].exists()


def assert_equal_to(pristine: Path, cache: Path) -> None:
    for path in files_of(pristine):
        if path.name != "commits.log":  # its lines stand in the order of commit
            assert (cache / path.relative_to(pristine)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_repair_ends_with_a_cache_equal_to_the_original(seed, cache, pristine):
    rng = random.Random(seed)
    root_copy = cache / "cache.zarr" / "zarr.json"  # of spec.json: one of the two must be whole
    for path in rng.sample([path for path in files_of(cache) if path != root_copy], 6):
        damage(path, rng.choice(KINDS), rng)
    report = verify(VerifyConfig(cache=cache, repair=True))
    assert report["bad"] == []
    assert_equal_to(pristine, cache)


@pytest.mark.parametrize("name", ["commits.log", "spec.json", "cache.zarr/zarr.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_is_restored_without_extracting_again(
    name, kind, cache, pristine, monkeypatch
):
    monkeypatch.setattr("dflash_cache.target.batch.LayerCapture.hidden_states", None)
    damage(cache / name, kind, random.Random(2))
    report = verify(VerifyConfig(cache=cache, repair=True))
    assert report["bad"] == []
    assert_equal_to(pristine, cache)


def test_repair_gives_nothing_up_when_the_dataset_is_not_the_caches_any_more(tmp_path):
    rows = datasets.load_from_disk(str(demo.DATA)).select(range(30))
    rows.save_to_disk(tmp_path / "data")
    extract(extract_config(tmp_path, data=tmp_path / "data", limit=None))
    shutil.rmtree(tmp_path / "data")
    rows.select(range(29)).save_to_disk(tmp_path / "data")
    damaged = next((tmp_path / "cache").rglob("input_ids/c.0"))
    damaged.unlink()
    before = files_of(tmp_path / "cache")
    with pytest.raises(DflashCacheError, match="dataset_fingerprint"):
        verify(VerifyConfig(cache=tmp_path / "cache", repair=True))
    assert files_of(tmp_path / "cache") == before


def test_a_moved_dataset_and_target_are_named_for_the_repair(tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(demo.DATA, tmp_path / "data")
    shutil.copytree(demo.TARGET, tmp_path / "target")
    where = {"data": tmp_path / "data", "target": str(tmp_path / "target")}
    extract(extract_config(tmp_path, limit=24, **where))
    moved.mkdir()
    for name in ("data", "target"):
        (tmp_path / name).rename(moved / name)
    next((tmp_path / "cache").rglob("input_ids/c.0")).unlink()
    config = VerifyConfig(cache=tmp_path / "cache", repair=True)
    with pytest.raises(DflashCacheError, match=r"does not exist|there is no such folder"):
        verify(config)
    report = verify(replace(config, data=moved / "data", target=str(moved / "target")))
    assert report["bad"] == []
    assert report["missing"] == 0


def test_a_repair_never_runs_a_targets_code_because_the_cache_says_so(tmp_path, monkeypatch):
    extract(extract_config(tmp_path, limit=24, trust_remote_code=True))
    next((tmp_path / "cache").rglob("input_ids/c.0")).unlink()
    trusted = []
    original = AutoConfig.from_pretrained

    def watched(*arguments, **keywords):
        trusted.append(keywords.get("trust_remote_code"))
        return original(*arguments, **keywords)

    monkeypatch.setattr(AutoConfig, "from_pretrained", watched)
    assert verify(VerifyConfig(cache=tmp_path / "cache", repair=True))["bad"] == []
    assert set(trusted) == {False}


@pytest.mark.parametrize("folder", ["cache.zarr/segments", "cache.zarr/plan", "cache.zarr/target"])
def test_a_missing_folder_is_found_and_made_again(folder, cache, pristine):
    shutil.rmtree(cache / folder)
    assert verify_cache(cache)
    report = verify(VerifyConfig(cache=cache, repair=True))
    assert report["bad"] == []
    assert report["missing"] == 0
    assert_equal_to(pristine, cache)


def test_what_a_stopped_repair_left_is_shown_as_missing_and_finished(cache, pristine):
    uncommit(Cache.open(cache), [1, 2])
    report = verify(VerifyConfig(cache=cache))
    assert (report["missing"], report["bad"]) == (2, [])
    assert verify(VerifyConfig(cache=cache, repair=True))["missing"] == 0
    assert_equal_to(pristine, cache)


@pytest.mark.parametrize("name", ["commits.log", "spec.json"])
def test_no_damage_makes_a_resume_delete_committed_data(name, cache):
    committed = {path for path in files_of(cache) if "segments" in path.parts}
    for kind in KINDS:
        kept = (cache / name).read_bytes()
        damage(cache / name, kind, random.Random(3))
        with suppress(CacheCorruptError):
            extract(extract_config(cache.parent, limit=24, codec="lz4"))
        assert committed <= set(files_of(cache)), f"{kind} of {name}"
        (cache / name).write_bytes(kept)
