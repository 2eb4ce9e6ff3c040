"""A device that computes after its calls have returned, and copies when it is waited for."""

import threading
from dataclasses import replace

import pytest
import torch

from dflash_cache.cache import Cache
from dflash_cache.config import ExtractConfig
from dflash_cache.runs import workers
from dflash_cache.runs.extract import extract
from dflash_cache.target.staging import MOST_UNDER_WAY, CopyStream
from tests.support.caches import assert_same_content
from tests.support.tiny_targets import (
    NAN_TOKEN,
    random_rows,
    rows_of,
    save_rows,
    save_spoilt_target,
)


class LateCopy:
    """In place of an event: the copy is made when somebody waits for it."""

    def __init__(self, pairs):
        self._pairs = pairs
        self._lock = threading.Lock()

    def synchronize(self):
        with self._lock:
            for place, tensor in self._pairs:
                place.copy_(tensor)
            self._pairs = []


class LateCopies(CopyStream):
    most_under_way = 0

    def copy(self, pairs):
        for place, _ in pairs:  # what a reader that does not wait would take
            place.fill_(float("nan"))
        late = LateCopy([(place, tensor.clone()) for place, tensor in pairs])
        self._under_way.append(late)
        LateCopies.most_under_way = max(LateCopies.most_under_way, len(self._under_way))
        return late


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    ids = [list(row) for row in random_rows(40, max_len=60)["input_ids"]]
    ids = [[20 if each == NAN_TOKEN else each for each in row] for row in ids]
    ids[3][0] = ids[9][-1] = NAN_TOKEN
    return ExtractConfig(
        data=save_rows(folder / "rows", rows_of(ids)),
        target=str(save_spoilt_target(folder / "target")),
        cache=str(folder / "cache"),
        devices=("cpu", "cpu"),
        segment_tokens=300,
        batch_tokens=80,
    )


@pytest.mark.parametrize("codec", ["crc32c", "fp8"])
def test_nobody_reads_a_batch_before_it_has_arrived(codec, settings, tmp_path, monkeypatch):
    extract(replace(settings, codec=codec, cache=str(tmp_path / "plain")))
    monkeypatch.setattr(LateCopies, "most_under_way", 0)
    monkeypatch.setattr(workers, "CopyStream", LateCopies)
    report = extract(replace(settings, codec=codec, cache=str(tmp_path / "late")))
    plain, late = (Cache.open(tmp_path / name) for name in ("plain", "late"))
    assert_same_content(plain, late)
    assert report["dropped"]["non_finite"] == 2
    assert {row.row_id: row.detail for row in late.ledger} == {
        row.row_id: row.detail for row in plain.ledger
    }
    assert LateCopies.most_under_way == MOST_UNDER_WAY


def test_on_the_cpu_states_are_there_at_once():
    place = torch.zeros(3)
    assert CopyStream(torch.device("cpu")).copy([(place, torch.ones(3))]) is None
    assert place.tolist() == [1, 1, 1]
