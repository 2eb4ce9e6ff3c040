import pytest

from dflash_cache.config import ExtractConfig
from dflash_cache.errors import ConfigError
from dflash_cache.settings import build

PATHS = {"data": "d", "target": "t", "cache": "c"}


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (1000, 1000), ("1000", 1000), ("7B", 7), ("500GB", 500 * 10**9), ("500 gb", 500 * 10**9),
        ("1.5TB", 1_500_000_000_000), ("2KiB", 2048), ("200GiB", 200 << 30), ("3mib", 3 << 20),
    ],
)  # fmt: skip
def test_bytes_are_numbers_or_numbers_with_a_unit(written, count):
    assert build(ExtractConfig, PATHS, {"max_disk": written}).max_disk == count


@pytest.mark.parametrize("written", ["", "GB", "5 apples", "1e9", "-5GB", "1,5GB", True, 2.5])
def test_anything_else_is_refused_by_the_flag_with_an_example(written):
    with pytest.raises(ConfigError, match="--max-disk"):
        build(ExtractConfig, PATHS, {"max_disk": written})


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="--max-disk 0: must be greater than 0"):
        build(ExtractConfig, PATHS, {"max_disk": "0GB"})


def test_a_budget_for_an_object_store_is_refused():
    with pytest.raises(ConfigError, match="s3://bucket/cache is no folder"):
        build(ExtractConfig, PATHS, {"cache": "s3://bucket/cache", "max_disk": "1GB"})
