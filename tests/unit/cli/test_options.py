import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dflash_cache.cli.main import app as real_app
from dflash_cache.cli.options import _noting_the_file, with_options
from dflash_cache.cli.output import Output
from dflash_cache.config import (
    BothConfig,
    EvaluateConfig,
    ExportConfig,
    ExtractConfig,
    TrainConfig,
)
from dflash_cache.errors import CacheMismatchError, ConfigError
from dflash_cache.settings import flag_of, options_of

COMMANDS = {
    "extract": ExtractConfig,
    "train": TrainConfig,
    "both": BothConfig,
    "evaluate": EvaluateConfig,
    "export": ExportConfig,
}
EXTRACT = ["--data", "d", "--target", "t", "--cache", "c"]
TRAIN = ["--cache", "c", "--out", "o"]


class Parsed:
    """A command that only notes its configuration."""

    def __init__(self, config_type, preset=None):
        self.config = self.output = None
        self.app = typer.Typer()

        def run(config, output):
            """Note the configuration."""
            self.config, self.output = config, output

        self.app.command()(with_options(config_type, preset)(run))

    def __call__(self, *arguments):
        self.result = CliRunner().invoke(self.app, [str(each) for each in arguments])
        if self.result.exception and not isinstance(self.result.exception, SystemExit):
            raise self.result.exception
        return self.config


@pytest.fixture(autouse=True)
def _wide_plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def help_of(command):
    result = CliRunner().invoke(real_app, [command, "--help"])
    assert result.exit_code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_mentions_every_option_of_the_configuration(command):
    shown = help_of(command)
    for item, _ in options_of(COMMANDS[command]):
        assert re.search(rf"(?<![\w-]){flag_of(item.name)}(?![\w-])", shown), item.name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_what_every_option_means_and_its_unit(command):
    shown = " ".join(help_of(command).replace("│", " ").split())
    for item, _ in options_of(COMMANDS[command]):
        assert " ".join(item.metadata["help"].split()) in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_config_and_json(command):
    shown = help_of(command)
    assert "--config" in shown
    assert "--json" in shown


def test_help_shows_the_defaults():
    shown = help_of("extract")
    assert "[16384]" in shown
    assert "[lz4]" in shown


def test_flags_become_the_configuration():
    config = Parsed(ExtractConfig)(*EXTRACT, "--readers", 7, "--codec", "zstd", "--limit", 5)
    assert config == ExtractConfig(
        data=Path("d"), target="t", cache="c", readers=7, codec="zstd", limit=5
    )


def test_flags_that_are_not_given_leave_the_defaults():
    assert Parsed(TrainConfig)(*TRAIN) == TrainConfig(cache="c", out=Path("o"))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("1,9,17", (1, 9, 17)), ("3", (3,)), (" 1, 2 ,3 ", (1, 2, 3)), ("1,2,", (1, 2)), ("", ())],
)
def test_numbers_are_separated_by_commas(text, layers):
    assert Parsed(ExtractConfig)(*EXTRACT, "--target-layers", text).target_layers == layers


def test_devices_are_separated_by_commas():
    config = Parsed(ExtractConfig)(*EXTRACT, "--devices", "cuda:0, cuda:1,cpu")
    assert config.devices == ("cuda:0", "cuda:1", "cpu")


@pytest.mark.parametrize("text", ["1,x", "1.5", "1 2", "1;2"])
def test_a_list_that_is_not_of_numbers_is_a_usage_error(text):
    parsed = Parsed(ExtractConfig)
    assert parsed(*EXTRACT, "--target-layers", text) is None
    assert parsed.result.exit_code == 2
    assert f"--target-layers {text}: expected numbers, 1,9,17" in parsed.result.output


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], False), (["--trust-remote-code"], True), (["--no-trust-remote-code"], False)],
)
def test_a_switch_has_a_form_for_yes_and_one_for_no(flags, expected):
    assert Parsed(ExtractConfig)(*EXTRACT, *flags).trust_remote_code is expected


@pytest.mark.parametrize(("flags", "expected"), [([], False), (["--json"], True)])
def test_json_is_passed_on(flags, expected):
    parsed = Parsed(TrainConfig)
    parsed(*TRAIN, *flags)
    assert parsed.output.json is expected


def test_how_much_is_said_is_passed_on():
    parsed = Parsed(TrainConfig)
    parsed(*TRAIN)
    assert parsed.output == Output()
    parsed(*TRAIN, "--quiet", "--events", "events.jsonl")
    assert parsed.output == Output(quiet=True, events=Path("events.jsonl"))
    parsed(*TRAIN, "--verbose")
    assert parsed.output == Output(verbose=True)


def test_quiet_and_verbose_exclude_each_other():
    with pytest.raises(ConfigError, match="--quiet and --verbose: give one of them"):
        Parsed(TrainConfig)(*TRAIN, "--quiet", "--verbose")


@pytest.mark.parametrize(
    "flags",
    [
        ["--readers", "many"],
        ["--readers", "1.5"],
        ["--codec", "gzip"],
        ["--dtype", "float16"],
        ["--nonsense"],
        ["--readers"],
        ["extra"],
    ],
)
def test_a_flag_that_cannot_be_read_is_a_usage_error(flags):
    parsed = Parsed(ExtractConfig)
    assert parsed(*EXTRACT, *flags) is None
    assert parsed.result.exit_code == 2


def test_a_missing_setting_is_an_error_that_names_its_flag():
    with pytest.raises(ConfigError, match="--cache is missing: A cache"):
        Parsed(ExtractConfig)("--data", "d", "--target", "t")


@pytest.mark.parametrize("value", ["0", "-3"])
def test_zero_is_a_value_and_not_taken_as_absent(value):
    with pytest.raises(ConfigError, match=f"--limit {value}: must be greater than 0"):
        Parsed(ExtractConfig)(*EXTRACT, "--limit", value)
    assert Parsed(TrainConfig)(*TRAIN, "--seed", "0", "--warmup", "0").warmup == 0.0


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return ["--config", path]

    return write


def test_the_file_wins_over_the_defaults_and_flags_win_over_the_file(toml):
    file = toml('readers = 3\nwriters = 5\nsegment-tokens = 4096\ncodec = "zstd"\n')
    config = Parsed(ExtractConfig)(*EXTRACT, *file, "--writers", 6, "--codec", "crc32c")
    assert (config.readers, config.writers, config.segment_tokens) == (3, 6, 4096)
    assert config.codec == "crc32c"
    assert config.batch_tokens == 8192


@pytest.mark.parametrize("said", ["auto", "512"])
def test_a_number_or_a_word_is_the_same_from_a_flag_and_a_file(said, toml):
    expected = said if said == "auto" else int(said)
    assert Parsed(ExtractConfig)(*EXTRACT, "--batch-tokens", said).batch_tokens == expected
    written = f'"{said}"' if said == "auto" else said
    file = toml(f"batch-tokens = {written}\n")
    assert Parsed(ExtractConfig)(*EXTRACT, *file).batch_tokens == expected


def test_required_settings_may_come_from_the_file(toml):
    config = Parsed(TrainConfig)(*toml('cache = "C"\nout = "O"\n'), "--out", "P")
    assert (config.cache, config.out) == ("C", Path("P"))


def test_a_switch_on_in_the_file_may_be_put_off_by_its_flag(toml):
    file = toml("trust_remote_code = true\n")
    assert Parsed(ExtractConfig)(*EXTRACT, *file).trust_remote_code is True
    config = Parsed(ExtractConfig)(*EXTRACT, *file, "--no-trust-remote-code")
    assert config.trust_remote_code is False


def test_a_list_in_the_file_may_be_replaced_by_a_flag(toml):
    file = toml("target_layers = [1, 2]\n")
    assert Parsed(ExtractConfig)(*EXTRACT, *file).target_layers == (1, 2)
    config = Parsed(ExtractConfig)(*EXTRACT, *file, "--target-layers", "3,4")
    assert config.target_layers == (3, 4)


def test_an_unknown_key_of_the_file_is_an_error_with_the_nearest_name(toml):
    with pytest.raises(ConfigError) as caught:
        Parsed(ExtractConfig)(*EXTRACT, *toml("reader = 3\n"))
    assert "unknown setting 'reader'; did you mean 'readers'?" in str(caught.value)


def test_a_wrong_type_in_the_file_is_an_error_that_names_the_flag(toml):
    with pytest.raises(ConfigError, match="--readers '3': expected "):
        Parsed(ExtractConfig)(*EXTRACT, *toml('readers = "3"\n'))


def test_an_error_about_a_value_of_the_file_names_the_file(toml):
    file = toml("readers = 0\nwriters = 3\n")
    with pytest.raises(ConfigError, match="--readers 0") as caught:
        Parsed(ExtractConfig)(*EXTRACT, *file)
    assert caught.value.__notes__ == [f"readers: as set in {file[1]}"]
    with pytest.raises(ConfigError, match="--readers 0") as caught:
        Parsed(ExtractConfig)(*EXTRACT, *file, "--readers", 0)
    assert not hasattr(caught.value, "__notes__")


def test_an_error_of_the_run_names_the_file_too(toml):
    app, file = typer.Typer(), toml('data = "nowhere"\n')

    def run(config, output):
        """Refuse."""
        raise ConfigError(f"--data {config.data} does not exist")

    app.command()(with_options(ExtractConfig)(run))
    arguments = ["--target", "t", "--cache", "c", *map(str, file)]
    error = CliRunner().invoke(app, arguments).exception
    assert error.__notes__ == [f"data: as set in {file[1]}"]


@pytest.mark.parametrize(
    ("message", "noted"),
    [
        ("--lr 0.5: must be less", "lr"),
        ("--lr: the number has more than 63 bits", "lr"),
        ("these settings are not those that made:\n  lr: 0.5, expected 0.25", "lr"),
        ("--target-layers 1,9: no such layer", "target-layers"),
        ("--data x does not exist", "data"),
        ("--max-disk 2000000000: the cache needs more", "max-disk"),
        ("--drafter b is for a target of 3 layers", "drafter"),
        ("runs is no run: it has no run.json", "out"),
        ("start anew with another --out", None),
        ("with --overlap training needs memory", None),
        ("--out runs2: the cache is there", None),
        ("5 rows of d are left out", None),
    ],
)
def test_the_file_is_named_for_values_that_an_error_is_about(message, noted):
    settings = {
        "lr": 0.5, "out": "runs", "overlap": True, "target_layers": [1, 9], "data": "./x",
        "max_disk": "2GB", "drafter": ["a", "b"], "limit": 5,
    }  # fmt: skip
    error = CacheMismatchError(message)
    with pytest.raises(CacheMismatchError), _noting_the_file(Path("a.toml"), settings):
        raise error
    assert getattr(error, "__notes__", None) == (noted and [f"{noted}: as set in a.toml"])


def test_printed_settings_say_what_stands_for_those_that_are_not_set(toml):
    parsed = Parsed(TrainConfig)
    parsed(*TRAIN, "--holdout", 64, "--print-config")
    lines = parsed.result.output.splitlines()
    assert {"holdout = 64", "# gamma is not set [by block size]", "# tracker is not set"} < {*lines}
    again = parsed(*toml(parsed.result.output))
    assert again == TrainConfig(cache="c", out=Path("o"), holdout=64.0)


def test_a_preset_stands_below_the_file_and_the_flags_and_knows_what_is_set(toml):
    seen = {}

    def preset(given):
        seen.update(given)
        return {"cache": "preset", "out": "preset", "epochs": 2, "batch_size": 3, "anchors": 4}

    parsed = Parsed(TrainConfig, preset)
    config = parsed(*toml('batch_size = 30\nanchors = 40\ncache = "file"\n'), "--anchors", 400)
    assert seen == {"batch_size": 30, "anchors": 400, "cache": "file"}
    assert (config.cache, config.out) == ("file", Path("preset"))
    assert (config.epochs, config.batch_size, config.anchors) == (2, 30, 400)


def test_both_takes_the_flags_of_both_phases():
    config = Parsed(BothConfig)(
        *EXTRACT, "--out", "o", "--readers", 1, "--lr", 0.5, "--overlap", "--evaluate"
    )
    assert config.extract == ExtractConfig(data=Path("d"), target="t", cache="c", readers=1)
    assert config.train == TrainConfig(cache="c", out=Path("o"), lr=0.5)
    assert (config.overlap, config.evaluate) == (True, True)


@pytest.mark.parametrize("config_type", [ExtractConfig, TrainConfig, EvaluateConfig])
def test_every_field_is_a_flag(config_type):
    assert {item.name for item in fields(config_type)} == {
        item.name for item, _ in options_of(config_type)
    }


def test_a_positional_option_is_taken_with_and_without_its_flag():
    parse = Parsed(ExportConfig)
    for arguments in (["run", "--out", "d"], ["--out", "d", "run"], ["--run", "run", "--out", "d"]):
        assert parse(*arguments) == ExportConfig(run=Path("run"), out=Path("d"))
    assert parse("run", "--run", "run", "--out", "d").run == Path("run")


def test_two_values_of_a_positional_option_are_a_usage_error():
    parse = Parsed(ExportConfig)
    parse("run", "--run", "other", "--out", "d")
    assert parse.result.exit_code == 2
    assert "give one of them" in parse.result.output


def test_a_positional_option_that_is_missing_is_named():
    with pytest.raises(ConfigError, match="--run is missing"):
        Parsed(ExportConfig)("--out", "d")


@pytest.mark.parametrize(
    "flags",
    [
        ["--drafter", "a", "--drafter", "b", "--drafter", "c"],
        ["--drafter", "a,b,c"],
        ["--drafter", "a, b", "--drafter", "c"],
    ],
)
def test_values_of_a_list_stand_between_commas_or_after_flags_of_their_own(flags):
    config = Parsed(EvaluateConfig)("--target", "t", "--data", "d", *flags)
    assert config.drafter == (Path("a"), Path("b"), Path("c"))
