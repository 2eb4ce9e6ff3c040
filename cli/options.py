"""Flags from configuration classes: every field of a configuration is an option."""

import errno
import inspect
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from dflash_cache.config import Config
from dflash_cache.errors import ConfigError, DflashCacheError
from dflash_cache.runs.shown import shown_bytes
from dflash_cache.settings import (
    build,
    flag_of,
    key_of,
    kind_and_words,
    load_toml,
    options_of,
    to_toml,
    value_of,
)
from dflash_cache.sizes import ByteCount

from .output import Output

Run = Callable[[Any, Output], None]
_WRITTEN = ("cache", "out", "into")  # settings that name what a command writes


def with_options(
    config_type: type[Config],
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    *,
    whole: type[Config] | None = None,
) -> Callable[[Run], Callable[..., None]]:
    """Make ``run(config, output)`` a command with one flag a field, and those of every command.

    ``preset`` may give settings that stand below the file and the flags, knowing what is set. A
    file of ``whole``, of which ``config_type`` is a part, serves too.
    """

    def decorate(run: Run) -> Callable[..., None]:
        def command(**flags: Any) -> None:
            file, printed = flags.pop("config"), flags.pop("print_config")
            output = _output(flags)
            for name in arguments:
                flags[name] = _one_of(name, flags[name], flags.pop(f"{name}_flag"))
            given = {
                name: value for name, value in flags.items() if value is not None and value != []
            }
            given |= {name: _parse_list(name, given[name], hints[name]) for name in given}
            from_file = load_toml(file, config_type, whole) if file else {}
            below = preset(from_file | given) if preset else {}
            with output.logging(), _noting_the_file(file, from_file, given):
                config = build(config_type, below, from_file, given)
                show = _printing if printed else _noting_free_space(run)
                show(config, output)

        hints = {item.name: hint for item, hint in options_of(config_type)}
        parameters = _parameters(config_type, all_preset=preset is not None)
        arguments = _single_arguments(config_type)
        parameters += [_flag_of_argument(name, hints[name]) for name in arguments]
        parameters += _flags_of_every_command()
        command.__doc__ = run.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


@contextmanager
def _noting_the_file(
    file: Path | None, settings: Mapping[str, Any], given: Collection[str] = ()
) -> Iterator[None]:
    """Add to an error which of the values that it names, of ``settings``, stand in ``file``.

    Those that are ``given`` as flags do not.
    """
    try:
        yield
    except DflashCacheError as error:
        in_force = [name for name in settings if name not in given]
        named = [key_of(name) for name in in_force if _names(str(error), name, settings[name])]
        if named:
            error.add_note(f"{', '.join(named)}: as set in {file}")
        raise


def _names(message: str, name: str, value: Any) -> bool:
    """Whether ``message`` is about that value, and does not only mention the flag."""
    texts = "|".join(map(re.escape, _spellings(value)))
    if isinstance(value, str) and re.match(rf"({texts})[ :]", message):
        return True  # of what stands without a flag
    given = rf"{flag_of(name)}(:| '?({texts})(?!\w))"
    return bool(re.search(rf"{given}|\b{name}: ({texts})(?!\w)", message))


def _spellings(value: Any) -> Iterator[str]:
    """As it stands in a file, and as the settings hold it."""
    if isinstance(value, list):
        yield ",".join(map(str, value))
    for each in value if isinstance(value, list) else [value]:
        yield str(each)
        if isinstance(each, str):
            yield str(Path(each))
            with suppress(ConfigError):
                yield str(ByteCount.parse("", each))


def _printing(config: Any, _output: Output) -> None:
    typer.echo(to_toml(config), nl=False)


def _noting_free_space(run: Run) -> Run:
    """Let an error of a full disk, which may not say which, come with how full those are."""

    def noting(config: Any, output: Output) -> None:
        try:
            run(config, output)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                for flag, folder in _places(config):
                    free = shown_bytes(shutil.disk_usage(folder).free)
                    error.add_note(f"{flag}: {free} free on the disk of {folder}")
            raise

    return noting


def _places(config: Any) -> Iterator[tuple[str, Path]]:
    """Flags of what is written, and the folders in which that is."""
    for item, _ in options_of(type(config)):
        if item.name in _WRITTEN and (place := value_of(config, item.name)) is not None:
            if "://" in str(place):
                yield "TMPDIR", Path(tempfile.gettempdir())
            else:
                parents = (Path(place), *Path(place).absolute().parents)
                yield flag_of(item.name), next(each for each in parents if each.is_dir())


def _output(flags: dict[str, Any]) -> Output:
    """Takes its own out of ``flags``."""
    return Output(**{item.name: flags.pop(item.name) for item in fields(Output)})


FLAGS_OF_EVERY_COMMAND: Mapping[str, tuple[Any, str]] = {  # by name: type and meaning
    "config": (
        Path | None,
        "TOML file of settings, one flat table, named as the flags. Flags win.",
    ),
    "print_config": (bool, "Print the resolved settings as such a file, and do nothing else."),
    "json": (bool, "Print the report as one JSON object, as the last line of standard output."),
    "quiet": (bool, "Show nothing but errors and the report."),
    "verbose": (bool, "Show log lines too."),
    "events": (
        Path | None,
        "A file that gets a snapshot of the progress every 10 s, as JSON lines.",
    ),
}


def _flags_of_every_command() -> list[inspect.Parameter]:
    return [
        _keyword(name, kind, flag_of(name), meaning, False if kind is bool else None)
        for name, (kind, meaning) in FLAGS_OF_EVERY_COMMAND.items()
    ]


def _single_arguments(config_type: type[Config]) -> list[str]:
    """Fields that stand without a flag, but for those that take all that is left."""
    return [
        item.name
        for item, hint in options_of(config_type)
        if item.metadata["argument"] and get_origin(hint) is not tuple
    ]


def _flag_of_argument(name: str, hint: Any) -> inspect.Parameter:
    """The flag that an argument has too, as in a configuration file."""
    kind = Union[hint, None]  # noqa: UP007  a Literal has no |
    parameter = _keyword(name, kind, flag_of(name), f"The same as {name.upper()}.")
    return parameter.replace(name=f"{name}_flag")


def _one_of(name: str, argument: Any, flag: Any) -> Any:
    if argument is not None and flag is not None and argument != flag:
        raise typer.BadParameter(f"{argument} and {flag_of(name)} {flag}: give one of them")
    return flag if argument is None else argument


def _parameters(config_type: type[Config], *, all_preset: bool) -> list[inspect.Parameter]:
    return [
        _parameter(item, hint, required=item.default is MISSING and not all_preset)
        for item, hint in options_of(config_type)
    ]


def _parameter(item: Any, hint: Any, *, required: bool) -> inspect.Parameter:
    kind, words = kind_and_words(hint)
    text = item.metadata["help"]
    if item.default not in (MISSING, None, (), ""):
        text += f" [{item.default}]"
    if required:
        text += " [required]"
    flag = flag_of(item.name)
    if item.metadata["argument"]:
        shown = typer.Argument(help=text, metavar=item.name.upper(), show_default=False)
        several = get_origin(kind) is tuple
        annotation: Any = list[str] | None if several else Union[kind, None]  # noqa: UP007
        return inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[annotation, shown],
        )
    if kind is bool:
        return _keyword(item.name, bool | None, f"{flag}/--no-{flag[2:]}", text)
    if kind is ByteCount or words:
        return _keyword(item.name, str | None, flag, text)
    if get_origin(kind) is tuple:
        return _keyword(
            item.name, list[str] | None, flag, f"{text} Separated by commas, or the flag again."
        )
    if item.metadata["short"]:
        flag += f",{item.metadata['short']}"
    return _keyword(item.name, Union[kind, None], flag, text)  # noqa: UP007  a Literal has no |


def _keyword(
    name: str, annotation: Any, flags: str, text: str, default: Any = None
) -> inspect.Parameter:
    """``flags`` are separated by commas."""
    shown = typer.Option(*flags.split(","), help=text, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, shown],
    )


def _parse_list(name: str, value: Any, hint: Any) -> Any:
    """``1,9,17`` as a tuple, for options that take several values and may be repeated."""
    if get_origin(hint) is not tuple:
        return value
    given = ",".join(value)
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if get_args(hint)[0] is not int:
        return tuple(parts)
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise typer.BadParameter(f"{flag_of(name)} {given}: expected numbers, 1,9,17") from None
