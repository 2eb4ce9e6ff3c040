"""A drafter on disk."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_cache.drafter.export import export_drafter, load_drafter, load_training
from dflash_cache.errors import ConfigError, DataError
from tests.support.drafters import drafter, drafter_config


def test_weights_and_config_agree_in_dtype_and_names(tmp_path):
    model = drafter(drafter_config())
    export_drafter(model, tmp_path / "export", {"steps": 7})
    weights = load_file(tmp_path / "export" / "model.safetensors")
    assert set(weights) == set(model.state_dict())
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "export" / "config.json").read_text())["dtype"] == "bfloat16"
    assert not any(word in name for name in weights for word in ("_orig_mod", "embed", "lm_head"))
    assert load_training(tmp_path / "export") == {"steps": 7}


def test_a_loaded_drafter_computes_what_the_rounded_weights_say(tmp_path):
    model = drafter(drafter_config())
    export_drafter(model, tmp_path / "export", {})
    loaded = load_drafter(tmp_path / "export")
    for name, weight in model.state_dict().items():
        assert loaded.state_dict()[name].equal(weight.bfloat16().float())


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_missing_and_unexpected_weights_are_named(change, tmp_path):
    export_drafter(drafter(drafter_config()), tmp_path / "export", {})
    weights = load_file(tmp_path / "export" / "model.safetensors")
    if change == "missing":
        del weights["fc.weight"]
    else:
        weights["lm_head.weight"] = torch.zeros(2)
    save_file(weights, tmp_path / "export" / "model.safetensors")
    with pytest.raises(DataError, match=r"fc\.weight|lm_head\.weight"):
        load_drafter(tmp_path / "export")


def test_a_folder_that_is_no_drafter_is_refused_with_where_to_look(tmp_path):
    with pytest.raises(ConfigError, match="RUN/export"):
        load_drafter(tmp_path)


def test_an_export_takes_the_place_of_an_earlier_one_and_of_nothing_else(tmp_path):
    folder = tmp_path / "export"
    export_drafter(drafter(drafter_config()), folder, {"steps": 1})
    export_drafter(drafter(drafter_config()), folder, {"steps": 2})
    assert load_training(folder) == {"steps": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"notes\.txt"):
        export_drafter(drafter(drafter_config()), folder, {})
    assert (folder / "notes.txt").read_text() == "mine"
