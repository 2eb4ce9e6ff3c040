"""What is packaged is what stands on disk."""

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def test_the_listed_packages_are_the_folders_on_disk() -> None:
    inits = [*(ROOT / "dflash_cache").rglob("__init__.py"), *(ROOT / "cli").rglob("__init__.py")]
    folders = {".".join(init.parent.relative_to(ROOT).parts) for init in inits}
    on_disk = {f"dflash_cache.{name}" if name.startswith("cli") else name for name in folders}
    assert set(SETUPTOOLS["packages"]) == on_disk
    assert SETUPTOOLS["package-dir"] == {"dflash_cache": "dflash_cache", "dflash_cache.cli": "cli"}


def test_every_python_file_of_the_program_lies_in_a_package() -> None:
    files = [*(ROOT / "dflash_cache").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    astray = [str(file) for file in files if not (file.parent / "__init__.py").is_file()]
    assert not astray


def test_every_other_file_of_the_program_is_package_data() -> None:
    packaged = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    on_disk = {
        path
        for path in (ROOT / "dflash_cache").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert on_disk == packaged


@pytest.mark.parametrize("name", ["target/model.safetensors", "target/config.json"])
def test_the_wheel_brings_the_demo_along(name: str) -> None:
    demo = ROOT / "dflash_cache" / "demo"
    patterns = SETUPTOOLS["package-data"]["dflash_cache.demo"]
    assert any((demo / name) in set(demo.glob(pattern)) for pattern in patterns)
    assert any(demo.joinpath("data").glob("*.arrow"))


def test_the_command_is_installed_as_the_program_says() -> None:
    (command,) = entry_points(group="console_scripts", name="dflash-cache")
    assert command.value == PROJECT["project"]["scripts"]["dflash-cache"]
    assert callable(command.load())


def test_every_requirement_is_pinned_for_the_tests_and_the_demo() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(len(pin.specifier) == 1 and str(pin.specifier).startswith("==") for pin in pins)
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        found = [pin for pin in pins if canonicalize_name(pin.name) == name]
        assert found, f"constraints.txt has no pin for {name}"
        for pin in found:
            (exact,) = pin.specifier
            assert requirement.specifier.contains(exact.version, prereleases=True), str(pin)
