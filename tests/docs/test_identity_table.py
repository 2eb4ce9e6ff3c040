"""The table of identity fields is whole; tests/integration/test_identity.py tries its answers."""

from dflash_cache.cache import CacheSpec, DatasetPart
from tests.support.identity import ALL_FIELDS, COMMANDS, table


def test_every_field_of_the_identity_has_its_row_and_no_other_has() -> None:
    assert set(table()) == ALL_FIELDS


def test_every_row_says_what_the_field_is_and_who_compares_it() -> None:
    for field, cells in table().items():
        assert cells["what it is"], field
        assert {cells[command] for command in COMMANDS} <= {"yes", "no"}, field


def test_no_field_of_a_part_has_the_name_of_one_of_the_cache() -> None:
    assert not set(CacheSpec.__dataclass_fields__) & set(DatasetPart.__dataclass_fields__)
