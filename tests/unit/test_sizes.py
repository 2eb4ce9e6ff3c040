"""The sizes that keep the program readable."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "dflash_cache").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
MOST_FILE_LINES = 300
MOST_FUNCTION_LINES = 40
MOST_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_in(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below ``node``, nested ones and methods included, by qualified name."""
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{getattr(child, 'name', '')}"
        if isinstance(child, Function):
            yield name, child
        inside = isinstance(child, Function | ast.ClassDef)
        yield from functions_in(child, f"{name}." if inside else prefix)


def all_functions() -> Iterator[tuple[str, Function]]:
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for name, function in functions_in(tree):
            yield f"{file.relative_to(ROOT).as_posix()}:{name}", function


def num_lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def num_parameters(function: Function) -> int:
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(each.arg not in {"self", "cls"} for each in names)


def test_no_file_is_longer_than_300_lines() -> None:
    lengths = {
        file.relative_to(ROOT).as_posix(): len(file.read_text(encoding="utf-8").splitlines())
        for file in FILES
    }
    assert len(lengths) > 50
    assert {file: length for file, length in lengths.items() if length > MOST_FILE_LINES} == {}


def test_no_function_is_longer_than_40_lines() -> None:
    long = {name for name, each in all_functions() if num_lines(each) > MOST_FUNCTION_LINES}
    assert long == set()


def test_no_function_has_more_than_6_parameters() -> None:
    many = {name for name, each in all_functions() if num_parameters(each) > MOST_PARAMETERS}
    assert many == set()
