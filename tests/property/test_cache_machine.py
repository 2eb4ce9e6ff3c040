"""A cache against a model in memory: written, killed, resumed, verified, evicted from, merged."""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dflash_cache.cache import Cache, CacheWriter, PlannedPart, verify_cache
from dflash_cache.cache.layout import segment_folder
from dflash_cache.cache.local import LocalStorage
from dflash_cache.cache.merge import merge_caches
from dflash_cache.types import SegmentPlan, TokenSequence
from tests.support.caches import SPEC, TARGET, spec_for

NAMES = ("a", "b")  # two datasets, of which caches are made and merged
NUM_SEGMENTS, SEGMENT_ROWS = 6, 3
names, indices = st.sampled_from(NAMES), st.integers(0, NUM_SEGMENTS - 1)


class Killed(Exception):
    """The process is gone."""


def rows_of(index: int) -> list[int]:
    return list(range(index * SEGMENT_ROWS, (index + 1) * SEGMENT_ROWS))


def states_of(name: str, row: int) -> np.ndarray:
    rng = np.random.default_rng((NAMES.index(name), row))
    return rng.standard_normal((1 + row % 4, 2, SPEC.hidden_size), np.float32)


def planned(name: str) -> list[SegmentPlan]:
    return [
        SegmentPlan(
            index=index,
            row_ids=np.array(rows_of(index)),
            lengths=np.array([len(states_of(name, row)) for row in rows_of(index)]),
        )
        for index in range(NUM_SEGMENTS)
    ]


class CacheMachine(RuleBasedStateMachine):
    """``model`` holds, for each cache, the segments that a reader must see."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.writers: dict[str, CacheWriter | None] = {}
        self.model: dict[str, set[int]] = {name: set() for name in NAMES}
        self.merged: set[tuple[str, int]] = set()
        for name in NAMES:
            plan = planned(name)
            spec = spec_for(plan, num_rows=NUM_SEGMENTS * SEGMENT_ROWS)
            part = replace(spec.parts[0], dataset_fingerprint=name)
            Cache.create(
                LocalStorage(self.folder / name),
                replace(spec, parts=(part,)),
                {},
                TARGET,
                PlannedPart(segments=plan, dropped=[]),
            )
            self.resume(name)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def writer(self, name: str) -> CacheWriter:
        if self.writers[name] is None:
            self.resume(name)
        writer = self.writers[name]
        assert writer is not None
        return writer

    @rule(name=names)
    def resume(self, name: str) -> None:
        self.writers[name] = CacheWriter(Cache.open(self.folder / name))

    @rule(name=names, index=indices)
    def write(self, name: str, index: int) -> None:
        if index not in self.model[name]:
            self._write(name, index, stop="never")
            self.model[name].add(index)

    @rule(
        name=names,
        index=indices,
        stop=st.sampled_from(["while writing", "before the move", "before the record"]),
    )
    def kill_while_writing(self, name: str, index: int, stop: str) -> None:
        if index in self.model[name]:
            return
        with suppress(Killed):
            self._write(name, index, stop)
        self.writers[name] = None
        if stop == "before the record":  # in place and durable: a resume takes it up
            self.resume(name)
            self.model[name].add(index)

    def _write(self, name: str, index: int, stop: str) -> None:
        writer = self.writer(name)
        segment = writer.segment(planned(name)[index])
        sequences = []
        for row in rows_of(index):
            states = states_of(name, row)
            segment.append(states)
            ids, mask = np.full(len(states), row, np.int32), np.ones(len(states), np.uint8)
            sequences.append(TokenSequence(row_id=row, input_ids=ids, loss_mask=mask))
            if stop == "while writing":
                segment._shard.close()
                raise Killed
        committed = segment.finish(sequences)
        if stop == "before the move":
            raise Killed
        if stop == "before the record":
            writer.cache.storage.take(segment.folder, segment_folder(index))
            raise Killed
        writer.commit(segment.folder, committed)

    @rule(name=names, cut=st.integers(1, 60))
    def kill_while_recording(self, name: str, cut: int) -> None:
        """Half a line at the log's end is a commit, or an eviction, that did not happen."""
        log = self.folder / name / "commits.log"
        if not self.model[name]:
            return
        self.resume(name)  # an eviction is then no line any more
        line = log.read_bytes().split(b"\n")[-2]
        log.write_bytes(log.read_bytes() + line[: min(cut, len(line) - 1)])
        self.writers[name] = None

    @rule(name=names, index=indices)
    def evict(self, name: str, index: int) -> None:
        if index in self.model[name]:
            self.writer(name).evict(index)
            self.model[name].remove(index)

    @rule(name=names, index=indices)
    def kill_while_evicting(self, name: str, index: int) -> None:
        if index in self.model[name]:
            storage = self.writer(name).cache.storage
            assert isinstance(storage, LocalStorage)
            storage.commits.evict(index)
            self.writers[name] = None
            self.model[name].remove(index)

    @rule(order=st.permutations(NAMES))
    def merge(self, order: list[str]) -> None:
        sources = [Cache.open(self.folder / name) for name in order]
        cache = merge_caches(sources, LocalStorage(self.folder / "merged"))
        self.merged |= {(name, index) for name in NAMES for index in self.model[name]}
        parts = [part.dataset_fingerprint for part in cache.spec.parts]
        found = {(parts[index // NUM_SEGMENTS], index % NUM_SEGMENTS) for index in cache.segments}
        assert found == self.merged
        assert verify_cache(self.folder / "merged") == []
        for index in cache.segments:
            first_row = cache.spec.first_rows[index // NUM_SEGMENTS]
            self._check(cache, index, parts[index // NUM_SEGMENTS], first_row)

    @precondition(lambda self: any(self.model.values()))
    @rule(name=names)
    def verify(self, name: str) -> None:
        """Before a resume the only faults are those that it settles; after it there is none."""
        for fault in verify_cache(self.folder / name):
            settled = ("cut short", "has no record of")
            assert any(word in fault.problem for word in settled), fault
        self.resume(name)
        assert verify_cache(self.folder / name) == []

    @rule(name=names, row=st.integers(0, NUM_SEGMENTS * SEGMENT_ROWS - 1))
    def read_one_row(self, name: str, row: int) -> None:
        if row // SEGMENT_ROWS in self.model[name]:
            segment = Cache.open(self.folder / name).read(row // SEGMENT_ROWS, np.array([row]))
            assert segment.row_ids.tolist() == [row]
            assert segment.hidden_TKH.tobytes() == states_of(name, row).tobytes()

    @invariant()
    def readers_see_what_the_model_holds(self) -> None:
        for name in NAMES:
            assert set(Cache.open(self.folder / name).segments) == self.model[name]

    @rule(name=names)
    def read_everything(self, name: str) -> None:
        cache = Cache.open(self.folder / name)
        for index in cache.segments:
            self._check(cache, index, name, first_row=0)

    def _check(self, cache: Cache, index: int, name: str, first_row: int) -> None:
        segment = cache.read(index)
        rows = rows_of(index % NUM_SEGMENTS)
        assert segment.row_ids.tolist() == [first_row + row for row in rows]
        expected = np.concatenate([states_of(name, row) for row in rows])
        assert segment.hidden_TKH.tobytes() == expected.tobytes()


CacheMachine.TestCase.settings = settings(
    max_examples=1,
    stateful_step_count=500,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestCacheAgainstItsModel(CacheMachine.TestCase):  # type: ignore[name-defined,misc]
    """500 steps of what may happen to two caches and to what they are merged into."""
