"""Our export in the speculators library's own loading code (PyPI speculators 0.9.0)."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.drafter.config import SLIDING
from dflash_cache.drafter.export import export_drafter, load_drafter
from tests.support.drafters import HIDDEN, KINDS, VOCAB, drafter, drafter_config

READER = Path(__file__).with_name("speculators_reader.py")
LIBRARY = Path(sys.prefix) / "speculators"

pytestmark = pytest.mark.skipif(
    not LIBRARY.is_dir(), reason="the speculators library is not installed: make test does"
)
TARGETS_OWN = ["embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the library finds in an export of each kind, and the exports' folder."""
    folder = tmp_path_factory.mktemp("exports")
    for name, kinds in KINDS.items():
        target = _save_target(folder / name / "target", tied=name == "mixed")
        training = {"cache": {"target": str(target)}, "target_architectures": ["Qwen3ForCausalLM"]}
        # A window that all of the block below sees, whatever its kind.
        model = drafter(drafter_config(kinds, window=64))
        export_drafter(model, folder / name / "theirs", training, layout="speculators")
        export_drafter(model, folder / name / "ours", training)
        _save_block(folder / name)
    run = subprocess.run(
        [sys.executable, READER, *(folder / name for name in KINDS)],
        env=os.environ | {"PYTHONPATH": str(LIBRARY), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1]), folder


@pytest.fixture(params=KINDS)
def found(request, reports):
    """The kinds of an export's layers, what the library finds in it, its folder."""
    by_name, folder = reports
    return KINDS[request.param], by_name[request.param], folder / request.param


def _save_target(folder: Path, *, tied: bool) -> Path:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=tied,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def _save_block(folder: Path) -> None:
    """One block at position 9 and our hidden states for it, all slots seeing all."""
    model = load_drafter(folder / "ours")
    model.config = replace(model.config, is_causal=False)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 3, HIDDEN, generator=generator)
    embeddings = torch.randn(4, HIDDEN, generator=generator)
    anchor = torch.tensor([9])
    context = model.context(features, torch.arange(9))
    attention = TiledAttention.plan(torch.tensor([0, 10]), anchor, 4, model.visibilities)
    expected = model(embeddings, torch.arange(9, 13), context, attention)
    block = {"features": features, "embeddings": embeddings, "expected": expected}
    torch.save(block, folder / "block.pt")


def test_it_finds_no_weight_missing_unexpected_or_of_another_shape(found):
    _, report, _ = found
    assert report["report"] == {name: [] for name in report["report"]}
    assert {"missing_keys", "unexpected_keys", "mismatched_keys"} <= set(report["report"])
    assert report["equal"]
    assert report["extra"] == [*TARGETS_OWN, "verifier_norm.weight"]


def test_it_takes_embedding_and_head_from_the_target_that_the_export_names(found):
    _, report, _ = found
    assert report["nan"] == []


def test_it_computes_in_the_dtype_that_config_and_weights_agree_on(found):
    _, report, _ = found
    assert report["config"]["dtype"] == "torch.bfloat16"
    assert report["dtypes"] == ["torch.bfloat16"]


def test_it_reads_the_drafters_shape(found):
    kinds, report, _ = found
    assert (report["block_size"], report["mask_token_id"]) == (4, 63)
    assert report["config"]["aux_hidden_state_layer_ids"] == [1, 2, 3]
    sliding = [index for index, kind in enumerate(kinds) if kind == SLIDING]
    assert report["sliding_layers"] == sliding
    assert report["window"] == (64 if sliding else None)


def test_one_block_gives_the_same_hidden_states(found):
    _, report, _ = found
    assert report["block_difference"] <= 1e-5


def test_its_own_conversion_of_the_other_layout_gives_the_same_configuration(found):
    kinds, report, folder = found
    written = json.loads((folder / "theirs" / "config.json").read_text())
    expected = report["converted"]
    for name in (
        "speculators_model_type", "draft_vocab_size", "block_size", "aux_hidden_state_layer_ids",
        "mask_token_id", "sample_from_anchor",
    ):  # fmt: skip
        assert written[name] == expected[name], name
    for name in ("algorithm", "default_proposal_method", "verifier"):
        assert written["speculators_config"][name] == expected["speculators_config"][name], name
    (method,) = written["speculators_config"]["proposal_methods"]
    assert method.items() <= expected["speculators_config"]["proposal_methods"][0].items()
    layers = expected["transformer_layer_config"]
    for name in set(layers) & set(written["transformer_layer_config"]):
        assert written["transformer_layer_config"][name] == layers[name], name
    assert written["sliding_window_non_causal"] == (SLIDING not in kinds)
