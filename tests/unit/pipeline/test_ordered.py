import random
import threading
import time
from contextlib import closing

import pytest

from dflash_cache.pipeline import Pipeline, ordered_map
from tests.support.threads import Call, no_thread_left, num_waiting, until


@pytest.fixture(autouse=True)
def _leave_no_thread():
    with no_thread_left():
        yield


def run(work, items, *, workers=3, depth=1, consume=list):
    """``consume`` gets the generator, in the body of a pipeline that is guarded against hanging."""
    pipeline = Pipeline("p")

    def body():
        with pipeline:
            results = ordered_map(pipeline, "map", work, items, workers=workers, depth=depth)
            pipeline.start()
            return consume(results)

    return Call(body).result(release=pipeline.cancel)


def fails_on(*bad):
    def work(item):
        if item in bad:
            raise ValueError(f"item {item}")
        return item

    return work


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 50])
@pytest.mark.parametrize("depth", [1, 4])
def test_results_come_in_the_order_of_the_items(workers, count, depth):
    results = run(lambda item: item * item, lambda: range(count), workers=workers, depth=depth)
    assert results == [item * item for item in range(count)]


def test_results_keep_their_order_when_work_takes_unequal_times():
    pauses = [random.Random(0).random() * 0.002 for _ in range(60)]

    def work(item):
        time.sleep(pauses[item])
        return item

    assert run(work, lambda: range(60), workers=4, depth=2) == list(range(60))


def test_a_later_item_that_is_ready_first_waits_for_its_turn():
    second_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_done.wait(20)
        if item == 1:
            second_done.set()
        return item

    assert run(work, lambda: range(6), workers=2) == list(range(6))


def test_every_item_is_worked_on_once():
    seen = []
    run(seen.append, lambda: range(40), workers=4)
    assert sorted(seen) == list(range(40))


def test_none_and_exceptions_are_results_like_any_other():
    values = [None, ValueError("a value"), False]
    assert run(lambda item: values[item], lambda: range(3)) == values


def test_workers_are_at_most_depth_results_ahead():
    pipeline = Pipeline("p")
    started = []

    def consume(results):
        assert next(results) == 0
        until(lambda: sum(num_waiting(lane) for lane in pipeline._abortables) == 2)
        # taken 1, held 2 lanes x 3, in hand 2
        assert len(started) == 1 + 2 * 3 + 2
        return [0, *results]

    def body():
        with pipeline:
            results = ordered_map(
                pipeline,
                "map",
                lambda item: started.append(item) or item,
                lambda: range(30),
                workers=2,
                depth=3,
            )
            pipeline.start()
            return consume(results)

    assert Call(body).result(release=pipeline.cancel) == list(range(30))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("bad", [0, 1, 4, 9])
def test_an_error_comes_after_all_results_before_it(workers, bad):
    taken = []
    with pytest.raises(ValueError, match="item") as caught:
        run(fails_on(bad), lambda: range(10), workers=workers, consume=taken.extend)
    assert taken == list(range(bad))
    assert str(caught.value) == f"item {bad}"
    assert caught.value.__notes__ == ["raised in stage 'map' of pipeline 'p'"]


def test_of_two_errors_the_one_of_the_earlier_item_is_raised():
    later_failed = threading.Event()

    def work(item):
        if item == 3:
            assert later_failed.wait(20)
            raise ValueError("earlier")
        if item == 4:
            later_failed.set()
            raise ValueError("later")
        return item

    with pytest.raises(ValueError, match="earlier"):
        run(work, lambda: range(10), workers=2, depth=4)


def test_an_error_of_the_items_themselves_comes_in_its_place():
    def items():
        yield from range(4)
        raise OSError("the list ends badly")

    taken = []
    with pytest.raises(OSError, match="ends badly"):
        run(lambda item: item, items, workers=2, consume=taken.extend)
    assert taken == [0, 1, 2, 3]


def test_endless_items_are_worked_on_only_as_far_as_they_are_taken():
    def items():
        item = 0
        while True:
            yield item
            item += 1

    def consume(results):
        with closing(results):
            return [next(results) for _ in range(20)]

    assert run(lambda item: item, items, consume=consume) == list(range(20))


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_closing_the_generator_early_frees_the_workers(taken):
    def consume(results):
        first = [next(results) for _ in range(taken)]
        results.close()
        return first

    assert run(lambda item: item, lambda: range(1000), consume=consume) == list(range(taken))


def test_closing_the_generator_before_its_first_result_frees_the_workers():
    run(lambda item: item, lambda: range(1000), consume=lambda results: results.close())


def test_a_consumer_that_fails_frees_the_workers():
    def consume(results):
        for item in results:
            if item == 3:
                raise KeyError("consumer")

    with pytest.raises(KeyError, match="consumer"):
        run(lambda item: item, lambda: range(1000), consume=consume)


def test_a_stage_may_consume_the_results():
    pipeline = Pipeline("p")
    taken = []

    def body():
        with pipeline:
            results = ordered_map(pipeline, "map", str, lambda: range(30), workers=3, depth=1)
            pipeline.spawn("take", lambda: taken.extend(results))
            pipeline.start()

    Call(body).result(release=pipeline.cancel)
    assert taken == [str(item) for item in range(30)]


def test_an_error_stops_the_workers_that_are_ahead_of_it():
    seen = []

    def work(item):
        seen.append(item)
        return fails_on(5)(item)

    with pytest.raises(ValueError, match="item 5"):
        run(work, lambda: range(10_000), workers=4, depth=2)
    assert len(seen) < 100
