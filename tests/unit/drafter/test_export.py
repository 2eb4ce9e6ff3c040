"""A drafter on disk."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_cache.drafter.export import (
    check_export,
    export_drafter,
    load_drafter,
    load_training,
)
from dflash_cache.errors import ConfigError, DataError
from tests.support.drafters import KINDS, drafter, drafter_config

# What vLLM and SGLang read, with H hidden, I intermediate, Q and G the widths of queries and of
# keys, D a head's width, K context layers.
WEIGHTS = {
    "layers.{i}.self_attn.q_proj.weight": "QH",
    "layers.{i}.self_attn.k_proj.weight": "GH",
    "layers.{i}.self_attn.v_proj.weight": "GH",
    "layers.{i}.self_attn.o_proj.weight": "HQ",
    "layers.{i}.self_attn.q_norm.weight": "D",
    "layers.{i}.self_attn.k_norm.weight": "D",
    "layers.{i}.mlp.gate_proj.weight": "IH",
    "layers.{i}.mlp.up_proj.weight": "IH",
    "layers.{i}.mlp.down_proj.weight": "HI",
    "layers.{i}.input_layernorm.weight": "H",
    "layers.{i}.post_attention_layernorm.weight": "H",
}
WHOLE = {"fc.weight": "HF", "hidden_norm.weight": "H", "norm.weight": "H"}
CONFIG_OF_ENGINES = {
    "architectures", "model_type", "attention_bias", "attention_dropout", "block_size",
    "dflash_config", "num_target_layers", "num_hidden_layers", "hidden_size", "intermediate_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "initializer_range",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "tie_word_embeddings", "bos_token_id", "eos_token_id", "vocab_size", "dtype", "use_cache",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["transformers", "speculators"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_shapes_and_dtypes_are_those_that_the_engines_read(kind, layout, dtype, tmp_path):
    config = drafter_config(KINDS[kind], head_dim=20, intermediate_size=48)
    export_drafter(drafter(config), tmp_path / "export", {}, layout=layout, dtype=dtype)
    sizes = {"H": 32, "I": 48, "Q": 4 * 20, "G": 2 * 20, "D": 20, "F": 3 * 32}
    names = WHOLE | {n.format(i=i): axes for n, axes in WEIGHTS.items() for i in range(2)}
    expected = {
        name: (tuple(sizes[axis] for axis in axes), getattr(torch, dtype))
        for name, axes in names.items()
    }
    weights = load_file(tmp_path / "export" / "model.safetensors")
    assert {name: (tuple(w.shape), w.dtype) for name, w in weights.items()} == expected
    content = json.loads((tmp_path / "export" / "config.json").read_text())
    assert content["dtype"] == dtype
    if layout == "transformers":
        assert set(content) == CONFIG_OF_ENGINES
    else:
        others = {"architectures", "block_size", "dflash_config", "num_target_layers"}
        assert set(content["transformer_layer_config"]) == CONFIG_OF_ENGINES - others


def test_a_compiled_drafter_is_exported_under_its_plain_names(tmp_path):
    model = drafter(drafter_config())
    compiled = torch.compile(model, backend="eager")
    assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())
    export_drafter(compiled, tmp_path / "export", {})
    assert set(load_file(tmp_path / "export" / "model.safetensors")) == set(model.state_dict())


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("layout", ["transformers", "speculators"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("fc.weight"), r"missing weights: fc\.weight"),
        (lambda w: w.update(mask_hidden=torch.zeros(2)), "unexpected weights: mask_hidden"),
        (lambda w: w.update({"lm_head.weight": torch.zeros(2)}), r"unexpected weights: lm_head"),
        (
            lambda w: w.update({"norm.weight": torch.zeros(3, dtype=torch.bfloat16)}),
            r"another shape: norm\.weight \[3\], expected \[32\]",
        ),
        (
            lambda w: w.update({"norm.weight": w["norm.weight"].float()}),
            r"another dtype than config\.json's bfloat16: norm\.weight float32",
        ),
    ],
)
def test_the_check_of_an_export_names_what_engines_would_not_report(
    change, message, layout, tmp_path
):
    config = drafter_config()
    export_drafter(drafter(config), tmp_path / "export", {}, layout=layout)
    check_export(tmp_path / "export", config)
    change_weights(tmp_path / "export", change)
    with pytest.raises(DataError, match=message):
        check_export(tmp_path / "export", config)


def test_the_check_of_an_export_finds_a_setting_that_was_written_wrongly(tmp_path):
    config = drafter_config()
    export_drafter(drafter(config), tmp_path / "export", {})
    with pytest.raises(DataError, match="target_layer_ids"):
        check_export(tmp_path / "export", replace(config, target_layer_ids=(1, 2, 3)))


def test_a_file_that_was_cut_is_refused(tmp_path):
    export_drafter(drafter(drafter_config()), tmp_path / "export", {})
    path = tmp_path / "export" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="no whole safetensors file"):
        load_drafter(tmp_path / "export")


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_is_the_same_from_either_layout(kind, tmp_path):
    model = drafter(drafter_config(KINDS[kind]))
    for layout in ("transformers", "speculators"):
        export_drafter(model, tmp_path / layout, {}, layout=layout, dtype="float32")
        loaded = load_drafter(tmp_path / layout)
        assert loaded.config == model.config
        assert all(loaded.state_dict()[n].equal(w) for n, w in model.state_dict().items())


def test_the_targets_weights_in_a_file_of_speculators_are_left_out(tmp_path):
    export_drafter(drafter(drafter_config()), tmp_path / "export", {}, layout="speculators")
    change_weights(
        tmp_path / "export", lambda w: w.update({"embed_tokens.weight": torch.zeros(64, 32)})
    )
    assert "embed_tokens.weight" not in load_drafter(tmp_path / "export").state_dict()


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
