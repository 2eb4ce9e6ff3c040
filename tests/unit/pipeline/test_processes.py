import os
import signal
from functools import partial

import pytest

from dflash_cache.errors import DataError, WorkerLostError
from dflash_cache.pipeline import process_map


def make(here):
    """What a worker applies; it fails at 13, dies at 17 and tells whether it is ``here``."""

    def apply(item):
        if item == 13:
            raise DataError("row 13: wrong")
        if item == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid() == here

    return apply


MAKE = partial(make, os.getpid())


def test_results_come_in_order_from_other_processes_and_errors_are_raised_here():
    results = process_map(MAKE, iter(range(14)), workers=2)
    assert [next(results) for _ in range(13)] == [(number, False) for number in range(13)]
    with pytest.raises(DataError, match="row 13: wrong"):
        next(results)


def test_a_bounded_number_of_items_is_under_way():
    taken = []
    results = process_map(MAKE, (taken.append(n) or n for n in range(12)), workers=1)
    next(results)
    assert len(taken) == 2  # a second one is looked for, to know whether processes are worth it
    results.close()


def test_a_worker_that_is_killed_ends_the_work_with_a_word():
    with pytest.raises(WorkerLostError, match="fewer --workers"):
        list(process_map(MAKE, [17, 18, 19], workers=1 + 1))


@pytest.mark.parametrize(("items", "workers"), [([1], 4), ([1, 2, 3], 1), ([], 2)])
def test_little_work_is_done_in_this_process(items, workers):
    assert list(process_map(MAKE, items, workers=workers)) == [(item, True) for item in items]
