"""Write ``docs/reference/python-api.md`` from the signatures and docstrings of the sources."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

PAGE = Path(__file__).parent / "reference" / "python-api.md"
PACKAGE = Path(__file__).parents[1] / "dflash_cache"
API = ("HiddenStateCache", "HiddenSequence", "HiddenStateDataset", "extract", "train")
INTRODUCTION = """\
# Python API

<!-- Written by docs/make_python_reference.py; `make reference` writes it again. -->

What `dflash_cache` exports, with its docstrings. How it is used:
[Use from Python](../how-to/use-from-python.md). Axes in names: T tokens, N sequences, K context
layers, H hidden size. Fields of `ExtractConfig` and `TrainConfig`, both in `dflash_cache.api`, are
the flags of [the commands](commands.md), with `_` in place of `-`.
"""
ERRORS = """\
## Errors

All are in `dflash_cache.errors`. The exit code is that of a command which the error ends.

| error | exit code | what to do |
|---|---|---|"""

Documented = ast.ClassDef | ast.FunctionDef


def render() -> str:
    """The whole page."""
    source, api = _definitions("api.py")
    parts = [INTRODUCTION]
    for name in API:
        parts += _entry(api[name], source)
    source, progress = _definitions("runs/progress.py")
    parts += _entry(progress["Progress"], source)
    return "\n".join([*parts, ERRORS, *_errors(), ""])


def _definitions(path: str) -> tuple[str, dict[str, Documented]]:
    """A module's source, and its classes and functions by name."""
    source = (PACKAGE / path).read_text(encoding="utf-8")
    found = [each for each in ast.parse(source).body if isinstance(each, Documented)]
    return source, {each.name: each for each in found}


def _entry(node: Documented, source: str) -> Iterator[str]:
    """A section; of a class, its fields and what it has that begins with no underscore."""
    yield f"## `{node.name}`\n"
    if isinstance(node, ast.FunctionDef):
        yield _block([_signature(node, source)])
    yield _words(node)
    if isinstance(node, ast.ClassDef):
        lines = source.splitlines()
        fields = [lines[each.lineno - 1].strip() for each in node.body if _is_field(each)]
        if fields:
            yield _block(fields)
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and _is_public(each):
                yield f"### `{node.name}.{each.name}`\n"
                yield _block([_signature(each, source)])
                yield _words(each)


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign)


def _is_public(node: ast.FunctionDef) -> bool:
    special = node.name.startswith("__") and node.name != "__init__"
    return ast.get_docstring(node) is not None and (special or not node.name.startswith("_"))


def _signature(node: ast.FunctionDef, source: str) -> str:
    """As it stands in the source, without ``self``; a property has no brackets."""
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
    text = dedent("\n".join(lines)).removeprefix("def ").removesuffix(":")
    text = re.sub(r"\((\s*)(self|cls)(, |,\s+|(?=\)))", r"(\1", text, count=1)
    is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
    return text.replace("() ->", ":") if is_property else text.replace('"', "")


def _words(node: Documented) -> str:
    return (ast.get_docstring(node) or "").replace("``", "`") + "\n"


def _block(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def _errors() -> Iterator[str]:
    """A row for each class of ``errors.py``, in its order."""
    codes: dict[str, str] = {}
    for name, node in _definitions("errors.py")[1].items():
        assert isinstance(node, ast.ClassDef)
        own = [ast.unparse(each.value) for each in node.body if isinstance(each, ast.Assign)]
        codes[name] = own[0] if own else codes[ast.unparse(node.bases[0])]
        yield f"| `{name}` | {codes[name]} | {_words(node).strip()} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
