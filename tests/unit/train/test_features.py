"""Stored states on the training device. Axes in names: T tokens, K layers, H hidden size."""

from dataclasses import replace

import pytest
import torch

from dflash_cache.target import quantize
from dflash_cache.train.features import features_of
from tests.support.drafters import draft_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_states_are_value_times_scale_rounded_once(dtype):
    batch = draft_batch((5, 3), ((0,), (1,)))
    values, scales = quantize(batch.hidden_TKH)
    exact = values.double() * scales.double()[..., None]
    found = features_of(replace(batch, hidden_TKH=values, scales_TK=scales), CPU, dtype)
    assert found.equal(exact.float().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_states_are_converted_and_nothing_else(dtype):
    batch = draft_batch((5, 3), ((0,), (1,)))
    assert features_of(batch, CPU, dtype).equal(batch.hidden_TKH.to(dtype))
