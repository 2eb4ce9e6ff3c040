import pytest

from dflash_cache.runs.rate import Rate


def noted(*points, span_s=10.0):
    rate = Rate(span_s)
    for now_s, count in points:
        rate.note(now_s, count)
    return rate


def test_nothing_is_known_before_a_change():
    rate = noted((0, 5), (1, 5), (2, 5))
    assert rate.per_s(2) == 0
    assert rate.seconds_to(10, 2) is None


def test_the_growth_is_that_of_the_last_seconds():
    slow = [(second, second) for second in range(100)]
    fast = [(100 + second, 100 + 50 * second) for second in range(11)]
    assert noted(*slow, *fast).per_s(110) == pytest.approx(50)


def test_rare_changes_count_from_the_one_before():
    assert noted((0, 0), (60, 1), (120, 2)).per_s(121) == pytest.approx(1 / 60)


def test_a_change_that_is_overdue_lowers_the_rate():
    rate = noted((0, 0), (10, 100))
    assert rate.per_s(11) == pytest.approx(10)
    assert rate.per_s(210) == pytest.approx(0.5)


def test_the_time_left_counts_down_between_changes():
    rate = noted((0, 0), (10, 1), (20, 2))
    assert rate.seconds_to(4, 20) == pytest.approx(20)
    assert rate.seconds_to(4, 25) == pytest.approx(15)
    assert rate.seconds_to(2, 29) == 0


def test_a_count_that_fell_once_has_no_end_that_could_be_told():
    rate = Rate(300)
    for second, count in enumerate([1, 2, 1, 2, 3]):
        rate.note(second, count)
    assert rate.per_s(5) > 0
    assert rate.seconds_to(10, 5) is None


def test_a_count_that_falls_has_no_end():
    assert noted((0, 5), (1, 4)).seconds_to(10, 1) is None
