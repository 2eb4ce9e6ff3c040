"""``--batch-tokens auto``: growth by doubling, and what ends it."""

import mmap

import pytest
import torch

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.config import BothConfig, ExtractConfig, PlanConfig
from dflash_cache.errors import ConfigError
from dflash_cache.runs import batch_size
from dflash_cache.runs.batch_size import batch_tokens_of
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.memory import PeakMemory, host_bytes_left, peak_memory
from dflash_cache.runs.plan import plan
from dflash_cache.runs.preparation import prepare
from tests.support.runs import extract_config, train_config

SEGMENT = 4096


@pytest.fixture(scope="module")
def preparation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    return prepare(extract_config(folder, batch_tokens="auto", segment_tokens=SEGMENT))


@pytest.fixture
def found(preparation, monkeypatch):
    """What is found on a device of which a pass takes so long, and that has room for so many."""

    def find(*, pass_s=0.0, token_s=0.0, most_tokens=SEGMENT):
        def seconds(_preparation, _capture, rows):
            num_tokens = int(rows[:, 1].sum())
            if num_tokens > most_tokens:
                raise torch.OutOfMemoryError("out of memory")
            return pass_s + token_s * num_tokens

        monkeypatch.setattr(batch_size, "batch_seconds", seconds)
        return batch_tokens_of(preparation, None)

    return find


def longest(preparation):
    return int(preparation.survey.lengths.max())


def test_it_doubles_until_the_next_would_be_larger_than_a_segment(preparation, found):
    largest = max(segment.num_tokens for segment in preparation.plan)
    assert found(pass_s=1.0) % longest(preparation) == 0
    assert found(pass_s=1.0) <= largest < 2 * found(pass_s=1.0)


def test_it_stops_where_a_device_is_out_of_memory(preparation, found):
    most = 2 * longest(preparation)
    assert found(pass_s=1.0, most_tokens=most) == most


def test_one_row_that_does_not_fit_is_an_error_with_a_remedy(preparation, found):
    message = r"cpu has too little memory for one row of \d+ tokens; give a lower --max-seq-len"
    with pytest.raises(ConfigError, match=message):
        found(pass_s=1.0, most_tokens=longest(preparation) - 1)


def test_it_is_no_larger_than_what_is_about_as_fast(preparation, found):
    one = longest(preparation)
    assert found(token_s=1.0) == one
    # Two rows are at .952 of the device's speed, four at .976, sixteen at .994.
    assert found(pass_s=0.1 * one, token_s=1.0) == 4 * one


def test_it_stops_where_the_buffers_would_take_the_host_s_memory(preparation, found, monkeypatch):
    buffers = 6 * longest(preparation) * preparation.spec.stored_token_bytes
    room = int(2.2 * buffers / batch_size.SAFE_SHARE)  # for those of two rows, not of four
    assert found(pass_s=1.0) > 2 * longest(preparation)
    monkeypatch.setattr(batch_size, "host_bytes_left", lambda: room)
    assert found(pass_s=1.0) == 2 * longest(preparation)


def test_a_peak_is_what_a_block_takes_for_a_while():
    text = b"1" * (64 << 20)
    # Pages of the system: an array may get those that the C library holds since earlier tests.
    with peak_memory("cpu") as (peak,), mmap.mmap(-1, len(text)) as pages:
        pages.write(text)
    # Linux counts some pages of a thread late.
    assert 62 << 20 <= peak.taken_bytes < 96 << 20
    assert peak.share == peak.taken_bytes / peak.left_bytes
    assert 0 < host_bytes_left() < 1 << 50


@pytest.mark.parametrize("name", ["_PROCESS", "_MACHINE", "_RESET_PEAK"])
def test_a_system_that_does_not_tell_its_memory_needs_a_number(name, tmp_path, monkeypatch):
    monkeypatch.setattr(f"dflash_cache.runs.memory.{name}", tmp_path / "not" / "there")
    with pytest.raises(ConfigError, match=r"does not tell what memory .*; give --batch-tokens a n"):
        PeakMemory("cpu").stop()


def test_a_container_s_limit_counts_and_its_page_cache_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_cache.runs.memory._CONTAINER", tmp_path)
    free = host_bytes_left()
    files = {"max": "max", "current": "700", "stat": "anon 400\ninactive_file 200\n"}
    for name, content in files.items():
        (tmp_path / f"memory.{name}").write_text(content)
    assert host_bytes_left() == pytest.approx(free, rel=0.3)
    (tmp_path / "memory.max").write_text("1000\n")
    assert host_bytes_left() == 500


def test_extraction_uses_and_reports_it(tmp_path):
    settings = {"limit": 12, "max_seq_len": 100}
    report = extract(extract_config(tmp_path, batch_tokens="auto", **settings))
    assert report["batch_tokens"] % longest(prepare(extract_config(tmp_path, **settings))) == 0
    assert report["sequences"] == 12
    kept = Cache.open(tmp_path / "cache").settings[0]["batch_tokens"]
    assert kept == report["batch_tokens"]  # so that a repair makes the same batches
    again = extract(extract_config(tmp_path, **settings))
    assert again["batch_tokens"] is None  # there was nothing to do


def test_a_plan_finds_it_with_a_probe_and_not_without():
    settings = {"data": demo.DATA, "target": str(demo.TARGET), "devices": ("cpu",)}
    settings |= {"limit": 12, "max_seq_len": 100}
    found = plan(PlanConfig(batch_tokens="auto", probe=True, **settings))
    same = plan(PlanConfig(batch_tokens=found["batch_tokens"], **settings))
    assert found["batches"] == same["batches"]
    with pytest.raises(ConfigError, match="--batch-tokens auto: tries the target, so it needs --p"):
        PlanConfig(batch_tokens="auto", **settings)


def test_a_device_that_trains_meanwhile_has_no_known_room(tmp_path):
    extraction = extract_config(tmp_path, batch_tokens="auto")
    settings = BothConfig(extract=extraction, train=train_config(tmp_path), overlap=True)
    with pytest.raises(ConfigError, match="training will need memory of cpu too"):
        both(settings)


def test_actors_take_a_number(tmp_path):
    with pytest.raises(ConfigError, match=r"auto: actors take a number\. `dflash-cache plan --pro"):
        ExtractConfig(
            data=demo.DATA, target="t", cache=str(tmp_path), engine="ray", batch_tokens="auto"
        )
