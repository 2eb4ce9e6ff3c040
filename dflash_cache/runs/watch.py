"""Snapshots of a command, from what its phases say of their progress."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from dflash_cache.pipeline import StageStatistics

from .progress import ChannelState, Phase, Progress, Sample
from .rate import Rate
from .snapshot import PhaseSnapshot, Snapshot, StageSnapshot

RECENT_S = 10.0  # that shares and tokens/s are of
PACE_S = 300.0  # that the time left is judged by
_ORDER = get_args(Phase)


class Watch:
    """Takes progress from any thread, and gives snapshots to one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began_s = clock()
        self._latest: dict[str, Progress] = {}
        self._tracks: dict[str, _Track] = {}

    def __call__(self, progress: Progress) -> None:
        self._latest[progress.phase] = progress

    def snapshot(self) -> Snapshot:
        """What goes on now; for one thread, the more often the finer."""
        now_s = self._clock()
        phases = (self._phase(progress, now_s) for progress in list(self._latest.values()))
        return Snapshot(
            elapsed_s=round(now_s - self._began_s, 3),
            phases=tuple(sorted(phases, key=lambda each: _ORDER.index(each.phase))),
        )

    def _phase(self, progress: Progress, now_s: float) -> PhaseSnapshot:
        track = self._tracks.get(progress.phase)
        if track is None or (track.over and not progress.over):  # it began, perhaps once more
            track = self._tracks[progress.phase] = _Track(progress.done)
        return track.phase(progress, now_s)


class _Track:
    """What was seen of one phase."""

    def __init__(self, first_done: int) -> None:
        self._first_done = first_done
        self.over = False
        self._pace = Rate(PACE_S)
        self._tokens: dict[str, Rate] = {}
        self._tokens_per_s: dict[str, float] = {}
        self._samples: deque[tuple[float, Sample]] = deque()

    def phase(self, progress: Progress, now_s: float) -> PhaseSnapshot:
        self.over = progress.over
        if progress.done != self._first_done:  # what came before the first step is no pace
            self._pace.note(now_s, progress.done)
        stages: tuple[StageSnapshot, ...] = ()
        if progress.sample and not progress.over:
            stages = self._stages(progress.sample(), now_s)
        total = {"tokens_per_s": round(sum(self._tokens_per_s.values()), 1)}
        ends = progress.done >= progress.total
        left_s = None if ends else self._pace.seconds_to(progress.total, now_s)
        return PhaseSnapshot(
            phase=progress.phase,
            done=progress.done,
            total=progress.total,
            unit=progress.unit,
            over=progress.over or (ends and progress.sample is None),
            left_s=None if left_s is None else round(left_s, 1),
            figures={**progress.figures, **(total if self._tokens else {})},
            device_tokens_per_s=dict(self._tokens_per_s),
            stages=stages,
        )

    def _stages(self, sample: Sample, now_s: float) -> tuple[StageSnapshot, ...]:
        for device, tokens in sample.device_tokens.items():
            rate = self._tokens.setdefault(device, Rate(RECENT_S))
            rate.note(now_s, tokens)
            self._tokens_per_s[device] = round(rate.per_s(now_s), 1)
        self._samples.append((now_s, sample))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RECENT_S:
            self._samples.popleft()
        before = self._samples[0][1].stages if len(self._samples) > 1 else {}
        return tuple(
            _stage(name, each, before.get(name, StageStatistics()), sample)
            for name, each in sample.stages.items()
        )


def _stage(
    name: str, now: StageStatistics, before: StageStatistics, sample: Sample
) -> StageSnapshot:
    alive_s = now.alive_s - before.alive_s
    starved, blocked = (
        min(1.0, max(0.0, waited_s / alive_s)) if alive_s > 0 else 0.0
        for waited_s in (now.starved_s - before.starved_s, now.blocked_s - before.blocked_s)
    )
    return StageSnapshot(
        name=name,
        busy=round(max(0.0, 1 - starved - blocked), 4) if alive_s > 0 else 0.0,
        starved=round(starved, 4),
        blocked=round(blocked, 4),
        channels=_joined(sample.channels, now.depths),
    )


def _joined(channels: Mapping[str, ChannelState], names: Iterable[str]) -> dict[str, ChannelState]:
    """Those of ``names`` that are here, numbered ones of one name as one."""
    joined: dict[str, ChannelState] = {}
    for name in names:
        if name in channels:
            lane, found = re.sub(r"-\d+$", "", name), channels[name]
            before = joined.get(lane, ChannelState(held=0, capacity=0))
            joined[lane] = ChannelState(
                held=before.held + found.held, capacity=before.capacity + found.capacity
            )
    return joined
