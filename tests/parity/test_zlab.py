"""Our export in z-lab's own package (PyPI dflash 0.1.0), the judge of checkpoints and decoding."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_cache import demo
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import TokenRows
from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.drafter.export import export_drafter, load_drafter
from dflash_cache.drafter.generation import Limits, decode
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.drafter.proposer import DrafterProposer
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import train
from dflash_cache.target import LayerCapture, Target, TargetDecoder, stop_token_ids
from tests.support.drafters import KINDS, drafter_config
from tests.support.runs import extract_config, train_config
from tests.support.tiny_targets import save_target

zlab = pytest.importorskip("dflash.model", reason="z-lab's dflash is not installed: make test does")

pytestmark = pytest.mark.filterwarnings(
    "ignore:`past_key_values` is deprecated:FutureWarning",
)
PROMPTS = 12
NEW_TOKENS = 48


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """A drafter trained enough that some drafts are accepted and some are not."""
    folder = tmp_path_factory.mktemp("run")
    extract(extract_config(folder, limit=200))
    config = train_config(folder, anchors=32, block_size=8, batch_size=8, epochs=4, lr=2e-3)
    train(replace(config, holdout=PROMPTS))
    return folder / "run" / "export"


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_loads_with_no_missing_or_unexpected_key(kind, tmp_path):
    ours = DFlashDrafter(drafter_config(KINDS[kind]))
    export_drafter(ours, tmp_path / "export", {})
    theirs, report = zlab.DFlashDraftModel.from_pretrained(
        tmp_path / "export", output_loading_info=True, dtype=torch.float32
    )
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.block_size == 4
    assert theirs.mask_token_id == 63
    assert list(theirs.target_layer_ids) == [0, 1, 2]
    windows = [layer.self_attn.sliding_window for layer in theirs.layers]
    assert windows == [ours.config.layer_visibility(i)[1] for i in range(len(windows))]


@pytest.mark.parametrize("kind", KINDS)
def test_one_block_gives_the_same_hidden_states(kind, tmp_path):
    export_drafter(DFlashDrafter(drafter_config(KINDS[kind])), tmp_path / "export", {})
    ours = load_drafter(tmp_path / "export")
    theirs = zlab.DFlashDraftModel.from_pretrained(tmp_path / "export", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 3, 32, generator=generator)
    block = torch.randn(4, 32, generator=generator)
    anchor = torch.tensor([9])
    with torch.no_grad():
        expected = theirs(
            position_ids=torch.arange(13)[None],
            noise_embedding=block[None],
            target_hidden=features.flatten(1)[None],
        )[0]
        context = ours.context(features, torch.arange(9))
        attention = TiledAttention.plan(torch.tensor([0, 10]), anchor, 4, ours.visibilities)
        found = ours(block, torch.arange(9, 13), context, attention)
    assert (found - expected).abs().max() <= 1e-5


def test_generation_gives_the_same_tokens_and_acceptance_lengths(export, monkeypatch):
    monkeypatch.setattr(zlab, "_cuda_time", lambda: 0.0)  # it synchronizes a CUDA device
    target = Target.load(demo.TARGET, dtype="float32", device="cpu")
    reference = AutoModelForCausalLM.from_pretrained(demo.TARGET, dtype=torch.float32).eval()
    ours = load_drafter(export)
    theirs = zlab.DFlashDraftModel.from_pretrained(export, dtype=torch.float32).eval()
    capture = LayerCapture(target, ours.config.target_layer_ids)
    stops = list(stop_token_ids(demo.TARGET))
    steps = []
    for prompt in _prompts():
        (decoded,) = decode(
            TargetDecoder(capture),
            [prompt],
            proposer=DrafterProposer(ours, target.embedding, target.head),
            limits=Limits(new_tokens=NEW_TOKENS, block_size=ours.config.block_size, stop_ids=stops),
        )
        expected = zlab.dflash_generate(
            theirs,
            copy.copy(reference),
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            stop_token_ids=stops,
            return_stats=True,
        )
        assert decoded.tokens == expected.output_ids[0, len(prompt) :].tolist()
        assert decoded.acceptance_lengths == expected.acceptance_lengths
        steps += expected.acceptance_lengths
    assert max(steps) > 2
    assert min(steps) == 1


def test_of_a_hybrid_target_ours_keeps_the_greedy_text_and_theirs_leaves_it(tmp_path):
    """Their crop leaves what rejected drafts did to the recurrent state."""
    save_target(tmp_path / "target", "qwen3_5")
    config = drafter_config(hidden_size=64, vocab_size=512, target_layer_ids=(1, 4, 6))
    export_drafter(DFlashDrafter.fresh(replace(config, num_target_layers=8), 0), tmp_path / "e", {})
    ours = load_drafter(tmp_path / "e")
    theirs = zlab.DFlashDraftModel.from_pretrained(tmp_path / "e", dtype=torch.float32).eval()
    target = Target.load(tmp_path / "target", dtype="float32", device="cpu")
    capture = LayerCapture(target, ours.config.target_layer_ids)
    left = 0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(0, 500, (20,), generator=generator).tolist()
        proposer = DrafterProposer(ours, target.embedding, target.head)
        limits = Limits(new_tokens=16, block_size=4)
        (plain,) = decode(TargetDecoder(capture), [prompt], proposer=None, limits=limits)
        (decoded,) = decode(TargetDecoder(capture), [prompt], proposer=proposer, limits=limits)
        assert decoded.tokens == plain.tokens
        output = zlab.dflash_generate(
            theirs, target.model, torch.tensor([prompt]), max_new_tokens=16, stop_token_ids=None
        )
        left += output[0, len(prompt) :].tolist() != plain.tokens
    assert left > 0


def test_evaluate_reports_the_pooled_acceptance_length_of_the_same_decoding(export):
    report = evaluate(
        EvaluateConfig(
            target=str(demo.TARGET),
            drafter=(export,),
            data=demo.DATA,
            device="cpu",
            prompts=PROMPTS,
            new_tokens=NEW_TOKENS,
            untrained=True,
        )
    )
    assert report["lossless"] == 1.0
    assert report["prompts"] == PROMPTS
    assert report["untrained"]["acceptance_length"] < report["acceptance_length"]
    assert report["prompt_lookup"]["acceptance_length"] > 1.0


def _prompts() -> list[list[int]]:
    rows = TokenRows.open(demo.DATA)
    sequences = [rows.sequence(row, 64) for row in range(PROMPTS)]
    return [s.input_ids[: int(s.loss_mask.argmax())].tolist() for s in sequences]
