"""8 bits and a scale for each token and layer. Axes in names: T tokens, K layers, H hidden size."""

import numpy as np
import pytest
import torch

from dflash_cache import demo
from dflash_cache.data import TokenRows
from dflash_cache.target import LayerCapture, Target, quantize


@pytest.fixture(scope="module")
def real_states() -> torch.Tensor:
    """bfloat16 states of the bundled target on its own data."""
    target = Target.load(demo.TARGET, dtype="bfloat16", device="cpu")
    capture = LayerCapture(target, (1, 3, 6))
    rows = TokenRows.open(demo.DATA)
    ids = [torch.from_numpy(rows.sequence(row, 512).input_ids).long() for row in range(8)]
    return capture.hidden_states(ids)


def restored(states_TKH: torch.Tensor) -> torch.Tensor:
    values_TKH, scales_TK = quantize(states_TKH)
    return values_TKH.float() * scales_TK[..., None]


def error_by_layer(states_TKH: torch.Tensor, channels: slice = slice(None)) -> list[float]:
    """Norm of the difference over norm, of each layer."""
    exact = states_TKH.float()[..., channels]
    difference = restored(states_TKH)[..., channels] - exact
    return (difference.norm(dim=(0, 2)) / exact.norm(dim=(0, 2))).tolist()


def test_real_states_lose_less_than_three_percent_in_every_layer(real_states):
    assert max(error_by_layer(real_states)) < 0.03


def test_a_channel_a_thousand_times_the_others_does_not_move_the_error_of_the_others(real_states):
    loud = real_states.float().clone()
    loud[..., 0] = 1000 * loud.square().mean(-1).sqrt()
    others = slice(1, None)
    before, after = error_by_layer(real_states.float(), others), error_by_layer(loud, others)
    np.testing.assert_allclose(after, before, atol=0.002)
    assert max(error_by_layer(loud)) < 0.03


def test_a_loud_layer_or_token_leaves_the_others_as_they_are(real_states):
    quiet, _ = quantize(real_states)
    loud = real_states.clone()
    loud[0] *= 4096
    loud[:, 1] *= 4096
    found, _ = quantize(loud)
    assert found[1:, 0].view(torch.uint8).equal(quiet[1:, 0].view(torch.uint8))
    assert found[1:, 2].view(torch.uint8).equal(quiet[1:, 2].view(torch.uint8))


def test_the_largest_of_each_token_and_layer_becomes_448():
    states = torch.randn(50, 2, 16, generator=torch.Generator().manual_seed(0))
    values, scales = quantize(states)
    assert values.float().abs().amax(-1).eq(448).all()
    torch.testing.assert_close(scales, states.abs().amax(-1) / 448)


def test_zeros_stay_zeros_with_a_scale_of_one():
    values, scales = quantize(torch.zeros(3, 2, 8))
    assert scales.eq(1).all()
    assert not values.float().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [3e38, 1e-36, 1e-42, 2e-45])
def test_finite_states_of_any_size_stay_finite(size, dtype):
    signs = torch.where(torch.arange(8) % 2 > 0, -1.0, 1.0)
    states = (size * signs).expand(2, 1, 8).to(dtype)
    assert restored(states).isfinite().all()


def test_pieces_do_not_show(real_states, monkeypatch):
    whole, scales = quantize(real_states)
    monkeypatch.setattr("dflash_cache.target.quantization.PIECE_TOKENS", 7)
    cut, same = quantize(real_states)
    assert whole.view(torch.uint8).equal(cut.view(torch.uint8))
    assert scales.equal(same)
