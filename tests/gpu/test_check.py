"""The part of the device's check that runs anywhere."""

import pytest
import torch

from tests.gpu.check import compare


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_fused_attention_equals_the_tiles_on_the_cpu():
    assert max(compare(torch.device("cpu")).values()) <= 1e-5
