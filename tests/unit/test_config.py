import json
import os
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from dflash_cache.config import BothConfig, EvaluateConfig, ExtractConfig, TrainConfig
from dflash_cache.errors import ConfigError
from dflash_cache.settings import build, flag_of, load_toml, options_of, to_json

EXTRACT = {"data": "d", "target": "t", "cache": "c"}
TRAIN = {"cache": "c", "out": "o"}
EVALUATE = {"target": "t", "drafter": "r", "data": "d"}
CONFIGS = (ExtractConfig, TrainConfig, EvaluateConfig, BothConfig)


def extract(**settings):
    return build(ExtractConfig, EXTRACT, settings)


def train(**settings):
    return build(TrainConfig, TRAIN, settings)


def message_of(make, **settings):
    with pytest.raises(ConfigError) as caught:
        make(**settings)
    return str(caught.value)


def test_defaults_stand_where_nothing_is_said():
    config = extract()
    assert (config.data, config.target, config.cache) == (Path("d"), "t", "c")
    assert (config.codec, config.segment_tokens, config.devices) == ("lz4", 16384, ())
    assert config.limit is None


def test_a_later_layer_wins_over_an_earlier_one_and_both_over_the_defaults():
    config = build(
        ExtractConfig,
        {**EXTRACT, "readers": 3, "writers": 5, "codec": "zstd"},
        {"writers": 6, "codec": "crc32c"},
        {"codec": "lz4"},
    )
    assert (config.readers, config.writers, config.codec) == (3, 6, "lz4")
    assert config.batch_tokens == 8192


def test_a_later_layer_may_take_a_setting_back():
    assert build(ExtractConfig, {**EXTRACT, "limit": 5}, {"limit": None}).limit is None


@pytest.mark.parametrize("name", ["data", "target", "cache"])
def test_a_missing_setting_is_named_by_its_flag_with_its_meaning(name):
    given = {key: value for key, value in EXTRACT.items() if key != name}
    with pytest.raises(ConfigError) as caught:
        build(ExtractConfig, given)
    help_text = next(item.metadata["help"] for item in fields(ExtractConfig) if item.name == name)
    assert str(caught.value) == f"--{name} is missing: {help_text}"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("segment_token", "segment-tokens"), ("reader", "readers"), ("target_layer", "target-layers")],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_name(wrong, near):
    message = message_of(extract, **{wrong: 1})
    assert message == f"unknown setting {wrong.replace('_', '-')!r}; did you mean {near!r}?"


def test_an_unknown_setting_like_no_other_is_an_error_without_a_guess():
    assert message_of(extract, xyzzy=1) == "unknown setting 'xyzzy'"


def test_a_setting_of_another_command_is_unknown():
    assert message_of(extract, block_size=8).startswith("unknown setting 'block-size'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_tokens", "4096"),
        ("segment_tokens", 4096.0),
        ("segment_tokens", True),
        ("segment_tokens", None),
        ("limit", "5"),
        ("data", 3),
        ("target", 3),
        ("trust_remote_code", 1),
        ("trust_remote_code", "yes"),
        ("devices", "cpu"),
        ("devices", [0]),
        ("target_layers", ["1"]),
        ("target_layers", [1.0]),
        ("dtype", "float16"),
        ("batch_tokens", "many"),
        ("batch_tokens", 4096.0),
        ("batch_tokens", True),
        ("batch_tokens", None),
        ("codec", "gzip"),
        ("codec", None),
    ],
)
def test_a_wrong_type_or_choice_is_an_error_that_names_flag_and_value(name, value):
    message = message_of(extract, **{name: value})
    shown = value[0] if isinstance(value, list) else value
    assert message.startswith(f"{flag_of(name)} {shown!r}: expected ")
    assert "<class" not in message


def test_a_wrong_choice_is_answered_with_the_choices():
    assert message_of(extract, codec="gzip") == "--codec 'gzip': expected crc32c | lz4 | zstd | fp8"


def test_values_from_a_file_become_the_types_of_the_settings():
    config = extract(devices=["cuda:0", "cuda:1"], target_layers=[1, 9, 17], data="rows")
    assert config.devices == ("cuda:0", "cuda:1")
    assert config.target_layers == (1, 9, 17)
    assert config.data == Path("rows")
    assert train(lr=1).lr == 1.0
    assert isinstance(train(holdout=64).holdout, float)


POSITIVE = [
    (make, name)
    for make, names in (
        (extract, "segment_tokens batch_tokens readers writers limit max_seq_len"),
        (
            train,
            "draft_layers anchors batch_size grad_accum epochs steps lr clip_norm save_every keep",
        ),
        (train, "log_every prefetch_readers prefetch_bytes gamma"),
        (lambda **given: build(EvaluateConfig, EVALUATE, given), "prompts new_tokens batch_size"),
    )
    for name in names.split()
]


@pytest.mark.parametrize(("make", "name"), POSITIVE, ids=[name for _, name in POSITIVE])
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_that_must_be_positive_is_refused_otherwise(make, name, value):
    shown = float(value) if name in ("lr", "clip_norm", "gamma") else value
    assert message_of(make, **{name: value}) == f"{flag_of(name)} {shown}: must be greater than 0"


@pytest.mark.parametrize(("make", "name"), POSITIVE, ids=[name for _, name in POSITIVE])
def test_one_is_positive(make, name):
    assert getattr(make(**{name: 1}), name) == 1


@pytest.mark.parametrize("name", ["lr", "clip_norm", "warmup", "holdout", "gamma", "weight_decay"])
def test_a_number_that_is_none_is_refused(name):
    assert message_of(train, **{name: float("nan")}).startswith(f"{flag_of(name)} nan: ")


@pytest.mark.parametrize("value", [1, 0, -3])
def test_a_block_has_room_for_an_anchor_and_a_token(value):
    message = message_of(train, block_size=value)
    assert message == f"--block-size {value}: at least 2, an anchor and a token"
    assert train(block_size=2).block_size == 2


@pytest.mark.parametrize("value", [-0.1, 1.0, 4.0])
def test_warmup_is_a_share_of_the_steps(value):
    message = message_of(train, warmup=value)
    assert message == f"--warmup {value}: a share of the steps, from 0 to below 1"
    assert train(warmup=0).warmup == 0.0


@pytest.mark.parametrize("value", [-1.0, -0.1, 1.5, 64.25])
def test_a_holdout_is_a_share_or_a_number_of_rows(value):
    message = message_of(train, holdout=value)
    assert message == f"--holdout {value}: a share below 1 or a number of rows"


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0, 64.0])
def test_shares_and_numbers_of_rows_are_good_holdouts(value):
    assert train(holdout=value).holdout == value


@pytest.mark.parametrize(("make", "name"), [(extract, "plan_seed"), (train, "seed")])
def test_a_negative_seed_is_refused_before_any_work(make, name):
    assert message_of(make, **{name: -1}).startswith(f"{flag_of(name)} -1: ")


def test_both_takes_the_settings_of_both_phases_in_one_layer():
    config = build(BothConfig, {**EXTRACT, **TRAIN, "readers": 1, "lr": 0.1, "overlap": True})
    assert config.extract == extract(readers=1)
    assert config.train == train(lr=0.1)
    assert config.overlap is True


@pytest.mark.parametrize("config_type", CONFIGS)
def test_every_option_is_listed_once_and_has_a_meaning(config_type):
    found = [item for item, _ in options_of(config_type)]
    names = [item.name for item in found]
    assert len(set(names)) == len(names)
    assert all(len(item.metadata["help"]) > 5 for item in found)


def test_the_options_of_both_are_those_of_its_parts_and_its_own():
    names = {item.name for item, _ in options_of(BothConfig)}
    parts = {item.name for part in (ExtractConfig, TrainConfig) for item in fields(part)}
    assert names == parts | {"overlap", "evaluate"}


def test_a_configuration_cannot_be_changed():
    config = extract()
    with pytest.raises(FrozenInstanceError):
        config.readers = 3


def test_a_toml_file_has_names_with_dashes_or_underscores(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text('segment-tokens = 4096\nbatch_tokens = 512\ndevices = ["cpu"]\n')
    assert load_toml(path, ExtractConfig) == {
        "segment_tokens": 4096,
        "batch_tokens": 512,
        "devices": ["cpu"],
    }


def test_a_toml_file_that_does_not_exist_is_an_error(tmp_path):
    path = tmp_path / "none.toml"
    assert message_of(lambda: load_toml(path, ExtractConfig)) == f"--config {path} does not exist"


@pytest.mark.parametrize("content", [b"readers = \n", b"readers 3\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_toml_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "f.toml"
    path.write_bytes(content)
    assert message_of(lambda: load_toml(path, ExtractConfig)).startswith(f"--config {path}: ")


def test_a_folder_given_as_a_toml_file_is_an_error(tmp_path):
    assert message_of(lambda: load_toml(tmp_path, ExtractConfig)).startswith(f"--config {tmp_path}")


def test_a_saved_configuration_gives_the_same_one_again():
    config = extract(devices=["cpu"], target_layers=[1, 2], limit=7)
    assert build(ExtractConfig, json.loads(to_json(config))) == config
    assert to_json(config).endswith("}\n")


def test_a_setting_of_another_command_is_named_with_its_file(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text("segment-tokens = 4096\nlr = 0.1\n")
    message = message_of(lambda: load_toml(path, ExtractConfig))
    assert message.startswith(f"--config {path}: unknown setting 'lr'")


def test_a_file_of_both_phases_serves_one_of_them_and_its_unknown_keys_are_named(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text("segment-tokens = 4096\nlr = 0.1\noverlap = true\n")
    assert load_toml(path, ExtractConfig, BothConfig) == {"segment_tokens": 4096}
    assert load_toml(path, TrainConfig, BothConfig) == {"lr": 0.1}
    path.write_text("warmpu = 0.04\n")
    message = message_of(lambda: load_toml(path, ExtractConfig, BothConfig))
    assert message == f"--config {path}: unknown setting 'warmpu'; did you mean 'warmup'?"


@pytest.mark.parametrize("given", ["run", Path("run"), ["run"]])
def test_one_drafter_needs_no_list(given):
    config = build(EvaluateConfig, EVALUATE, {"drafter": given})
    assert config.drafter == (Path("run"),)


@pytest.mark.parametrize("given", [[], ["a", "b", "a"]])
def test_drafters_are_named_each_once(given):
    with pytest.raises(ConfigError, match=r"--drafter .*: name at least one folder, each once"):
        build(EvaluateConfig, EVALUATE, {"drafter": given})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 10**400}, "--steps: the number has more than 63 bits"),
        ({"lr": 10**400}, "--lr: the number has more than 63 bits"),
        ({"prefetch_bytes": 10**400}, "--prefetch-bytes: the number has more than 63 bits"),
        ({"prefetch_bytes": "9" * 400 + "GB"}, "must be below 2**63"),
        ({"out": "a\0b"}, "--out 'a\\x00b': holds a null character"),
        ({"weight_decay": float("inf")}, "--weight-decay inf: must be at least 0, and finite"),
        ({"prefetch_readers": 99_999_999}, "--prefetch-readers 99999999: must be at most 1024"),
    ],
)
def test_what_no_machine_can_take_is_refused(settings, message):
    assert message in message_of(train, **settings)


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 5000])
def test_toml_that_cannot_be_read_names_the_file(text, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert message_of(lambda: load_toml(path, TrainConfig)).startswith(f"--config {path}: ")


def test_a_setting_that_a_file_gives_twice_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("batch_size = 4\ndraft-layers = 2\ndraft_layers = 1\n")
    message = message_of(lambda: load_toml(path, TrainConfig))
    assert message == f"--config {path}: draft-layers is there twice, with - and with _"


def test_a_byte_order_mark_is_no_part_of_a_file_of_settings(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("lr = 0.5\n", encoding="utf-8-sig")
    assert load_toml(path, TrainConfig) == {"lr": 0.5}


@pytest.mark.parametrize("given", [-0.1, float("nan"), float("inf")])
def test_a_temperature_is_0_or_more(given):
    with pytest.raises(ConfigError, match=r"--temperature .*: must be at least 0"):
        build(EvaluateConfig, EVALUATE, {"temperature": given})


@pytest.mark.parametrize("place", ["file", "file/below/it"])
def test_a_folder_that_the_compiler_cannot_make_is_named_if_it_is_to_compile(
    place, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / place))
    assert message_of(extract, compile=True) == (
        f"--compile: TORCHINDUCTOR_CACHE_DIR is {tmp_path / place}, and {tmp_path / 'file'} is no "
        "folder; name another folder there, or unset it"
    )
    assert not extract(compile=False).compile


def test_a_folder_that_the_compiler_may_not_write_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert extract(compile=True).compile
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)  # root may do all
    assert f"and {tmp_path} cannot be written to" in message_of(extract, compile=True)
    assert list(tmp_path.iterdir()) == []
