"""One actor of a Ray cluster: a target on its placement, and writers. It does not import Ray."""

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from dflash_cache.cache import (
    SegmentWriter,
    TargetParts,
    open_storage,
    require_same_identity,
)
from dflash_cache.pipeline import Cancelled, Channel, Pipeline, StageStatistics
from dflash_cache.target import LayerCapture, Target, identify_target, resolve_target
from dflash_cache.types import CommittedSegment, SegmentPlan

from .workers import Batching, FinishedSegment, ReadSegment, SegmentMaking

UNDER_WAY = 2  # segments of an actor: one in its target, one that is being written


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorJob:
    """What an actor must know; paths mean the same on every node."""

    number: int
    name: str
    target: str
    revision: str | None
    trust_remote_code: bool
    devices: str
    compile: bool
    batching: Batching
    cache: str


class SegmentActor:
    """Makes segments of read rows. ``extract`` may be called by several threads at once."""

    def __init__(self, job: ActorJob) -> None:
        # Nothing that can fail: Ray would report it as an actor's death.
        self._job = job
        self._closing = ExitStack()

    def load(self) -> None:
        """Load the target and start the stages; an error names this actor and its node."""
        self._pipeline = Pipeline(f"{self._job.name} on {socket.gethostname()}")
        try:
            self._load()
        except Exception as error:
            error.add_note(f"raised in {self._pipeline.name}")
            raise

    def _load(self) -> None:
        job, spec = self._job, self._job.batching.spec
        found = identify_target(job.target, job.revision)
        what = f"{self._pipeline.name} has another target {job.target} than the command"
        require_same_identity(found, spec, what=what, remedy="Let every node have the same files")
        target = Target.load(
            resolve_target(job.target, job.revision),
            dtype=spec.dtype,
            device=job.devices,
            trust_remote_code=job.trust_remote_code,
            compiled=job.compile,
        )
        capture = LayerCapture(target, spec.target_layer_ids, keep_last=spec.keep_last)
        self._target = target
        self._storage = open_storage(job.cache)
        self._staging = self._storage.shared_staging(f"actor-{job.number}")
        pipeline = self._closing.enter_context(self._pipeline)
        self._rows: Channel[ReadSegment] = pipeline.channel("handed out", 1)
        finished: Channel[FinishedSegment] = pipeline.channel("made", UNDER_WAY)
        self._rows.add_producer()
        self._changed = pipeline.monitor("shared")
        self._shared: dict[int, tuple[str, CommittedSegment]] = {}
        making = SegmentMaking(pipeline, job.batching, self._open_segment)
        making.spawn([capture], UNDER_WAY, self._rows, finished)
        pipeline.spawn("share", lambda: self._share(finished))
        pipeline.start()

    def target_parts(self) -> TargetParts:
        return self._target.parts()

    def _open_segment(self, plan: SegmentPlan) -> SegmentWriter:
        return SegmentWriter(self._staging, self._job.batching.spec, plan.index, plan.num_tokens)

    def _share(self, finished: Channel[FinishedSegment]) -> None:
        for item in finished:
            assert item.folder is not None
            name = self._storage.share(item.folder)
            with self._changed:
                self._shared[item.segment.index] = name, item.segment

    def extract(self, read: ReadSegment) -> tuple[str, CommittedSegment]:
        """(the name under which the segment is shared, its record)."""
        index = read.plan.index
        try:
            self._rows.put(read)
            with self._changed:
                return self._changed.wait_for(lambda: self._shared.pop(index, None), kind="starved")
        except Cancelled:
            failure = self._pipeline.failure
            assert failure is not None, "nothing else stops it"
            raise failure from None

    def stop(self) -> dict[str, StageStatistics]:
        """End the stages; returns what they did with their time."""
        self._rows.remove_producer()
        self._closing.close()
        return self._pipeline.statistics
