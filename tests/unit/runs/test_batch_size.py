"""``--batch-tokens auto``: growth by doubling, and what ends it."""

import time

import numpy as np
import pytest
import torch

from dflash_cache import demo
from dflash_cache.config import ExtractConfig, PlanConfig
from dflash_cache.errors import ConfigError
from dflash_cache.runs import batch_size
from dflash_cache.runs.batch_size import batch_tokens_of
from dflash_cache.runs.extract import extract
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.memory import host_bytes_left, peak_memory
from dflash_cache.runs.plan import plan
from dflash_cache.runs.preparation import prepare
from tests.support.runs import extract_config
from tests.support.simulated_device import SimulatedCapture

SEGMENT = 4096


@pytest.fixture(scope="module")
def preparation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    return prepare(extract_config(folder, batch_tokens="auto", segment_tokens=SEGMENT))


@pytest.fixture(scope="module")
def target(preparation):
    (capture,) = load_captures(preparation).values()
    yield capture
    capture.close()


class LatencyBound(SimulatedCapture):
    """A device that takes as long for many tokens as for few, up to as many as it has room for."""

    def __init__(self, capture, most_tokens):
        super().__init__(capture, 0.0, SEGMENT)
        self._most_tokens = most_tokens

    def hidden_states(self, sequences, check=lambda: None):
        if sum(map(len, sequences)) > self._most_tokens:
            raise torch.OutOfMemoryError("out of memory")
        time.sleep(0.02)
        return super().hidden_states(sequences, check)


def longest(preparation):
    return int(preparation.survey.lengths.max())


def test_it_doubles_until_the_next_would_be_larger_than_a_segment(preparation, target):
    found = batch_tokens_of(preparation, LatencyBound(target, SEGMENT))
    largest = max(segment.num_tokens for segment in preparation.plan)
    assert found % longest(preparation) == 0
    assert found <= largest < 2 * found


def test_it_stops_where_a_device_is_out_of_memory(preparation, target):
    most = 2 * longest(preparation)
    assert batch_tokens_of(preparation, LatencyBound(target, most)) == most


def test_one_row_that_does_not_fit_is_an_error_with_a_remedy(preparation, target):
    message = r"cpu has too little memory for one row of \d+ tokens; give a lower --max-seq-len"
    with pytest.raises(ConfigError, match=message):
        batch_tokens_of(preparation, LatencyBound(target, longest(preparation) - 1))


def test_it_stops_where_twice_as_much_is_no_faster(preparation, target):
    even = SimulatedCapture(target, 2e-4, SEGMENT)  # each token as long as every other
    assert batch_tokens_of(preparation, even) == longest(preparation)


def test_it_stops_where_the_buffers_would_take_the_host_s_memory(preparation, target, monkeypatch):
    buffer = 2 * longest(preparation) * preparation.spec.stored_token_bytes
    room = int(6 * buffer / batch_size.SAFE_SHARE) + (64 << 20)  # for that, and not for twice
    monkeypatch.setattr(batch_size, "host_bytes_left", lambda: room)
    found = batch_tokens_of(preparation, LatencyBound(target, SEGMENT))
    monkeypatch.undo()
    assert found < batch_tokens_of(preparation, LatencyBound(target, SEGMENT))


def test_a_peak_is_what_a_block_takes_for_a_while():
    with peak_memory("cpu") as (peak,):
        np.ones(64 << 20, np.uint8)
    # Linux counts some pages of a thread late.
    assert 62 << 20 <= peak.taken_bytes < 96 << 20
    assert peak.share == peak.taken_bytes / peak.left_bytes
    assert 0 < host_bytes_left() < 1 << 50


def test_extraction_uses_and_reports_it(tmp_path):
    report = extract(extract_config(tmp_path, batch_tokens="auto"))
    preparation = prepare(extract_config(tmp_path))
    assert report["batch_tokens"] % longest(preparation) == 0
    assert report["sequences"] == 40
    assert extract(extract_config(tmp_path))["batch_tokens"] is None  # there was nothing to do


def test_a_plan_finds_it_with_a_probe_and_not_without(tmp_path):
    settings = {"data": demo.DATA, "target": str(demo.TARGET), "limit": 40, "devices": ("cpu",)}
    found = plan(PlanConfig(batch_tokens="auto", probe=True, **settings))
    assert (
        found["batches"]
        == plan(PlanConfig(batch_tokens=found["batch_tokens"], **settings))["batches"]
    )
    with pytest.raises(ConfigError, match="--batch-tokens auto: tries the target, so it needs --p"):
        PlanConfig(batch_tokens="auto", **settings)


def test_actors_take_a_number(tmp_path):
    with pytest.raises(ConfigError, match=r"auto: actors take a number\. `dflash-cache plan --pro"):
        ExtractConfig(
            data=demo.DATA, target="t", cache=str(tmp_path), engine="ray", batch_tokens="auto"
        )
