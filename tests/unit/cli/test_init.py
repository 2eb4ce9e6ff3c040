"""Settings files: those that ``init`` writes, and what ``--print-config`` prints."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from dflash_cache.cli.main import app
from dflash_cache.config import BothConfig, InitConfig, PlanConfig, TrainConfig
from dflash_cache.errors import ConfigError
from dflash_cache.runs.demo import demo_settings
from dflash_cache.runs.init import init, template
from dflash_cache.settings import build, load_toml, to_toml

NAMES = get_args(get_type_hints(InitConfig)["for_"])
TEMPLATES = Path(__file__).parents[3] / "dflash_cache" / "templates"
COMMANDS = typer.main.get_command(app).commands
SMALLEST = {
    "regenerate": ["prompts.jsonl", "--out", "o.jsonl", "--server", "http://localhost:8000/v1"],
    "tokenize": ["chats.jsonl", "--target", "t", "--out", "tokens"],
    "init": ["--for", "demo", "--out", "x.toml"],
    "plan": ["--data", "d", "--target", "t"],
    "extract": ["--data", "d", "--target", "t", "--cache", "c"],
    "train": ["--cache", "c", "--out", "o"],
    "both": [],
    "evaluate": ["--target", "t", "--drafter", "a,b", "--data", "d"],
    "report": ["run", "-o", "page.html"],
    "inspect": ["c"],
    "export": ["run", "--out", "o"],
    "verify": ["--cache", "c"],
    "merge": ["a", "b", "--into", "c"],
}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def below(settings):
    """What ``both`` has below a file of its own."""
    return {} if {"data", "target"} & settings.keys() else demo_settings()


def test_there_is_a_template_for_each_choice():
    assert sorted(path.stem for path in TEMPLATES.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_template_is_one_of_its_command(name, tmp_path):
    out = tmp_path / "my settings.toml"
    report = init(InitConfig(for_=name, out=out))
    program, command, *flags = shlex.split(report["command"])
    assert (program, command, flags) == ("dflash-cache", "both", ["--config", str(out)])
    settings = load_toml(out, BothConfig)
    build(BothConfig, below(settings), settings)
    assert f"#   {report['command']}\n" in out.read_text()


@pytest.mark.parametrize("name", sorted({*NAMES} - {"demo"}))  # which names no data
@pytest.mark.parametrize("command", ["plan", "extract", "train"])
def test_a_template_serves_each_phase_and_the_plan_alone(command, name, tmp_path):
    init(InitConfig(for_=name, out=tmp_path / "x.toml"))
    both, alone = (
        tomllib.loads(invoke(each, "--config", tmp_path / "x.toml", "--print-config").stdout)
        for each in ("both", command)
    )
    shared = both.keys() & alone.keys()
    assert shared
    assert {key: alone[key] for key in shared} == {key: both[key] for key in shared}


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_a_template_that_are_not_in_force_are_valid_too(name, tmp_path):
    text = template(name)
    out = tmp_path / "all.toml"
    out.write_text(re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE))
    settings = load_toml(out, BothConfig)
    assert len(settings) > len(tomllib.loads(text))
    build(BothConfig, below(settings), settings)


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_in_the_head_of_a_template_are_ones_the_program_takes(name, tmp_path):
    lines = [line for line in template(name).splitlines() if line.startswith("#   dflash-cache")]
    assert lines
    for line in lines:
        _, command, *flags = shlex.split(line.lstrip("# "))
        COMMANDS[command].make_context(command, flags)


def test_the_demo_s_template_is_the_demo():
    settings = tomllib.loads(template("demo"))
    expected = demo_settings() | {"overlap": True}
    named = {name.replace("-", "_"): value for name, value in settings.items()}
    assert build(BothConfig, demo_settings(), named) == build(BothConfig, expected)
    assert expected.keys() - named.keys() == {"data", "target"}


def test_a_file_that_exists_is_left_as_it_is(tmp_path):
    out = tmp_path / "x.toml"
    out.write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=re.escape(f"--out {out} exists")):
        init(InitConfig(for_="demo", out=out))
    assert out.read_text() == "seed = 1\n"


def test_init_tells_the_next_command(tmp_path):
    result = invoke("init", "--for", "one-gpu", "--out", tmp_path / "x.toml", "--json")
    assert result.exit_code == 0, result.output
    assert f"dflash-cache both --config {tmp_path / 'x.toml'}" in result.output


def test_an_unknown_choice_is_a_usage_error_that_names_the_others(tmp_path):
    result = invoke("init", "--for", "gpt", "--out", tmp_path / "x.toml")
    assert result.exit_code == 2
    assert "qwen3-8b" in result.output


def test_every_command_has_its_smallest_call_here():
    assert SMALLEST.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", SMALLEST)
def test_print_config_prints_what_gives_the_same_settings_again(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = invoke(command, *SMALLEST[command], "--print-config")
    assert printed.exit_code == 0, printed.output
    (tmp_path / "printed.toml").write_text(printed.stdout)
    again = invoke(command, "--config", "printed.toml", "--print-config")
    assert again.stdout == printed.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["printed.toml"]  # it did nothing else


def test_print_config_has_flags_over_the_file_over_the_defaults(tmp_path):
    (tmp_path / "x.toml").write_text('cache = "c"\nout = "o"\nseed = 1\nlr = 1e-5\n')
    printed = invoke("train", "--config", tmp_path / "x.toml", "--seed", 7, "--print-config")
    settings = tomllib.loads(printed.stdout)
    assert (settings["seed"], settings["lr"], settings["draft-layers"]) == (7, 1e-5, 5)
    assert "# steps is not set" in printed.stdout


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(cache='a"b\\c\n\x7f\u00fc', out=Path("o"), target_layers=(1, 2), lr=1e-30),
        PlanConfig(data=Path("d"), target="t", max_disk=5, devices=("cuda:0", "cpu")),
    ],
)
def test_a_configuration_survives_its_toml(config, tmp_path):
    (tmp_path / "x.toml").write_text(to_toml(config), encoding="utf-8")
    assert build(type(config), load_toml(tmp_path / "x.toml", type(config))) == config


def test_the_shell_gets_a_completion_script(monkeypatch):
    # Whatever shell runs the tests: typer would look for it.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="dflash-cache")
    assert result.exit_code == 0
    assert "_DFLASH_CACHE_COMPLETE" in result.output
