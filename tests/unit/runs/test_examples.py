"""Which prompts become examples."""

import pytest

from dflash_cache.runs.examples import spread


@pytest.mark.parametrize(
    ("names", "count", "places"),
    [
        (["a", "a", "b", "a", "c", "b"], 3, [0, 2, 4]),
        (["a", "a", "b", "a", "c", "b"], 4, [0, 1, 2, 4]),
        (["a", "a", "b"], 9, [0, 1, 2]),
        (["", "", "", ""], 3, [0, 1, 2]),
        (["a", "b"], 0, []),
    ],
)
def test_examples_are_the_first_of_each_category_then_the_second_ones(names, count, places):
    assert spread(names, count) == places
