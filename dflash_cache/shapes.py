"""What the content of a JSON file has to hold for those that read it.

A shape is a type, or types of which it is one; ``OrNull(shape)``; ``[shape]`` for a list of any
length; ``{name: shape}`` for an object that has these names, where ``name?`` may be missing, and
whatever others; ``{ANY: shape}`` for one of any names. Booleans are no numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ANY = "*"
NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class OrNull:
    shape: Any


def misfit(value: Any, shape: Any, where: str = "it") -> str | None:
    """What of ``value`` is not as ``shape`` says, in words; None if all is."""
    return next(_misfits(value, shape, where), None)


def _misfits(value: Any, shape: Any, where: str) -> Iterator[str]:
    if isinstance(shape, OrNull):
        if value is not None:
            yield from _misfits(value, shape.shape, where)
    elif isinstance(shape, Mapping):
        yield from _misfits_in_object(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, each in enumerate(value):
            yield from _misfits(each, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield f"{where} is {str(value)[:40]!r}"


def _misfits_in_object(value: Any, shape: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    for key, inner in shape.items():
        name = key.removesuffix("?")
        for each in value if key == ANY else [name]:
            if each in value:
                yield from _misfits(value[each], inner, f"{where}.{each}")
            elif name == key:
                yield f"{where} has no {name}"
