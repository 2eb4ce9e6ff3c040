"""The states in a cache against those of each row run alone, through the whole of ``extract``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_cache.cache import Cache
from dflash_cache.config import ExtractConfig
from dflash_cache.data import plan_batches
from dflash_cache.runs.extract import extract
from dflash_cache.target import LayerCapture, Target
from tests.support.tiny_targets import (
    BUILDERS,
    NUM_LAYERS,
    decoder_of,
    load_plain,
    oracle_states,
    random_rows,
    rows_of,
    save_rows,
    save_target,
)

LAYERS = (1, 4, 6)
TOLERANCE = dict.fromkeys(BUILDERS, 1e-5) | {"qwen3_5": 1e-4}  # of the row's largest value
ROWS_A_BATCH = {1: 1, 500: 4, 3500: 16}  # by --batch-tokens, with SEGMENT_TOKENS
SEGMENT_TOKENS = 3500
WORKERS = [("cpu",), ("cpu", "cpu", "cpu")]


@dataclass(frozen=True)
class Subject:
    """A target, the dataset D0 and what the oracle says of it."""

    family: str
    folder: Path
    ids: list[list[int]]
    oracle: list[torch.Tensor]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Makes the subject of a family once for all tests."""
    made: dict[str, Subject] = {}
    ids = list(random_rows()["input_ids"])

    def subject(family: str) -> Subject:
        if family not in made:
            folder = save_target(tmp_path_factory.mktemp(family), family)
            made[family] = Subject(family, folder, ids, oracle_states(folder, ids, LAYERS))
        return made[family]

    return subject


def extracted(subject: Subject, work: Path, ids: list[list[int]], **settings) -> Cache:
    config = {
        "data": save_rows(work / "rows", rows_of(ids)),
        "target": str(subject.folder),
        "cache": work / "cache",
        "target_layers": LAYERS,
        "segment_tokens": SEGMENT_TOKENS,
        "devices": ("cpu",),
    }
    extract(ExtractConfig(**config | settings))
    return Cache.open(work / "cache")


def states_by_row(cache: Cache) -> dict[int, np.ndarray]:
    """Hidden states [T, K, H] by row number; no row may be there twice."""
    states = {}
    for index in cache.segments:
        segment = cache.read(index)
        parts = np.split(segment.hidden_TKH, segment.offsets[1:-1])
        for row, part in zip(segment.row_ids.tolist(), parts, strict=True):
            assert row not in states
            states[row] = part
    return states


def assert_parity(cache: Cache, ids: list[list[int]], oracle: list[torch.Tensor], bound: float):
    states = states_by_row(cache)
    left_out = {row.row_id for row in cache.ledger}
    assert sorted([*states, *left_out]) == list(range(len(ids)))
    assert len(states) > len(ids) // 2
    for row, found_TKH in states.items():
        expected_TKH = oracle[row]
        assert found_TKH.shape == tuple(expected_TKH.shape), f"row {row}"
        error = (torch.from_numpy(found_TKH) - expected_TKH).abs().max()
        assert error <= bound * expected_TKH.abs().max(), f"row {row}"


@pytest.mark.parametrize("devices", WORKERS, ids=len)
@pytest.mark.parametrize("batch_tokens", ROWS_A_BATCH)
@pytest.mark.parametrize("family", BUILDERS)
def test_states_depend_neither_on_the_batch_nor_on_the_number_of_workers(
    subjects, tmp_path, family, batch_tokens, devices
):
    subject = subjects(family)
    cache = extracted(subject, tmp_path, subject.ids, batch_tokens=batch_tokens, devices=devices)
    batches = [len(plan_batches(plan.lengths, batch_tokens)) for plan in cache.plan]
    rows_a_batch = sum(len(plan.row_ids) for plan in cache.plan) / sum(batches)
    assert rows_a_batch == pytest.approx(ROWS_A_BATCH[batch_tokens], rel=0.5)
    assert_parity(cache, subject.ids, subject.oracle, TOLERANCE[family])


@pytest.mark.parametrize("batch_tokens", ROWS_A_BATCH)
@pytest.mark.parametrize("family", BUILDERS)
def test_states_do_not_depend_on_the_order_of_the_rows(subjects, tmp_path, family, batch_tokens):
    subject = subjects(family)
    cache = extracted(subject, tmp_path, subject.ids[::-1], batch_tokens=batch_tokens)
    assert_parity(cache, subject.ids[::-1], subject.oracle[::-1], TOLERANCE[family])


@pytest.mark.parametrize("batch_tokens", [1, 600, 3200])
def test_neighbours_of_very_different_length_leave_a_hybrid_row_alone(
    subjects, tmp_path, batch_tokens
):
    subject = subjects("qwen3_5")
    rows = [min(range(103), key=lambda row: abs(len(subject.ids[row]) - n)) for n in (5, 200, 77)]
    ids, oracle = [subject.ids[row] for row in rows], [subject.oracle[row] for row in rows]
    cache = extracted(subject, tmp_path, ids, batch_tokens=batch_tokens)
    assert_parity(cache, ids, oracle, TOLERANCE["qwen3_5"])


@pytest.mark.parametrize("family", BUILDERS)
def test_the_tolerance_would_reveal_one_token_of_left_padding(subjects, family):
    subject = subjects(family)
    row = max(range(len(subject.ids)), key=lambda row: len(subject.ids[row]))
    decoder = decoder_of(load_plain(subject.folder))
    caught: list[torch.Tensor] = []
    for layer in LAYERS:
        decoder.layers[layer].register_forward_hook(
            lambda _module, _arguments, output: caught.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
    with torch.no_grad():
        decoder(input_ids=torch.tensor([[0, *subject.ids[row]]]), use_cache=False)
    expected_TKH = subject.oracle[row]
    for place, padded in enumerate(caught):
        error = (padded[0, 1:] - expected_TKH[:, place]).abs().max()
        assert error > 10 * TOLERANCE[family] * expected_TKH.abs().max()


def test_swapped_rows_would_not_pass_as_parity(subjects, tmp_path):
    subject = subjects("qwen3")
    ids = [row[:40] for row in subject.ids if len(row) >= 40][:4]
    oracle = oracle_states(subject.folder, ids, LAYERS)
    cache = extracted(subject, tmp_path, ids)
    assert_parity(cache, ids, oracle, 1e-5)
    with pytest.raises(AssertionError, match="row 0"):
        assert_parity(cache, ids, [oracle[1], oracle[0], *oracle[2:]], 1e-5)


def test_repeated_extractions_by_many_workers_write_the_same_bytes(subjects, tmp_path):
    subject = subjects("qwen3")
    first = None
    for repeat in range(3):
        cache = extracted(
            subject, tmp_path / str(repeat), subject.ids,
            segment_tokens=800, batch_tokens=300, devices=WORKERS[1], writers=4,
        )  # fmt: skip
        states = states_by_row(cache)
        first = first or states
        assert {row: part.tobytes() for row, part in states.items()} == {
            row: part.tobytes() for row, part in first.items()
        }


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_bfloat16_is_stored_bit_for_bit_as_the_target_computed_it(subjects, tmp_path, family):
    subject = subjects(family)
    cache = extracted(subject, tmp_path, subject.ids[:40], dtype="bfloat16", batch_tokens=500)
    target = Target.load(subject.folder, dtype="bfloat16", device="cpu")
    capture = LayerCapture(target, LAYERS)
    stored = states_by_row(cache)
    for plan in cache.plan:
        for batch in plan_batches(plan.lengths, 500):
            rows = plan.row_ids[batch].tolist()
            computed = capture.hidden_states([torch.tensor(subject.ids[row]) for row in rows])
            assert computed.dtype == torch.bfloat16
            bits = computed.view(torch.uint16).numpy()
            found = np.concatenate([stored[row] for row in rows])
            assert found.dtype == np.uint16
            np.testing.assert_array_equal(found, bits)


@pytest.mark.parametrize("family", BUILDERS)
def test_layer_id_l_is_what_transformers_calls_hidden_states_l_plus_1(subjects, tmp_path, family):
    subject = subjects(family)
    stored = states_by_row(extracted(subject, tmp_path, subject.ids[:3]))
    model = load_plain(subject.folder)
    for row, found_TKH in stored.items():
        with torch.no_grad():
            output = model(input_ids=torch.tensor([subject.ids[row]]), output_hidden_states=True)
        for place, layer in enumerate(LAYERS):
            expected = output.hidden_states[layer + 1][0]
            error = (torch.from_numpy(found_TKH[:, place]) - expected).abs().max()
            assert error <= TOLERANCE[family] * expected.abs().max(), f"layer {layer}"


@pytest.mark.parametrize("family", BUILDERS)
def test_the_last_layer_is_stored_before_the_final_norm(subjects, tmp_path, family):
    subject, last = subjects(family), NUM_LAYERS - 1
    stored = states_by_row(extracted(subject, tmp_path, subject.ids[:3], target_layers=(1, last)))
    raw = oracle_states(subject.folder, subject.ids[:3], (last,))
    model = load_plain(subject.folder)
    for row, found_TKH in stored.items():
        with torch.no_grad():
            output = model(input_ids=torch.tensor([subject.ids[row]]), output_hidden_states=True)
        found, scale = torch.from_numpy(found_TKH[:, 1]), raw[row].abs().max()
        assert (found - raw[row][:, 0]).abs().max() <= TOLERANCE[family] * scale
        assert (found - output.hidden_states[-1][0]).abs().max() > 100 * TOLERANCE[family] * scale
