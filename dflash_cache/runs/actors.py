"""The workers of a Ray cluster: an actor a placement, and who hands segments out to them."""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from dflash_cache.cache import CacheWriter, TargetParts
from dflash_cache.errors import WorkerLostError
from dflash_cache.pipeline import Channel, Monitor, Pipeline, StageStatistics

from .actor import UNDER_WAY, ActorJob, SegmentActor
from .cluster import devices_of, import_ray, num_gpus
from .preparation import Preparation
from .workers import Batching, FinishedSegment, ReadSegment

log = logging.getLogger(__name__)
RESTARTS = 3  # of one placement's actor; who is lost more often has a cause that stays


class Answer:
    """What a call of an actor will return; its arrival wakes who waits on ``monitor``."""

    def __init__(self, monitor: Monitor, reference: Any) -> None:
        self._monitor = monitor
        self._future = reference.future()
        self._future.add_done_callback(self._wake)

    def _wake(self, _future: Any) -> None:
        with self._monitor:
            pass  # leaving wakes

    def is_there(self) -> bool:
        return bool(self._future.done())

    def wait(self) -> Any:
        """Wait for it, not with ``ray.get``, which a stop of the pipeline would not wake.

        Raises what the actor raised, or ``RayActorError`` if it was lost.
        """
        with self._monitor:
            self._monitor.wait_for(lambda: self.is_there() or None, kind="blocked")
        error = self._future.exception()
        if error is not None:
            raise getattr(error, "cause", None) or error  # Ray wraps what an actor raises
        return self._future.result()


class Placement:
    """Where an actor runs, and the one that runs there now.

    Ray is never called with the monitor held: it may wait for a thread that wants to wake others.
    """

    def __init__(self, monitor: Monitor, job: ActorJob, num_gpus: int) -> None:
        self._ray = import_ray()
        self._monitor = monitor
        self._job = job
        self.name = job.name
        self._num_gpus = num_gpus
        self.num_lost = 0
        self.actor: Any = None  # None while a lost one is replaced
        self.loading: Answer | None = None
        self._start()

    def _start(self) -> None:
        # Two threads more than segments under way, for `target_parts` and `stop`.
        made = self._ray.remote(SegmentActor).options(
            num_cpus=1, num_gpus=self._num_gpus, max_concurrency=UNDER_WAY + 2
        )
        actor = made.remote(self._job)
        loading = Answer(self._monitor, actor.load.remote())
        with self._monitor:
            self.actor, self.loading = actor, loading

    def has_answered(self) -> bool:
        """Whether its actor has loaded, failed or died; the holder of the monitor asks."""
        return self.loading is not None and self.loading.is_there()

    def ask(self, reference: Any) -> Any:
        return Answer(self._monitor, reference).wait()

    def replace(self, lost: Any, error: Exception) -> None:
        """Start another actor, unless that was done; ``WorkerLostError`` if too many were lost."""
        with self._monitor:
            if lost is not self.actor:
                return
            self.num_lost += 1
            if self.num_lost > RESTARTS:
                raise WorkerLostError(
                    f"{self._job.name} was lost {self.num_lost} times, perhaps for lack of memory; "
                    f"the last time: {str(error).strip() or type(error).__name__}. What is "
                    "committed is kept: the same command continues"
                )
            self.actor = self.loading = None
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        log.warning("%s was lost, another one is started: %s", self.name, why)
        self._ray.kill(lost)  # it may be only out of reach
        self._start()

    def stop(self) -> None:
        if self.actor is not None:
            self._ray.kill(self.actor)


class HandOut:
    """Read segments for whoever is free; those of a lost actor come first."""

    def __init__(self, monitor: Monitor, most: int) -> None:
        self._monitor = monitor
        self._most = most
        self._waiting: deque[ReadSegment] = deque()
        self._under_way = 0
        self._filled = False

    def fill(self, rows: Iterable[ReadSegment]) -> None:
        for read in rows:
            with self._monitor:
                self._monitor.wait_for(self._has_room, kind="blocked")
                self._waiting.append(read)
        with self._monitor:
            self._filled = True

    def _has_room(self) -> Literal[True] | None:
        return True if len(self._waiting) < self._most else None

    def take(self) -> ReadSegment | None:
        """The next one; None once all are finished, since any that is not may come back."""
        with self._monitor:
            found: ReadSegment | Literal["over"] = self._monitor.wait_for(
                self._next, kind="starved"
            )
        return None if isinstance(found, str) else found

    def _next(self) -> ReadSegment | Literal["over"] | None:
        if self._waiting:
            self._under_way += 1
            return self._waiting.popleft()
        return "over" if self.is_over() else None

    def is_over(self) -> bool:
        return self._filled and not self._waiting and not self._under_way

    def finished(self) -> None:
        with self._monitor:
            self._under_way -= 1

    def give_back(self, read: ReadSegment) -> None:
        with self._monitor:
            self._under_way -= 1
            self._waiting.appendleft(read)


class ActorWorkers:
    """The actors, from when they begin to load until the end of the block.

    One that dies is replaced, and whoever is free takes its segments; what else fails in one ends
    the run with its error. They make segments, and this process alone changes the cache.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._lost_error: type[Exception] = import_ray().exceptions.RayActorError
        self._preparation = preparation
        self.num_workers = len(preparation.devices)
        assert preparation.config.batch_tokens != "auto"  # the configuration refuses it
        self.batch_tokens: int = preparation.config.batch_tokens
        self._monitor = Monitor("actors")
        self._placements: list[Placement] = []
        self._tokens: Counter[str] = Counter()  # by placement

    def __enter__(self) -> Self:
        for number, devices in enumerate(self._preparation.devices, start=1):
            job = _job(self._preparation, self.batch_tokens, number, devices)
            self._placements.append(Placement(self._monitor, job, num_gpus(devices)))
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for placement in self._placements:
            placement.stop()
        if error is None and any(placement.num_lost for placement in self._placements):
            self._writer.tidy()

    def target_parts(self) -> TargetParts:
        """From the actor that has loaded first."""
        while True:
            with self._monitor:
                placement = self._monitor.wait_for(self._first_answered, kind="starved")
                actor, loading = placement.actor, placement.loading
            assert loading is not None
            try:
                loading.wait()
                parts: TargetParts = placement.ask(actor.target_parts.remote())
            except self._lost_error as error:
                placement.replace(actor, error)
            else:
                return parts

    def _first_answered(self) -> Placement | None:
        return next((each for each in self._placements if each.has_answered()), None)

    def device_tokens(self) -> dict[str, int]:
        return dict(self._tokens)

    def spawn(
        self,
        pipeline: Pipeline,
        writer: CacheWriter,
        rows: Channel[ReadSegment],
        finished: Channel[Any],
    ) -> None:
        pipeline.register(self._monitor)
        self._writer, self._finished = writer, finished
        self._hand_out = HandOut(self._monitor, self.num_workers)
        pipeline.spawn("hand out", partial(self._hand_out.fill, rows))
        for placement in self._placements:
            pipeline.spawn(
                "actor",
                partial(self._serve_to_the_end, placement, pipeline.statistics),
                into=[finished],
            )
            for _ in range(UNDER_WAY - 1):
                pipeline.spawn("actor", partial(self._serve, placement), into=[finished])

    def _serve(self, placement: Placement) -> None:
        """Keep one segment under way in the placement's actor."""
        while (actor := self._loaded_actor(placement)) and (read := self._hand_out.take()):
            try:
                shared, segment = placement.ask(actor.extract.remote(read))
            except self._lost_error as error:
                self._hand_out.give_back(read)
                placement.replace(actor, error)
            else:
                self._writer.accept(shared, segment)
                self._finished.put(FinishedSegment(None, segment))
                self._hand_out.finished()
                with self._monitor:
                    self._tokens[placement.name] += segment.num_tokens

    def _loaded_actor(self, placement: Placement) -> Any:
        """None if all segments are finished before one has loaded: others may have the devices."""
        while True:
            with self._monitor:
                self._monitor.wait_for(
                    lambda: placement.has_answered() or self._hand_out.is_over() or None,
                    kind="blocked",
                )
                actor, loading = placement.actor, placement.loading
            if loading is None or not loading.is_there():
                return None
            try:
                loading.wait()
            except self._lost_error as error:
                placement.replace(actor, error)
            else:
                return actor

    def _serve_to_the_end(
        self, placement: Placement, statistics: dict[str, StageStatistics]
    ) -> None:
        """As ``_serve``; then add what the actor's stages did with their time to ``statistics``."""
        self._serve(placement)
        if (actor := self._loaded_actor(placement)) is None:
            return
        try:
            found: dict[str, StageStatistics] = placement.ask(actor.stop.remote())
        except self._lost_error:
            return  # it was not needed any more
        with self._monitor:
            for name, each in found.items():
                statistics.setdefault(name, StageStatistics()).add(each)


def _job(preparation: Preparation, batch_tokens: int, number: int, devices: str) -> ActorJob:
    config = preparation.config
    local = Path(config.target).is_dir()
    return ActorJob(
        number=number,
        name=f"actor {number} ({devices})",
        target=str(Path(config.target).absolute()) if local else config.target,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        devices=devices_of(devices),
        compile=config.compile,
        batching=Batching.of(preparation, batch_tokens),
        cache=config.cache if "://" in str(config.cache) else str(Path(config.cache).absolute()),
    )
