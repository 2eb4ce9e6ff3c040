"""From a run to a drafter that others load, and from a drafter to another run."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dflash_cache import demo
from dflash_cache.cache import Cache
from dflash_cache.cli.main import app
from dflash_cache.config import BothConfig, EvaluateConfig, ExportConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.export import load_drafter, load_training
from dflash_cache.errors import CacheMismatchError, ConfigError, DataError
from dflash_cache.runs import evaluate as evaluate_run
from dflash_cache.runs.both import both
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.export import export
from dflash_cache.runs.extract import extract
from dflash_cache.runs.train import train
from tests.support.mounts import small_disk
from tests.support.runs import (
    assert_same_training,
    extract_config,
    final_weights,
    metrics,
    train_config,
)
from tests.support.tiny_targets import build_target, load_plain, random_rows, save_rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four steps with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("trained")
    extract(extract_config(folder))
    train(train_config(folder, steps=4, save_every=2))
    return folder


def export_config(folder, out, **changes):
    return ExportConfig(**{"run": folder / "run", "out": out} | changes)


def checkpoint(folder, step):
    return load_file(folder / "run" / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_all_files_of_an_export_may_be_read_by_the_same_people(trained):
    modes = {path.stat().st_mode for path in (trained / "run" / "export").iterdir()}
    assert len(modes) == 1


def test_a_run_whose_training_goes_on_has_no_export_to_evaluate_yet(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    with pytest.raises(ConfigError, match=r"has not ended. .* dflash-cache export .*run --out D"):
        DrafterConfig.load(tmp_path / "run" / "export")


def test_the_newest_checkpoint_is_what_the_run_itself_exported(trained, tmp_path):
    report = export(export_config(trained, tmp_path / "out"))
    for name in ("model.safetensors", "config.json"):
        own = trained / "run" / "export" / name
        assert (tmp_path / "out" / name).read_bytes() == own.read_bytes()
    assert report["step"] == 4
    assert report["parameters"] == sum(w.numel() for w in checkpoint(trained, 4).values())
    own, again = (load_training(f) for f in (trained / "run" / "export", tmp_path / "out"))
    assert own.items() <= again.items()


def test_a_named_step_is_exported_without_figures_of_another(trained, tmp_path):
    out = tmp_path / "out"
    assert export(export_config(trained, out, step=2, dtype="float32"))["step"] == 2
    weights = load_file(out / "model.safetensors")
    assert all(weights[name].equal(value) for name, value in checkpoint(trained, 2).items())
    assert config_of(out)["dtype"] == "float32"
    training = load_training(out)
    assert "slot_accuracy" not in training
    (line,) = [line for line in metrics(trained / "run") if line["step"] == 2]
    assert training["training_batch"]["loss"] == line["loss"]
    assert "| steps | 2 |" in (out / "README.md").read_text()


def test_the_evaluation_of_a_run_stands_in_the_card_of_that_step(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    figures = {
        "acceptance_length": 1.625, "lossless": 1.0, "speedup": 1.5, "prompts": 2,
        "held_out": True, "temperature": 0.0,
        "prompt_lookup": {"acceptance_length": 1.25, "speedup": 1.0},
    }  # fmt: skip
    made = {"data": "/private", "drafter": ["e"], "new_tokens": 4, "dtype": "float32"}
    report = figures | {"steps": 4, "examples": []}
    saved = {"config": made | {"device": "cpu"}, "report": report}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(saved))
    export(export_config(tmp_path, tmp_path / "out"))
    assert "1.625" in (tmp_path / "out" / "README.md").read_text()
    assert load_training(tmp_path / "out")["evaluation"] == figures  # and no text of the data
    export(export_config(tmp_path, tmp_path / "older", step=2))
    assert "1.625" not in (tmp_path / "older" / "README.md").read_text()


def test_an_evaluation_of_another_step_is_not_taken_for_the_newest(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    earlier = tmp_path / "run" / "earlier"
    export(export_config(tmp_path, earlier, step=2))
    measured = evaluate(
        EvaluateConfig(
            target=str(demo.TARGET), drafter=(earlier,), data=demo.DATA, prompts=1, new_tokens=4
        )
    )
    assert measured["steps"] == 2
    assert load_training(earlier)["evaluation"]["acceptance_length"] > 0
    assert "acceptance length, by decoding" in (earlier / "README.md").read_text()
    load_drafter(earlier)
    export(export_config(tmp_path, tmp_path / "out"))
    assert "evaluation" not in load_training(tmp_path / "out")


def test_figures_of_a_drafter_that_was_replaced_meanwhile_go_to_none(
    trained, tmp_path, monkeypatch
):
    shutil.copytree(trained / "run", tmp_path / "run")
    export(export_config(tmp_path, tmp_path / "run" / "export", step=2))
    measure = evaluate_run._measure

    def replacing(*arguments):
        report = measure(*arguments)
        export(export_config(tmp_path, tmp_path / "run" / "export", step=4))
        return report

    monkeypatch.setattr(evaluate_run, "_measure", replacing)
    drafter = (tmp_path / "run" / "export",)
    evaluate(
        EvaluateConfig(
            target=str(demo.TARGET), drafter=drafter, data=demo.DATA, prompts=1, new_tokens=4
        )
    )
    training = load_training(drafter[0])
    assert training["steps"] == 4
    assert "evaluation" not in training


def test_a_drafter_goes_where_a_link_leads(trained, tmp_path):
    export(export_config(trained, tmp_path / "real", step=2))
    (tmp_path / "link").symlink_to("real")
    export(export_config(trained, tmp_path / "link", step=4))
    assert (tmp_path / "link").is_symlink()
    assert load_training(tmp_path / "real")["steps"] == 4
    assert {path.name for path in tmp_path.iterdir()} == {"link", "real"}


def test_a_disk_that_is_full_is_told_with_the_file_and_leaves_nothing(trained, tmp_path):
    with small_disk(tmp_path / "disk", size="1m") as disk:
        with pytest.raises(OSError, match=r"model\.safetensors cannot be written, with .* MB free"):
            export(export_config(trained, disk / "out", dtype="float32"))
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"cache": 5}', '{"held_out_rows": ["a"]}'])
def test_a_damaged_record_of_a_drafter_is_named(trained, tmp_path, content):
    export(export_config(trained, tmp_path / "out"))
    (tmp_path / "out" / "training.json").write_text(content)
    with pytest.raises(DataError, match=r"training\.json is damaged: .*Export the drafter again"):
        load_training(tmp_path / "out")
    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "run" / "export" / "training.json").write_text(content)
    export(export_config(tmp_path, tmp_path / "run" / "export"))  # as it says
    assert load_training(tmp_path / "run" / "export")["steps"] == 4


def test_a_record_that_does_not_say_the_held_out_rows_evaluates_nothing(trained, tmp_path):
    export(export_config(trained, tmp_path / "out"))
    (tmp_path / "out" / "training.json").write_text('{"steps": 3}')
    config = EvaluateConfig(target="t", drafter=(tmp_path / "out",), data=demo.DATA)
    with pytest.raises(DataError, match=r"training\.json is damaged: it has no cache"):
        evaluate(config)


def test_a_line_of_metrics_that_is_no_step_is_passed_over(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'[]\n\xff\xfe\n{"step": 4, "loss": null}\n')
    export(export_config(tmp_path, tmp_path / "out", step=4))
    assert load_training(tmp_path / "out")["training_batch"]["loss"] > 0


def test_what_a_killed_writer_left_in_an_export_is_no_other_thing(trained, tmp_path):
    export(export_config(trained, tmp_path / "out"))
    (tmp_path / "out" / f".README.md.{'0' * 32}").write_text("cut sho")
    export(export_config(trained, tmp_path / "out"))
    assert not list((tmp_path / "out").glob(".*"))
    (tmp_path / "out" / ".README.md.swp").write_text("an editor's")
    with pytest.raises(DataError, match=r"holds other things \(\.README\.md\.swp\); move them"):
        export(export_config(trained, tmp_path / "out"))


def test_a_step_that_was_measured_and_not_logged_is_exported_without_its_batch(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    lines = metrics(trained / "run")
    kept = [line for line in lines if line["step"] != 2]
    kept.append({"step": 2, "held_out_block_acceptance_length": 1.5})
    text = "".join(json.dumps(line) + "\n" for line in kept)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    export(export_config(tmp_path, tmp_path / "out", step=2))
    assert "training_batch" not in load_training(tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{", "it is no object"), ("[]", "it is no object"), ('{"report": 5}', "it has no config")],
)
def test_a_damaged_evaluation_is_named(trained, tmp_path, content, fault):
    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").write_text(content)
    with pytest.raises(DataError, match=rf"evaluation\.json is damaged: {fault}\. Remove it"):
        export(export_config(tmp_path, tmp_path / "out"))


def test_the_speculators_layout_names_the_target_it_was_made_for(trained, tmp_path):
    export(export_config(trained, tmp_path / "out", format="speculators"))
    verifier = config_of(tmp_path / "out")["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": str(demo.TARGET), "architectures": ["Qwen3ForCausalLM"]}


def test_the_command_takes_the_run_as_its_argument_and_reports(trained, tmp_path):
    arguments = ["export", str(trained / "run"), "--out", str(tmp_path / "out"), "--step", "2"]
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 0, plain.output
    assert "README.md there says how to serve it" in " ".join(plain.output.split())
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout.splitlines()[-1])
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir()]
    assert (report["step"], report["bytes"]) == (2, sum(sizes))


def test_a_drafter_decodes_the_same_from_either_layout(trained, tmp_path):
    reports = []
    for layout in ("transformers", "speculators"):
        export(export_config(trained, tmp_path / layout, format=layout))
        settings = {"target": str(demo.TARGET), "data": demo.DATA, "device": "cpu"}
        sizes = {"prompts": 2, "new_tokens": 6}
        reports.append(evaluate(EvaluateConfig(drafter=(tmp_path / layout,), **settings, **sizes)))
        del reports[-1]["speedup"], reports[-1]["prompt_lookup"]["speedup"]
    assert reports[0] == reports[1]
    assert reports[0]["held_out"]


def test_a_torn_checkpoint_is_passed_over_with_a_warning(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-00000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.warns(UserWarning, match="damaged or incomplete"):
        assert export(export_config(tmp_path, tmp_path / "out"))["step"] == 2
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_what_cannot_be_exported_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"--step 3: .* has 2, 4"):
        export(export_config(trained, tmp_path / "out", step=3))
    with pytest.raises(ConfigError, match="no run"):
        export(export_config(tmp_path, tmp_path / "out"))
    for place in ("run", "run/checkpoints", "run/checkpoints/step-00000009", "run/../run"):
        with pytest.raises(ConfigError, match="the run is there"):
            export(export_config(trained, trained / place))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"notes\.txt"):
        export(export_config(trained, tmp_path / "taken"))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def without_mask_token(tmp_path_factory):
    """A run on a target whose pad token is its end token, of layers 1, 4 and 6, with mask 511."""
    folder = tmp_path_factory.mktemp("without")
    model = build_target()
    model.config.pad_token_id = model.config.eos_token_id = 510
    model.save_pretrained(folder / "target")
    save_rows(folder / "rows", random_rows(24, 40))
    changes = {"data": folder / "rows", "target": str(folder / "target"), "limit": None}
    extract(extract_config(folder, target_layers=(1, 4, 6), **changes))
    train(train_config(folder, steps=2, mask_token_id=511, holdout=0))
    return folder


def test_an_export_holds_the_mask_token_that_was_used_and_never_pad_or_end(
    without_mask_token, tmp_path
):
    folder = without_mask_token
    fresh = train_config(folder, out=tmp_path / "run", steps=2, holdout=0)
    for mask, message in ((512, r"rows 0\.\.511"), (510, "pad, begin or end"), (None, "choose an")):
        with pytest.raises(ConfigError, match=message):
            train(replace(fresh, mask_token_id=mask))
    content = config_of(folder / "run" / "export")
    assert content["dflash_config"] == {"mask_token_id": 511, "target_layer_ids": [1, 4, 6]}
    weights = load_file(folder / "run" / "export" / "model.safetensors")
    assert {str(w.dtype) for w in weights.values()} == {f"torch.{content['dtype']}"}
    assert not any("_orig_mod" in name for name in weights)


@torch.no_grad()
def test_the_layers_of_an_export_are_those_whose_outputs_were_stored(without_mask_token, tmp_path):
    folder = without_mask_token
    export(export_config(folder, tmp_path / "out", format="speculators"))
    ids = config_of(folder / "run" / "export")["dflash_config"]["target_layer_ids"]
    assert config_of(tmp_path / "out")["aux_hidden_state_layer_ids"] == [i + 1 for i in ids]
    model = load_plain(folder / "target")
    segment = Cache.open(folder / "cache").read(0)
    start, stop = segment.offsets[:2]
    row = torch.from_numpy(segment.input_ids[start:stop].copy()).long()[None]
    states = model(row, output_hidden_states=True).hidden_states
    expected = torch.stack([states[i + 1][0] for i in ids], dim=1)
    found = torch.from_numpy(segment.hidden_TKH[start:stop].copy())
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("layout", ["transformers", "speculators"])
def test_a_run_starts_from_the_weights_of_a_drafter_in_either_layout(trained, tmp_path, layout):
    export(export_config(trained, tmp_path / "start", format=layout, dtype="float32"))
    # With no weight decay and next to no learning rate the weights stay where they started.
    config = train_config(trained, out=tmp_path / "run", steps=1, lr=1e-30)
    train(replace(config, init_from=tmp_path / "start", block_size=3))
    weights = final_weights(tmp_path / "run")
    assert all(weights[name].equal(value) for name, value in checkpoint(trained, 4).items())
    assert config_of(tmp_path / "run" / "export")["block_size"] == 3


def test_a_run_is_resumed_only_with_the_weights_that_it_started_from(trained, tmp_path):
    start, other = tmp_path / "start", tmp_path / "other"
    export(export_config(trained, start))
    export(export_config(trained, other, step=2))
    config = train_config(trained, out=tmp_path / "run", init_from=start, steps=4)
    train(config)
    shutil.copytree(start, tmp_path / "moved")
    assert train(replace(config, init_from=tmp_path / "moved"))["steps"] == 4
    for wrong in (other, None):
        with pytest.raises(CacheMismatchError, match="--init-from"):
            train(replace(config, init_from=wrong))
    again = replace(config, out=tmp_path / "again")
    train(again)
    assert_same_training(tmp_path / "run", tmp_path / "again")


def test_a_run_keeps_the_mask_token_of_the_drafter_it_starts_from(trained, tmp_path):
    export(export_config(trained, tmp_path / "start"))
    content = config_of(tmp_path / "start")
    content["dflash_config"]["mask_token_id"] = 4000
    (tmp_path / "start" / "config.json").write_text(json.dumps(content))
    config = train_config(trained, out=tmp_path / "run", init_from=tmp_path / "start", steps=1)
    train(config)
    assert load_drafter(tmp_path / "run" / "export").config.mask_token_id == 4000
    train(replace(config, out=tmp_path / "named", mask_token_id=4001))
    assert load_drafter(tmp_path / "named" / "export").config.mask_token_id == 4001


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", None),
        ("target_layer_ids", None),
        ("hidden_size", 128),
        ("intermediate_size", 512),
        ("rope_theta", 5e5),
        ("num_target_layers", 9),
    ],
)
def test_a_drafter_of_another_shape_is_refused_as_a_start(trained, tmp_path, name, value):
    start = tmp_path / "start"
    export(export_config(trained, start))
    content = config_of(start)
    changes = {}
    if name == "num_hidden_layers":
        changes = {"draft_layers": 2}
    elif name == "target_layer_ids":
        content["dflash_config"]["target_layer_ids"] = [0, 2, 3, 4, 5]
    else:
        content[name] = value
    (start / "config.json").write_text(json.dumps(content))
    config = train_config(trained, out=tmp_path / "run", init_from=start, steps=1, **changes)
    with pytest.raises(CacheMismatchError, match=f"another shape:\n  {name}: "):
        train(config)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_start_whose_weights_do_not_fit_its_own_configuration_is_refused(trained, tmp_path):
    start = tmp_path / "start"
    export(export_config(trained, start))
    shutil.copy(demo.TARGET / "model.safetensors", start)
    with pytest.raises(DataError, match=r"missing weights: fc\.weight"):
        train(train_config(trained, out=tmp_path / "run", init_from=start, steps=1))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        train(train_config(trained, out=tmp_path / "run", init_from=tmp_path, steps=1))


def test_a_start_that_does_not_fit_is_refused_before_phase_one(trained, tmp_path):
    config = BothConfig(
        extract=extract_config(tmp_path),
        train=train_config(tmp_path, init_from=trained / "run" / "export", draft_layers=3),
    )
    with pytest.raises(CacheMismatchError, match="num_hidden_layers: 1, the run has 3"):
        both(config)
    assert not (tmp_path / "cache").exists()
