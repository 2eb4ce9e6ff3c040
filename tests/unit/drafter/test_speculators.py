"""The speculators library's layout of config.json."""

import json

import pytest

from dflash_cache.drafter.config import SLIDING, DrafterConfig
from dflash_cache.drafter.speculators import from_speculators, to_speculators
from dflash_cache.errors import ConfigError
from tests.support.drafters import KINDS, drafter_config

CAUSALITIES = [None, True, False]


def written(**changes) -> dict:
    content = drafter_config(**changes).to_json("bfloat16")
    return to_speculators(content, "org/target", ["Qwen3ForCausalLM"])


@pytest.mark.parametrize("is_causal", CAUSALITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_config_survives_the_other_layout(kind, is_causal):
    config = drafter_config(KINDS[kind], is_causal=is_causal)
    content = to_speculators(config.to_json("float32"), None, [])
    assert DrafterConfig.from_json(json.loads(json.dumps(content))) == config


def test_the_keys_are_those_that_the_library_and_vllm_read():
    content = written()
    assert content["speculators_model_type"] == "dflash"
    assert content["draft_vocab_size"] == content["transformer_layer_config"]["vocab_size"] == 64
    assert content["block_size"] == 4
    assert content["mask_token_id"] == 63
    assert content["sample_from_anchor"] is False
    assert content["speculators_config"] == {
        "algorithm": "dflash",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": "org/target", "architectures": ["Qwen3ForCausalLM"]},
    }
    assert content["transformer_layer_config"]["model_type"] == "qwen3"
    assert "dflash_config" not in content
    assert "dflash_config" not in content["transformer_layer_config"]


def test_layers_are_counted_from_the_embeddings_output():
    assert written()["aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert from_speculators(written())["dflash_config"]["target_layer_ids"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "is_causal", "non_causal"),
    [
        ("full", None, True),
        ("full", True, False),
        ("sliding", None, False),
        ("sliding", False, True),
        ("mixed", None, False),
    ],
)
def test_the_flag_is_the_opposite_of_any_layers_causality(kind, is_causal, non_causal):
    content = written(layer_types=KINDS[kind], is_causal=is_causal)
    assert content["sliding_window_non_causal"] is non_causal


def test_a_window_is_never_dropped_silently():
    layers = written(layer_types=KINDS["mixed"])["transformer_layer_config"]
    assert layers["use_sliding_window"] is True
    assert layers["layer_types"] == [SLIDING, "full_attention"]
    assert layers["sliding_window"] == 5


def test_a_file_of_the_library_itself_needs_the_targets_number_of_layers_from_elsewhere():
    content = written()
    del content["num_target_layers"]
    with pytest.raises(ConfigError, match="num_target_layers"):
        DrafterConfig.from_json(content)
    assert DrafterConfig.from_json(content | {"num_target_layers": 4}) == drafter_config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "'eagle3'"),
        ({"draft_vocab_size": 32}, "draft_vocab_size 32 is not the target's 64"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"mask_token_id": None}, "mask_token_id"),
    ],
)
def test_a_drafter_of_another_kind_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        DrafterConfig.from_json(written() | changes)
