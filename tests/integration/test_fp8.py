"""Caches of 8-bit states. Axes in names: T tokens, K layers, H hidden size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from dflash_cache.cache import Cache, verify_cache
from dflash_cache.config import BothConfig, VerifyConfig
from dflash_cache.errors import CacheMismatchError
from dflash_cache.runs.both import both
from dflash_cache.runs.extract import extract
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import prepare
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from dflash_cache.target import LayerCapture
from tests.support.runs import assert_same_training, extract_config, metrics, train_config


def fp8_config(folder: Path, **changes):
    return extract_config(folder, **{"codec": "fp8", "dtype": "bfloat16", "limit": 24} | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fp8")
    extract(fp8_config(made))
    return made


def e4m3(code: int) -> float:
    """The value of a byte, from the definition of the format."""
    sign, exponent, mantissa = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
    return sign * (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else mantissa * 2.0**-9)


def test_plain_zarr_and_a_table_give_the_targets_states_within_three_percent(folder):
    preparation = prepare(fp8_config(folder))
    (capture,) = load_captures(preparation).values()
    table = np.array([e4m3(code) for code in range(256)], np.float32)
    root = zarr.open(folder / "cache/cache.zarr", mode="r")
    for plan in preparation.plan[:1]:
        segment = root[f"segments/{plan.index:08d}"]
        assert segment["hidden_states"].dtype == np.uint8
        assert segment["hidden_states"].attrs["logical_dtype"] == "float8_e4m3fn"
        stored_TKH = table[segment["hidden_states"][...]] * segment["scales"][...][..., None]
        sequences = [
            preparation.rows.sequence(row, length)
            for row, length in zip(plan.row_ids.tolist(), plan.lengths.tolist(), strict=True)
        ]
        ids = [torch.from_numpy(sequence.input_ids).long() for sequence in sequences]
        exact_TKH = torch.cat([capture.hidden_states([each]) for each in ids]).float().numpy()
        difference = np.linalg.norm(stored_TKH - exact_TKH, axis=2)
        norm = np.linalg.norm(exact_TKH, axis=2)
        assert (np.linalg.norm(difference, axis=0) < 0.03 * np.linalg.norm(norm, axis=0)).all()


def test_the_cache_takes_half_the_bytes_of_bfloat16_states(folder, tmp_path):
    report = extract(fp8_config(folder))
    plain = extract(extract_config(tmp_path, dtype="bfloat16", limit=24))
    assert report["bytes_raw"] == plain["bytes_raw"]
    # The demo's hidden size is 256: the scales of its small layers weigh more than anywhere else.
    cache = Cache.open(folder / "cache")
    records = [cache.record(index) for index in cache.segments]
    states = sum(record.shard[0] for record in records)
    scales = sum(record.files["scales/c.0.0"][0] for record in records)
    assert (states + scales) / report["bytes_raw"] < 0.51


def test_a_drafter_trains_on_8_bit_states_nearly_as_on_exact_ones(folder, tmp_path):
    extract(extract_config(tmp_path, dtype="bfloat16", limit=24))
    config = train_config(folder, out=tmp_path / "fp8", steps=6)
    train(config)
    train(replace(config, cache=tmp_path / "cache", out=tmp_path / "exact"))
    losses = [line["loss"] for line in metrics(tmp_path / "fp8")]
    exact = [line["loss"] for line in metrics(tmp_path / "exact")]
    assert losses != exact
    np.testing.assert_allclose(losses, exact, rtol=0.02)
    assert losses[-1] < losses[0]


def test_both_and_both_overlap_give_the_same_weights(folder, tmp_path):
    config = BothConfig(
        extract=fp8_config(tmp_path, devices=("cpu", "cpu")),
        train=train_config(tmp_path),
        overlap=True,
    )
    both(config)
    in_turn = replace(train_config(folder), out=tmp_path / "in-turn")
    train(in_turn)
    assert_same_training(tmp_path / "run", in_turn.out)


def test_damaged_scales_are_found_and_made_again(tmp_path):
    extract(fp8_config(tmp_path, limit=12))
    root = tmp_path / "cache"
    before = Cache.open(root).read(0)
    path = root / "cache.zarr/segments/00000000/scales/c.0.0"
    path.write_bytes(path.read_bytes()[:-5] + b"\1" + path.read_bytes()[-4:])
    assert [Path(fault.path) for fault in verify_cache(root)] == [path]
    assert verify(VerifyConfig(cache=str(root), repair=True))["bad"] == []
    after = Cache.open(root).read(0)
    assert after.hidden_TKH.tobytes() == before.hidden_TKH.tobytes()
    assert after.scales_TK.tobytes() == before.scales_TK.tobytes()


def test_a_row_with_a_state_that_is_not_finite_is_dropped_though_quantized(tmp_path, monkeypatch):
    exact = LayerCapture.hidden_states

    def spoiled(capture, sequences, check=lambda: None):
        states = exact(capture, sequences, check).clone()
        states[0, 2, 5] = torch.inf
        return states

    monkeypatch.setattr(LayerCapture, "hidden_states", spoiled)
    report = extract(fp8_config(tmp_path, limit=12, max_dropped=1.0))
    cache = Cache.open(tmp_path / "cache")
    assert report["dropped"]["non_finite"] == len(cache.ledger) > 0
    assert {row.detail.split(",")[0] for row in cache.ledger} == {
        f"layer {cache.spec.target_layer_ids[2]}"
    }
    for index in cache.segments:
        segment = cache.read(index)
        assert len(segment.scales_TK) == len(segment.hidden_TKH)
        assert np.isfinite(segment.scales_TK).all()


def test_a_cache_in_another_form_is_not_continued(folder):
    with pytest.raises(CacheMismatchError, match="codec: 'crc32c', expected 'fp8'"):
        extract(extract_config(folder, dtype="bfloat16", limit=24))
