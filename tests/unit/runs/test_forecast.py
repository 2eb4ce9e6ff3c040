import math

from dflash_cache.runs.forecast import Forecast


def forecast_of(needs, num_segments=4):
    forecast = Forecast(num_segments)
    forecast.expect(needs)
    return forecast


def test_needs_are_known_in_order_and_of_each_segment_the_next():
    forecast = forecast_of([0, 1, 2, 1, 0])
    assert list(forecast) == [(0, 0), (1, 1), (2, 2), (3, 1), (4, 0)]
    assert [forecast.next_need(index) for index in range(4)] == [0, 1, 2, math.inf]


def test_a_use_takes_the_earliest_need_of_its_segment_whatever_stands_before_it():
    forecast = forecast_of([0, 1, 2, 1, 0])
    forecast.used(1)
    assert [forecast.next_need(index) for index in range(4)] == [0, 3, 2, math.inf]
    forecast.used(1)
    forecast.used(1)  # once more than was expected
    assert forecast.next_need(1) == math.inf
    assert list(forecast) == [(0, 0), (2, 2), (4, 0)]


def test_only_two_passes_are_looked_ahead_and_what_is_used_makes_place_for_later_needs():
    taken = []
    forecast = forecast_of((taken.append(n) or n % 3 for n in range(10**9)), num_segments=3)
    assert len(taken) == 6
    forecast.used(0)
    forecast.used(1)
    assert len(taken) == 8
    assert [number for number, _ in forecast] == [2, 3, 4, 5, 6, 7]
