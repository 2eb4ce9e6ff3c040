"""Numbers of bytes as people write them."""

import re
from typing import Self

from .errors import ConfigError

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_UNITS = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgtp", start=1)
}


class ByteCount(int):
    """A number of bytes; a setting may give it as a number or as text such as ``500GB``."""

    @classmethod
    def parse(cls, flag: str, value: int | str) -> Self:
        """``value`` as bytes; ``ConfigError`` names ``flag``. KB is 1000 bytes, KiB 1024."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        written = _WRITTEN.fullmatch(str(value).strip().lower())
        if written is None or written.group(2) not in _UNITS:
            raise ConfigError(
                f"{flag} {value!r}: expected bytes, such as 500GB, 1.5TB, 200GiB or 1000000"
            )
        count = float(written.group(1)) * _UNITS[written.group(2)]
        if count >= 1 << 63:
            raise ConfigError(f"{flag} {value}: must be below 2**63")
        return cls(count)
