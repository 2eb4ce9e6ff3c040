"""A function mapped over items by other processes, for work that holds the interpreter's lock."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from dflash_cache.errors import WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 2  # items under way for each worker
_PR_SET_PDEATHSIG = 1

_function: Callable[[Any], Any]


def process_map(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], *, workers: int
) -> Iterator[Result]:
    """The results for ``items``, in their order; a bounded number of items is under way.

    ``make`` is pickled and called once in each process for the function to apply. With one worker,
    or fewer than two items, this process does the work. An error of the function is raised here;
    ``WorkerLostError`` says that a process was ended from outside.
    """
    items = iter(items)
    first = list(islice(items, 2))
    if workers == 1 or len(first) < 2:
        yield from map(make(), chain(first, items))
        return
    others = set(multiprocessing.active_children())
    with tempfile.NamedTemporaryFile() as made_by:
        # Not through the pipe that starts a process: a large one would hold up a stop.
        pickle.dump(make, made_by)
        made_by.flush()
        # A fresh interpreter: a fork would copy locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, _start, (Path(made_by.name),))
        try:
            yield from _results(pool, chain(first, items), AHEAD * workers)
        except BrokenProcessPool as error:
            raise WorkerLostError(
                "a worker process was ended from outside, perhaps for lack of memory; use fewer "
                "--workers"
            ) from error
        finally:
            # Done, they are idle; after an error or a stop nobody wants what they work on.
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
            pool.shutdown(cancel_futures=True)


def _results(pool: ProcessPoolExecutor, items: Iterable[Item], most: int) -> Iterator[Any]:
    under_way: deque[Future[Any]] = deque()
    for item in items:
        under_way.append(pool.submit(_apply, item))
        if len(under_way) > most:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start(made_by: Path) -> None:
    global _function  # noqa: PLW0603  what a pool's initializer makes has no other place
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    # Without this a worker would wait for ever for work from a parent that was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        os._exit(1)
    _function = pickle.loads(made_by.read_bytes())()


def _apply(item: Any) -> Any:
    return _function(item)
