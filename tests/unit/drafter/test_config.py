"""The drafter's shape and its config.json."""

import json

import pytest

from dflash_cache.drafter.config import (
    FULL,
    SLIDING,
    DrafterConfig,
    default_target_layer_ids,
)
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import ConfigError
from tests.support.drafters import KINDS, drafter_config

QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}


@pytest.mark.parametrize(
    ("num_layers", "ids"),
    [
        (28, (1, 7, 13, 19, 25)),
        (32, (1, 8, 15, 22, 29)),
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (48, (1, 12, 23, 34, 45)),
        (64, (1, 16, 31, 46, 61)),
    ],
)
def test_the_default_layers_are_those_of_the_published_drafters(num_layers, ids):
    assert default_target_layer_ids(num_layers, 5) == ids


def test_one_context_layer_is_the_middle_one():
    assert default_target_layer_ids(36, 1) == (18,)


def test_a_target_too_shallow_for_the_default_layers_is_refused():
    with pytest.raises(ConfigError, match="name them with --target-layers"):
        default_target_layer_ids(4, 5)


def drafter_of_qwen3_8b():
    return DrafterConfig.for_target(
        QWEN3_8B | {"bos_token_id": 151643, "eos_token_id": 151645},
        vocab_size=151936,
        num_layers=5,
        block_size=16,
        mask_token_id=151669,
        target_layer_ids=default_target_layer_ids(36, 5),
    )


def drafter_of_qwen3_6_27b():
    return DrafterConfig(
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=5,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=248320,
        max_position_embeddings=262144,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        block_size=16,
        mask_token_id=248070,
        target_layer_ids=(1, 16, 31, 46, 61),
        num_target_layers=64,
        layer_types=(SLIDING,) * 4 + (FULL,),
        sliding_window=2048,
    )


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(drafter_of_qwen3_8b(), 1_048_626_432), (drafter_of_qwen3_6_27b(), 1_730_213_120)],
    ids=["qwen3-8b", "qwen3.6-27b"],
)
def test_a_published_drafter_has_its_published_number_of_parameters(config, parameters):
    import torch

    with torch.device("meta"):
        drafter = DFlashDrafter(config)
    assert sum(parameter.numel() for parameter in drafter.parameters()) == parameters
    assert len(drafter.state_dict()) == 58


def test_the_whole_json_of_the_drafter_of_qwen3_8b_is_the_published_one():
    assert drafter_of_qwen3_8b().to_json("bfloat16") == {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "attention_bias": False,
        "attention_dropout": 0.0, "block_size": 16,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        "num_target_layers": 36, "num_hidden_layers": 5, "hidden_size": 4096,
        "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
        "layer_types": ["full_attention"] * 5, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 5, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": None,
        "tie_word_embeddings": False, "bos_token_id": 151643, "eos_token_id": 151645,
        "vocab_size": 151936, "dtype": "bfloat16", "use_cache": True,
        # transformers 5 reads these instead of rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_survives_its_json(kind):
    config = drafter_config(KINDS[kind])
    assert DrafterConfig.from_json(json.loads(json.dumps(config.to_json("bfloat16")))) == config


@pytest.mark.parametrize("kind", KINDS)
def test_the_json_holds_what_the_serving_engines_read(kind):
    content = drafter_config(KINDS[kind]).to_json("bfloat16")
    assert content["architectures"] == ["DFlashDraftModel"]
    assert content["model_type"] == "qwen3"
    assert content["dflash_config"] == {"mask_token_id": 63, "target_layer_ids": [0, 1, 2]}
    assert content["num_target_layers"] == 4
    assert content["rope_theta"] == content["rope_parameters"]["rope_theta"]
    assert len(content["layer_types"]) == content["num_hidden_layers"]
    assert content["use_sliding_window"] == (SLIDING in content["layer_types"])
    assert "partial_rotary_factor" not in content["rope_parameters"]
    assert "auto_map" not in content


def test_rope_of_a_target_with_one_set_for_each_kind_of_layer_is_the_full_layers():
    text = QWEN3_8B | {
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 5e5},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    config = DrafterConfig.for_target(
        text, vocab_size=8, num_layers=1, block_size=4, mask_token_id=7, target_layer_ids=(0,)
    )
    assert config.rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layer_ids": (2, 1)}, "ascend"),
        ({"target_layer_ids": (1, 1)}, "ascend"),
        ({"mask_token_id": 64}, "outside the embedding"),
        ({"layer_types": (FULL,), "num_hidden_layers": 2}, "layer_types"),
        ({"layer_types": (SLIDING, FULL), "sliding_window": None}, "sliding_window"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        drafter_config(**changes)


def test_a_config_that_lacks_a_key_names_it():
    content = drafter_config().to_json("bfloat16")
    del content["num_target_layers"]
    with pytest.raises(ConfigError, match="num_target_layers"):
        DrafterConfig.from_json(content)
