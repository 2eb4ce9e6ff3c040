"""Which prompts are decoded, and which pairs of target and drafter are refused."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from dflash_cache import demo
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import TokenRows
from dflash_cache.drafter.export import load_training
from dflash_cache.errors import CacheMismatchError, ConfigError
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from dflash_cache.runs.prompts import DrafterFolder, choose_prompts
from dflash_cache.runs.train import train
from tests.support.runs import extract_config, train_config
from tests.support.tiny_targets import save_target


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
