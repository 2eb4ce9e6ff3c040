"""Which prompts are decoded, and which pairs of target and drafter are refused."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from dflash_cache import demo
from dflash_cache.config import BothConfig, EvaluateConfig
from dflash_cache.data import TokenPieces, TokenRows
from dflash_cache.drafter.export import load_training
from dflash_cache.drafter.generation import Limits, decode
from dflash_cache.drafter.lookup import PromptLookup
from dflash_cache.errors import CacheMismatchError, ConfigError
from dflash_cache.runs.bench import Bench, Way
from dflash_cache.runs.both import both
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.evaluated import evaluation_file
from dflash_cache.runs.examples import MOST_BLOCKS, Examples
from dflash_cache.runs.extract import extract
from dflash_cache.runs.prompts import DrafterFolder, Prompts, choose_prompts
from dflash_cache.runs.train import train
from dflash_cache.target import LayerCapture, Target, TargetDecoder, stop_token_ids
from tests.support.runs import extract_config, train_config
from tests.support.tiny_targets import save_rows, save_target


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    extract(extract_config(folder))
    train(train_config(folder, steps=2))
    return folder / "run" / "export"


def config(export, **changes) -> EvaluateConfig:
    settings = {
        "target": str(demo.TARGET),
        "drafter": (export,),
        "data": demo.DATA,
        "device": "cpu",
    }
    return EvaluateConfig(**settings | changes)


def prompts(export, **changes):
    settings = config(export, **changes)
    chosen = choose_prompts(settings, [DrafterFolder.load(export)])
    assert chosen.held_out == (settings.data == demo.DATA)
    return chosen.token_ids


def prompt_of(rows: TokenRows, row: int) -> list[int]:
    sequence = rows.sequence(row, 400)
    return sequence.input_ids[: int(sequence.loss_mask.argmax())].tolist()


def test_of_the_training_data_only_held_out_rows_are_decoded(export):
    rows = TokenRows.open(demo.DATA)
    held_out = load_training(export)["held_out_rows"]
    assert len(held_out) == 6
    assert prompts(export) == [prompt_of(rows, row) for row in held_out]


def test_of_other_data_the_first_rows_are_decoded(export, tmp_path):
    import datasets

    other = datasets.load_from_disk(str(demo.DATA)).select(range(1000, 1010))
    other.save_to_disk(tmp_path / "other")
    rows = TokenRows.open(tmp_path / "other")
    assert prompts(export, data=tmp_path / "other", prompts=4) == [
        prompt_of(rows, row) for row in range(4)
    ]


def test_of_a_part_of_the_training_data_only_held_out_rows_are_decoded(export, tmp_path):
    import datasets

    rows = TokenRows.open(demo.DATA)
    held_out = load_training(export)["held_out_rows"]
    taken = sorted({*held_out[1:4], 0, 1, 2, 3, 1000})
    order = [*reversed(taken)]
    datasets.load_from_disk(str(demo.DATA)).select(order).save_to_disk(tmp_path / "part")
    settings = config(export, data=tmp_path / "part")
    chosen = choose_prompts(settings, [DrafterFolder.load(export)])
    assert chosen.held_out is True
    expected = [prompt_of(rows, row) for row in order if row in held_out]
    assert len(expected) >= 3
    assert chosen.token_ids == expected


def test_a_drafter_of_others_is_evaluated_on_any_row(export, tmp_path):
    shutil.copytree(export, tmp_path / "drafter")
    (tmp_path / "drafter" / "training.json").unlink()
    report = evaluate(config(tmp_path / "drafter", prompts=2, new_tokens=5))
    assert report["prompts"] == 2
    assert report["lossless"] == 1.0
    assert report["tokens"] <= 10


def test_no_held_out_row_is_an_error_that_says_so(export, tmp_path):
    shutil.copytree(export, tmp_path / "drafter")
    path = tmp_path / "drafter" / "training.json"
    training = json.loads(path.read_text()) | {"held_out_rows": []}
    path.write_text(json.dumps(training))
    with pytest.raises(ConfigError, match="no held-out row"):
        evaluate(config(tmp_path / "drafter"))


def test_another_target_of_other_shape_is_refused_with_both_shapes(export, tmp_path):
    save_target(tmp_path)
    with pytest.raises(CacheMismatchError, match=r"8 layers and hidden size 256; .* has 8 and 64"):
        evaluate(config(export, target=str(tmp_path)))


def test_another_target_of_the_same_shape_is_refused_by_its_weights(export, tmp_path):
    shutil.copytree(demo.TARGET, tmp_path / "target")
    path = tmp_path / "target" / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.5.mlp.up_proj.weight"] *= 1.01
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(CacheMismatchError, match="target_weights_hash"):
        evaluate(config(export, target=str(tmp_path / "target")))


def test_more_new_tokens_than_the_target_has_positions_are_refused(export):
    with pytest.raises(ConfigError, match="only 512 positions"):
        evaluate(config(export, new_tokens=600))


def test_a_batch_size_changes_no_figure_but_the_times(export):
    def figures(batch_size):
        report = evaluate(config(export, prompts=3, new_tokens=8, batch_size=batch_size))
        for each in (report, report["prompt_lookup"]):
            del each["speedup"]
        return report

    assert figures(2) == figures(1)  # three prompts: a whole batch and a part of one


def test_categories_are_reported_apart_and_add_up(export, tmp_path):
    import datasets

    names = ["code", "prose", "code", None, "prose", "code"]
    rows = datasets.load_from_disk(str(demo.DATA)).select(range(1000, 1006))
    rows.add_column("category", names).save_to_disk(tmp_path / "rows")
    report = evaluate(config(export, data=tmp_path / "rows", new_tokens=6))
    found = report["by_category"]
    assert {name: each["prompts"] for name, each in found.items()} == {
        "code": 3,
        "prose": 2,
        "(none)": 1,
    }
    assert sum(each["tokens"] for each in found.values()) == report["tokens"]
    assert all(each["acceptance_length"] >= 1 for each in found.values())


def test_several_drafters_are_compared_on_prompts_that_none_was_trained_on(export, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(export, other)
    training = json.loads((other / "training.json").read_text())
    training["held_out_rows"] = training["held_out_rows"][2:]
    (other / "training.json").write_text(json.dumps(training))
    report = evaluate(config(export, drafter=(export, other), new_tokens=6))
    ours, theirs = (report["drafters"].pop(str(folder)) for folder in (export, other))
    assert report["drafters"] == {}
    assert ours["acceptance_length"] == theirs["acceptance_length"] > 0
    assert ours["tokens"] == theirs["tokens"]
    assert (report["prompts"], report["held_out"]) == (4, True)
    alone = evaluate(config(other, new_tokens=6))
    assert alone["acceptance_length"] == theirs["acceptance_length"]
    assert (
        alone["prompt_lookup"]["acceptance_length"]
        == (report["prompt_lookup"]["acceptance_length"])
    )


def test_sampling_depends_on_the_seed_and_has_no_lossless_share(export):
    def sampled(**changes):
        return evaluate(config(export, new_tokens=12, prompts=2, temperature=1.0, **changes))

    first, again, other = sampled(), sampled(batch_size=2), sampled(seed=1)
    assert first["lossless"] is None
    assert "mismatches" not in first
    assert first["acceptance_length"] == again["acceptance_length"]
    assert (
        first["prompt_lookup"]["acceptance_length"] != other["prompt_lookup"]["acceptance_length"]
    )


def test_the_report_is_saved_with_its_resolved_settings(export, tmp_path):
    report = evaluate(config(export, prompts=1, new_tokens=3))
    saved = json.loads((export.parent / "evaluation.json").read_text())
    assert saved["report"] == report
    assert saved["config"]["dtype"] == "float32"
    assert saved["config"]["drafter"] == [str(export)]
    report = evaluate(config(export, prompts=1, new_tokens=3, out=tmp_path / "file.json"))
    assert json.loads((tmp_path / "file.json").read_text())["report"] == report
    with pytest.raises(ConfigError, match=r"is no folder that can be written to"):
        evaluate(config(export, out=tmp_path / "absent" / "file.json"))


def written(example) -> list[dict]:
    """The tokens that an example says were written, in their order."""
    tokens = [example["first_token"]]
    for block in example["blocks"]:
        tokens += block["drafts"][: block["accepted"]]
        tokens += [block["target_token"]] if block["target_token"] else []
    return tokens


def test_of_the_examples_accepted_drafts_and_the_targets_tokens_are_the_text_it_writes(export):
    report = evaluate(config(export, prompts=2, new_tokens=10, examples=1))
    chosen = prompts(export, prompts=2)
    (example,) = report["examples"]
    capture = LayerCapture(Target.load(demo.TARGET, dtype="float32", device="cpu"), (1,))
    tokenizer = AutoTokenizer.from_pretrained(demo.TARGET)
    limits = Limits(new_tokens=40, block_size=8, stop_ids=stop_token_ids(demo.TARGET))

    def decoded(proposer):
        (found,) = decode(TargetDecoder(capture), chosen[:1], proposer=proposer, limits=limits)
        return found

    own = decoded(None).tokens
    found = written(example)
    assert [each["id"] for each in found] == own[: len(found)]
    assert len(found) == 10 or len(example["blocks"]) == MOST_BLOCKS < example["num_blocks"]
    assert "".join(each["text"] for each in found) == tokenizer.decode(own[: len(found)])
    ends = [each["id"] for each in example["prompt_end"]]
    assert ends == chosen[0][-len(ends) :] != []
    assert len(json.dumps(example)) < 8000
    # Two steps teach a drafter nothing; prompt lookup has both kinds of drafts.
    shown = Prompts(token_ids=chosen[:1], held_out=True, categories=["code"])
    (example,) = Examples(shown, 3, TokenPieces(None)).of([decoded(PromptLookup())])
    assert example["category"] == "code"
    found = written(example)
    assert found == [{"id": token} for token in own[: len(found)]]
    blocks = example["blocks"]
    assert any(block["accepted"] for block in blocks)
    rejected = [block for block in blocks if block["accepted"] < len(block["drafts"])]
    assert rejected
    for block in rejected:
        assert block["drafts"][block["accepted"]] != block["target_token"]


def test_a_mismatch_is_reported_with_its_place_and_the_targets_gap_there(export):
    target = Target.load(demo.TARGET, dtype="float32", device="cpu")
    plain, other = (Way(LayerCapture(target, (1,))) for _ in range(2))
    prompt = [5, 6, 7]
    bench = Bench(
        config(export, new_tokens=8),
        Prompts(token_ids=[prompt, prompt], held_out=False, categories=[]),
        [plain, other],
    )
    bench.run(lambda progress: None)
    tokens = plain.decoded[1].tokens
    spoilt = [*tokens[:4], tokens[4] + 1, *tokens[5:]]
    other.decoded[1] = replace(other.decoded[1], tokens=spoilt)
    figures = bench.figures(other, plain)
    assert figures["lossless"] == 0.5
    ((found,),) = [figures["mismatches"]]
    assert (found["prompt"], found["position"]) == (1, 4)
    with torch.no_grad():
        whole = torch.tensor([[*prompt, *tokens[:4]]])
        first, second = target.model(input_ids=whole).logits[0, -1].topk(2).values.tolist()
    assert found["gap"] == pytest.approx(first - second, abs=1e-4)


def test_a_hybrid_target_is_trained_for_and_decoded_without_loss(tmp_path):
    save_target(tmp_path / "target", "qwen3_5")
    data = save_rows(tmp_path / "data")
    shared = {"data": data, "target": str(tmp_path / "target"), "limit": 20}
    report = both(
        BothConfig(
            extract=extract_config(tmp_path, **shared),
            train=train_config(tmp_path, steps=1, holdout=1, mask_token_id=511),
            evaluate=True,
        )
    )["evaluate"]
    assert report["lossless"] == 1.0
    assert report["held_out"] is True
    assert (tmp_path / "run" / "evaluation.json").is_file()
    several = config(tmp_path / "run" / "export", target=shared["target"], data=data, batch_size=2)
    with pytest.raises(ConfigError, match=r"--batch-size 2: .* linear-attention"):
        evaluate(several)


def test_a_report_is_no_devices(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    config = EvaluateConfig(target="t", drafter=(tmp_path,), data=tmp_path, out=tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a device or a pipe; name a file"):
        evaluation_file(config)


def test_one_drafter_by_two_names_is_one(tmp_path):
    twice = (tmp_path, tmp_path / "." / ".." / tmp_path.name)
    with pytest.raises(ConfigError, match="each once"):
        EvaluateConfig(target="t", drafter=twice, data=tmp_path)


def test_a_report_never_takes_the_place_of_another_file(tmp_path):
    mine = tmp_path / "run.json"
    mine.write_text('{"cache": {}}')
    config = EvaluateConfig(target="t", drafter=(tmp_path,), data=tmp_path, out=mine)
    with pytest.raises(ConfigError, match=r"run\.json exists and is no evaluation"):
        evaluation_file(config)
