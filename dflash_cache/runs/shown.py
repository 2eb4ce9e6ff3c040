"""Figures and tokens as people read them."""

from collections.abc import Mapping
from typing import Any

_BYTES_FROM = 1_000_000  # only channels that count bytes hold so much
_SIGNS = {"\n": "↵", "\t": "⇥"}


def shown_bytes(count: int) -> str:
    """``count`` bytes in the unit that a reader expects, such as ``1.25 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count / 1e6:,.1f} MB"


def shown_held(held: float, capacity: int) -> str:
    """What a channel holds: bytes, if it counts those by its capacity, else items."""
    return shown_bytes(int(held)) if capacity >= _BYTES_FROM else f"{held:,}"


def shown_time(seconds: float) -> str:
    """``seconds`` in the unit that a reader expects, such as ``1.5 h``."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def shown_piece(piece: Mapping[str, Any]) -> str:
    """A token of an example in one line: its text, or its bytes, such as ``«e4 bd»``, or ``#id``.

    What has no form of its own is written out: a line break as ↵, other signs as Python does.
    """
    if "text" in piece:
        return "".join(map(_shown_letter, piece["text"]))
    if "bytes" in piece:
        return f"«{bytes.fromhex(piece['bytes']).hex(' ')}»"
    return f"#{piece['id']}"


def _shown_letter(letter: str) -> str:
    if letter.isprintable():
        return letter
    return _SIGNS.get(letter) or letter.encode("unicode_escape").decode()
