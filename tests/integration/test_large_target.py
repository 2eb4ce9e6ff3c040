"""Qwen3.6-27B at its true shape: everything that is settled before its 54 GB are there."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3_5Config

from dflash_cache.config import ExtractConfig, PlanConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import DataError
from dflash_cache.runs.plan import plan
from dflash_cache.runs.preparation import prepare
from dflash_cache.runs.recipe import with_window
from dflash_cache.target import Target, TargetShape
from tests.support.tiny_targets import random_rows, save_rows

TEXT = {
    "vocab_size": 248320,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
LAYERS = (1, 16, 31, 46, 61)
TOKEN_BYTES = 5 * 5120 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target's folder without weights."""
    folder = tmp_path_factory.mktemp("target")
    config = Qwen3_5Config(text_config=TEXT, tie_word_embeddings=False)
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_rows(tmp_path_factory.mktemp("rows") / "rows", random_rows(num_rows=40))


def test_a_plan_needs_the_configuration_only(folder, data, tmp_path):
    config = PlanConfig(
        data=data, target=str(folder), cache=str(tmp_path), dtype="bfloat16", devices=("cpu",)
    )
    spec = prepare(config).spec
    assert (spec.target_layer_ids, spec.num_target_layers) == (LAYERS, 64)
    assert (spec.hidden_size, spec.vocab_size, spec.token_bytes) == (5120, 248320, TOKEN_BYTES)
    report = plan(config)
    beside = 2 * 248320 * 5120 * 2  # embedding and head, untied
    states = report["bytes_estimated"]["crc32c"] - beside
    assert states == pytest.approx(report["tokens"] * TOKEN_BYTES, rel=0.01)
    assert report["bytes_estimated"]["fp8"] - beside == pytest.approx(states / 2, rel=0.02)


def test_an_extraction_needs_the_weights_and_says_so_before_any_work(folder, data, tmp_path):
    with pytest.raises(DataError, match=r"no \*\.safetensors weights"):
        prepare(ExtractConfig(data=data, target=str(folder), cache=str(tmp_path)))


def test_the_layers_of_the_model_itself_are_found(folder):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    target = Target(model, folder, TargetShape.load(folder, trust_remote_code=False))
    assert target.shape.hybrid
    assert len(target.layers) == 64
    assert target.embedding.shape == target.head.shape == (248320, 5120)


def test_the_drafter_has_the_shape_and_the_parameters_of_the_published_one(folder):
    text = AutoConfig.from_pretrained(folder).get_text_config()
    shape = DrafterConfig.for_target(
        text.to_dict(),
        vocab_size=248320,
        num_layers=5,
        block_size=16,
        mask_token_id=248070,
        target_layer_ids=LAYERS,
    )
    config = with_window(shape, 2048).to_json("bfloat16")
    assert config["layer_types"] == ["sliding_attention"] * 4 + ["full_attention"]
    assert (config["sliding_window"], config["use_sliding_window"]) == (2048, True)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (32, 8)
    assert (config["head_dim"], config["intermediate_size"]) == (128, 17408)
    assert (config["rope_theta"], config["max_position_embeddings"]) == (1e7, 262144)
    assert config["num_target_layers"] == 64
    with torch.device("meta"):
        drafter = DFlashDrafter(shape)
    assert sum(each.numel() for each in drafter.parameters()) == 1_730_213_120
