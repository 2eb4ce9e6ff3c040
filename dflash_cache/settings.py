"""How settings become a configuration: from defaults, a TOML file and flags.

A field's flag is its name with dashes. Values come from the defaults, then a TOML file, then flags.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, field, fields, is_dataclass
from keyword import iskeyword
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ConfigError
from .sizes import ByteCount

C = TypeVar("C")


def option(
    default: Any = MISSING,
    *,
    help: str,  # noqa: A002  the flag's help text
    argument: bool = False,
    short: str | None = None,
) -> Any:
    """A field of a configuration; without ``default`` it is required.

    An ``argument`` stands on the command line without a flag; ``short`` is a flag of one letter.
    """
    return field(default=default, metadata={"help": help, "argument": argument, "short": short})


def require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:  # NaN is not
            raise ConfigError(f"{flag_of(name)} {value}: must be greater than 0")


def require_not_negative(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:  # NaN is not
            raise ConfigError(f"{flag_of(name)} {value}: must be at least 0, and finite")


def require_at_most(config: Any, most: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value > most:
            raise ConfigError(f"{flag_of(name)} {value}: must be at most {most}")


def flag_of(name: str) -> str:
    return "--" + key_of(name)


def key_of(name: str) -> str:
    """A field's name in a TOML file; that of a field which is a word of Python's is ``for_``."""
    return name.rstrip("_").replace("_", "-")


def _name_of_key(key: str) -> str:
    name = key.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def options_of(config_type: type) -> Iterator[tuple[Field[Any], Any]]:
    """Each option once, with its type: those of nested configurations stand among the others."""
    seen = set()
    hints = get_type_hints(config_type)
    for item in fields(config_type):
        nested = is_dataclass(hints[item.name])
        found = options_of(hints[item.name]) if nested else [(item, hints[item.name])]
        for inner, hint in found:
            if inner.name not in seen:
                seen.add(inner.name)
                yield inner, hint


def kind_and_words(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """The type of a hint, None left away, and the words that may stand in its place.

    Of ``int | Literal["auto"]`` these are int and ("auto",).
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kind, *others = (each for each in kinds if each is not NoneType)
    return kind, tuple(word for each in others for word in get_args(each))


def build(config_type: type[C], *layers: Mapping[str, Any]) -> C:
    """Make a configuration from flat ``layers`` of values; a later layer wins.

    ``ConfigError`` names a missing flag, an unknown key (with the nearest name) or a wrong type.
    """
    values = {name: value for layer in layers for name, value in layer.items()}
    known = {item.name: hint for item, hint in options_of(config_type)}
    _require_known(values, known)
    for name, value in values.items():
        _require_usable(name, value)
    coerced = {name: _coerce(name, value, known[name]) for name, value in values.items()}
    return _construct(config_type, coerced)


def _require_usable(name: str, value: Any) -> None:
    """``ConfigError`` for what no system takes as a size or a path."""
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, int) and abs(each) >= 1 << 63:
            raise ConfigError(f"{flag_of(name)}: the number has more than 63 bits")
        if isinstance(each, str | Path) and "\0" in str(each):
            raise ConfigError(f"{flag_of(name)} {str(each)!r}: holds a null character")


def _require_known(names: Iterable[str], known: Iterable[str], where: str = "") -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {key_of(near[0])!r}?" if near else ""
            raise ConfigError(f"{where}unknown setting {key_of(name)!r}{hint}")


def _construct(config_type: type[C], values: Mapping[str, Any]) -> C:
    chosen: dict[str, Any] = {}
    hints = get_type_hints(config_type)
    for item in fields(config_type):  # type: ignore[arg-type]
        if is_dataclass(hints[item.name]):
            chosen[item.name] = _construct(hints[item.name], values)
        elif item.name in values:
            chosen[item.name] = values[item.name]
        elif item.default is MISSING:
            kind, _ = kind_and_words(hints[item.name])
            words = get_args(kind) if get_origin(kind) is Literal else ()
            one_of = f" One of {', '.join(words)}." if words else ""
            raise ConfigError(f"{flag_of(item.name)} is missing: {item.metadata['help']}{one_of}")
    return config_type(**chosen)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """``value`` as ``hint``: TOML has lists for tuples and strings for paths.

    One path may stand for a list of them.
    """
    if value is None and NoneType in get_args(hint):
        return None
    kind, words = kind_and_words(hint)
    if words:
        return _number_or_word(name, value, words)
    origin = get_origin(kind)
    if origin is Literal and value in get_args(kind):
        return value
    if kind == tuple[Path, ...] and isinstance(value, str | Path):
        value = (value,)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(name, each, get_args(kind)[0]) for each in value)
    if kind in (str, Path) and isinstance(value, str | Path):
        return kind(value)
    if kind is ByteCount and isinstance(value, int | str):
        return ByteCount.parse(flag_of(name), value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    expected = " | ".join(map(str, get_args(kind))) if origin is Literal else _name_of(kind)
    raise ConfigError(f"{flag_of(name)} {value!r}: expected {expected}")


def _number_or_word(name: str, value: Any, words: tuple[str, ...]) -> int | str:
    """``value``, which may be written as text, for a hint such as ``int | Literal["auto"]``."""
    if value in words or type(value) is int:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(1 << 63)):
        _require_usable(name, int(value))
        return int(value)
    raise ConfigError(f"{flag_of(name)} {value!r}: expected a number or {' | '.join(words)}")


def _name_of(kind: Any) -> str:
    """``int``, or ``list of int`` for a tuple, as they are written in TOML."""
    if get_origin(kind) is tuple:
        of = get_args(kind)[0].__name__
        example = "[1, 9]" if of == "int" else '["a", "b"]'
        return f"a list of {of}, such as {example}"
    return "true or false" if kind is bool else kind.__name__


def load_toml(path: Path, config_type: type, whole: type | None = None) -> dict[str, Any]:
    """Settings of ``config_type`` from a TOML file, with dashes or underscores in the names.

    The file may be one of ``whole``, of which ``config_type`` is a part: what the part lacks is
    left aside. ``ConfigError`` names a key that neither has.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"--config {path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8 and no TOML are ValueErrors
        raise ConfigError(f"--config {path}: {error}") from error
    settings: dict[str, Any] = {}
    for key, value in content.items():
        if (name := _name_of_key(key)) in settings:
            raise ConfigError(f"--config {path}: {key_of(name)} is there twice, with - and with _")
        settings[name] = value
    known = {item.name for item, _ in options_of(config_type)}
    of_whole = {item.name for item, _ in options_of(whole)} if whole else set()
    _require_known(settings, sorted(known | of_whole), f"--config {path}: ")
    return {name: value for name, value in settings.items() if name in known}


def to_json(config: Any) -> str:
    """The resolved configuration, as it is saved beside what it made."""
    return json.dumps(asdict(config), indent=1, default=str) + "\n"


def to_toml(config: Any) -> str:
    """The resolved configuration as ``load_toml`` reads it; what is not set is a comment."""
    lines = []
    for item, _ in options_of(type(config)):
        value = value_of(config, item.name)
        lines.append(
            f"# {key_of(item.name)} is not set{_meaning_of_none(item)}"
            if value in (None, (), "")
            else f"{key_of(item.name)} = {_toml_value(value)}"
        )
    return "\n".join(lines) + "\n"


def _meaning_of_none(item: Field[Any]) -> str:
    """What takes its place, as the help says at its end: ``[64, at most a tenth].``"""
    found = re.search(r" \[[^]]+\](?=\.$)", item.metadata["help"])
    return found[0] if found else ""


def value_of(config: Any, name: str) -> Any:
    """Of a field of ``config``, or of the first of its parts that has it."""
    if hasattr(config, name) and not is_dataclass(getattr(config, name)):
        return getattr(config, name)
    parts = (getattr(config, item.name) for item in fields(config))
    return next(getattr(part, name) for part in parts if hasattr(part, name))


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value).removesuffix(".0")  # a whole number serves a setting that takes others
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    # A JSON string is a TOML one, but for DEL, which TOML wants to be written as an escape.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
