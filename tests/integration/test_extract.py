"""``extract`` from end to end on tiny targets: what is stored, left out, resumed and refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch

from dflash_cache.cache import Cache, CacheWriter, SegmentWriter, writer_lock
from dflash_cache.cache.commits import CommitLog
from dflash_cache.config import ExtractConfig
from dflash_cache.errors import CacheBusyError, CacheMismatchError, ConfigError
from dflash_cache.runs.extract import extract
from tests.support.tiny_targets import (
    NUM_LAYERS,
    VOCAB_SIZE,
    build_target,
    load_plain,
    oracle_states,
    random_rows,
    rows_of,
    save_rows,
    save_target,
)

NAN_TOKEN, LAYERS = 13, (1, 4, 6)
HOLD_LOCK = """
import sys, time
from pathlib import Path
from dflash_cache.cache import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """``target``: Qwen3 of seed 0; ``rows``: D0; ``cache``: the finished cache of the two."""
    folder = tmp_path_factory.mktemp("shared")
    save_target(folder / "target")
    save_rows(folder / "rows")
    extract(config(folder, folder / "cache"))
    return folder


def config(shared: Path, cache: Path, **settings) -> ExtractConfig:
    given = {
        "data": shared / "rows",
        "target": str(shared / "target"),
        "devices": ("cpu",),
        "target_layers": LAYERS,
        "segment_tokens": 1500,
        "batch_tokens": 600,
    }
    return ExtractConfig(cache=cache, **given | settings)


def content(cache: Path) -> dict[str, bytes]:
    """The ledgers and every file of the Zarr hierarchy but the root's, which names folders."""
    files = [*(cache / "ledger").iterdir(), *(cache / "cache.zarr").glob("*/**/*")]
    return {str(p.relative_to(cache)): p.read_bytes() for p in files if p.is_file()}


def rows_in(cache: Cache) -> set[int]:
    return {row for index in cache.segments for row in cache.read(index).row_ids.tolist()}


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_rows_with_states_that_are_not_finite_go_to_the_ledger_and_not_to_the_cache(
    shared, tmp_path, family
):
    model = build_target(family)
    model.get_input_embeddings().weight.data[NAN_TOKEN] = float("nan")
    model.save_pretrained(tmp_path / "target")
    ids = list(random_rows()["input_ids"])
    extract(config(shared, tmp_path / "cache", target=str(tmp_path / "target"), max_dropped=1.0))
    cache = Cache.open(tmp_path / "cache")
    planned = {row for plan in cache.plan for row in plan.row_ids.tolist()}
    found = {row.row_id: row.detail for row in cache.ledger if row.reason == "non_finite"}
    assert set(found) == {row for row in planned if NAN_TOKEN in ids[row]}
    assert rows_in(cache) == planned - set(found)
    oracle = oracle_states(tmp_path / "target", [ids[row] for row in found], LAYERS)
    for detail, states_TKH in zip(found.values(), oracle, strict=True):
        faults = (~torch.isfinite(states_TKH)).any(-1)
        place = int(faults.any(0).nonzero()[0])  # the first layer, and the first position in it
        position = int(faults[:, place].nonzero()[0])
        assert detail == f"layer {LAYERS[place]}, position {position}"


def test_a_token_that_is_not_finite_spoils_no_row_that_lacks_it_whatever_its_id(shared, tmp_path):
    model = build_target()
    model.get_input_embeddings().weight.data[0] = float("inf")
    model.save_pretrained(tmp_path / "target")
    ids = list(random_rows()["input_ids"])
    extract(config(shared, tmp_path / "cache", target=str(tmp_path / "target"), max_dropped=1.0))
    cache = Cache.open(tmp_path / "cache")
    spoilt = {row.row_id for row in cache.ledger if row.reason == "non_finite"}
    assert spoilt == {row for row in spoilt | rows_in(cache) if 0 in ids[row]}


def test_no_logits_are_computed_and_no_layer_after_the_last_wanted_one(shared, tmp_path):
    begun = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _arguments: begun.append((type(module), getattr(module, "out_features", 0)))
    )
    try:
        extract(config(shared, tmp_path / "cache", limit=1))
    finally:
        handle.remove()
    assert VOCAB_SIZE not in [width for _, width in begun]
    trials = 2 * NUM_LAYERS  # of three tokens, when the target is loaded
    layers_run = [kind.__name__ for kind, _ in begun].count("Qwen3DecoderLayer")
    assert layers_run == trials + LAYERS[-1] + 1


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "gemma3"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_cache_keeps_embedding_norm_and_the_head_unless_it_is_tied(
    shared, tmp_path, family, tied
):
    folder = save_target(tmp_path / "target", family, tied=tied)
    assert [path.name for path in folder.glob("*.safetensors*")] == ["model.safetensors"]
    extract(config(shared, tmp_path / "cache", target=str(folder), limit=5))
    parts, plain = Cache.open(tmp_path / "cache").target, load_plain(folder)
    embedding, head = plain.get_input_embeddings().weight, plain.get_output_embeddings().weight
    np.testing.assert_array_equal(parts.embedding, embedding.detach().numpy())
    assert torch.equal(head, embedding) == tied
    if tied:
        assert parts.head is None
    else:
        np.testing.assert_array_equal(parts.head, head.detach().numpy())
    norm = getattr(plain.model, "language_model", plain.model).norm.weight
    np.testing.assert_array_equal(parts.norm, norm.detach().numpy())


def test_a_checkpoint_in_shards_gives_the_same_cache_as_a_single_file(shared, tmp_path):
    folder = save_target(tmp_path / "target", max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists()
    extract(config(shared, tmp_path / "cache", target=str(folder)))
    extract(config(shared, tmp_path / "cache"))  # the other layout is no other target
    assert content(tmp_path / "cache") == content(shared / "cache")


def test_a_second_run_does_nothing(shared, monkeypatch):
    before = {p: p.stat().st_mtime_ns for p in (shared / "cache").rglob("*")}
    monkeypatch.setattr("dflash_cache.target.Target.load", None)  # not even a target is loaded
    report = extract(config(shared, shared / "cache"))
    assert {p: p.stat().st_mtime_ns for p in (shared / "cache").rglob("*")} == before
    assert (report["sequences"], report["dropped"]) == (100, {"no_anchor": 3})


@pytest.mark.parametrize(
    ("owner", "name"),
    [(CacheWriter, "commit"), (CommitLog, "append"), (SegmentWriter, "append")],
    ids=["commit", "commit after the rename", "writer in mid-segment"],
)
@pytest.mark.parametrize("devices", [("cpu",), ("cpu",) * 3], ids=len)
def test_an_extraction_stopped_in_the_middle_resumes_to_the_same_cache(
    shared, tmp_path, monkeypatch, owner, name, devices
):
    calls, whole = [], getattr(owner, name)

    def fail_later(*arguments):
        calls.append(name)
        if len(calls) > 4:
            raise OSError("no space left on device")
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail_later)
        with pytest.raises(OSError, match="no space left"):
            extract(config(shared, tmp_path / "cache"))
    done = len(Cache.open(tmp_path / "cache").segments)
    assert done < len(Cache.open(shared / "cache").segments) == 8
    assert done == 4 or owner is SegmentWriter
    extract(config(shared, tmp_path / "cache", devices=devices, writers=len(devices)))
    assert content(tmp_path / "cache") == content(shared / "cache")
    assert list((tmp_path / "cache" / "staging").iterdir()) == []


def other_target(shared: Path, folder: Path, name: str) -> str:
    if name == "weights":
        save_target(folder, seed=1)
    elif name == "config.json":
        shutil.copytree(shared / "target", folder)
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    else:
        shutil.copytree(shared / "target", folder)
        (folder / name).write_text("{}")
    return str(folder)


def one_changed_token(shared: Path, folder: Path) -> Path:
    ids = [list(row) for row in random_rows()["input_ids"]]
    ids[50][3] = (ids[50][3] + 1) % 512
    return save_rows(folder, rows_of(ids))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("target_weights_hash", {"target": "weights"}),
        ("target_config_hash", {"target": "config.json"}),
        ("chat_template_hash", {"target": "chat_template.jinja"}),
        ("tokenizer_hash", {"target": "tokenizer.json"}),
        ("dataset_fingerprint", {"data": "one token"}),
        ("target_layer_ids", {"target_layers": (1, 4, 5)}),
        ("keep_last", {"keep_last": True}),
        ("dtype", {"dtype": "bfloat16"}),
        ("codec", {"codec": "zstd"}),
        ("plan_seed", {"plan_seed": 1}),
        ("segment_tokens", {"segment_tokens": 1600}),
        ("max_seq_len", {"max_seq_len": 128}),
        ("too_long", {"too_long": "drop"}),
        ("limit", {"limit": 200}),
        ("on_bad_row", {"on_bad_row": "drop"}),
    ],
)
def test_a_resume_with_another_setting_is_refused_and_the_setting_named(
    shared, tmp_path, field, change
):
    before = content(shared / "cache")
    if "target" in change:
        change = {"target": other_target(shared, tmp_path / "other", change["target"])}
    if "data" in change:
        change = {"data": one_changed_token(shared, tmp_path / "other")}
    with pytest.raises(CacheMismatchError) as caught:
        extract(config(shared, shared / "cache", **change))
    _, *differing, _ = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in differing] == [field]
    assert content(shared / "cache") == before


def test_a_moved_target_and_dataset_are_still_the_same(shared, tmp_path):
    for name in ("target", "rows"):
        shutil.copytree(shared / name, tmp_path / name)
    extract(config(tmp_path, shared / "cache"))


def test_a_second_writer_is_refused_at_once_and_a_dead_ones_lock_does_not_block(shared, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "cache")],
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(CacheBusyError, match=rf'"pid": {holder.pid}\b'):
                extract(config(shared, tmp_path / "cache"))
        finally:
            holder.kill()
    extract(config(shared, tmp_path / "cache"))
    assert content(tmp_path / "cache") == content(shared / "cache")


def test_a_finished_cache_is_opened_beside_a_writer_that_holds_the_lock(shared):
    with writer_lock(shared / "cache"):
        assert extract(config(shared, shared / "cache"))["sequences"] == 100


def test_a_cache_folder_with_foreign_files_is_refused_and_left_alone(shared, tmp_path):
    (tmp_path / "staging").mkdir()
    files = {"thesis.tex": "years of work", "staging/figure.svg": "<svg/>"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        extract(config(shared, tmp_path))
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found - {"lock"} == set(files)
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_the_arrow_type_of_the_lists_does_not_show_in_the_cache(shared, tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "input_ids": rng.integers(0, 512, (12, 64)).tolist(),
        "loss_mask": [[0] * 32 + [1] * 32] * 12,
    }
    kinds = {
        "list": pa.list_(pa.int64()),
        "large_list": pa.large_list(pa.int32()),
        "fixed_size_list": pa.list_(pa.int64(), 64),
    }
    caches, fingerprints = [], set()
    for name, kind in kinds.items():
        table = pa.table({column: pa.array(rows, kind) for column, rows in columns.items()})
        rows = datasets.Dataset(table)
        assert str(rows.data.table.schema.field("input_ids").type).startswith(name)
        data = save_rows(tmp_path / f"{name}-rows", rows)
        extract(config(shared, tmp_path / name, data=data, segment_tokens=300))
        caches.append(content(tmp_path / name))
        fingerprints.add(Cache.open(tmp_path / name).spec.parts[0].dataset_fingerprint)
    assert caches[0] == caches[1] == caches[2]
    assert len(fingerprints) == 1
