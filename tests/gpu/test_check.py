"""The part of the device's check that runs anywhere."""

import pytest
import torch

from tests.gpu.check import compare, compare_states


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_fused_attention_equals_the_tiles_on_the_cpu():
    assert max(compare(torch.device("cpu")).values()) <= 1e-5


def test_states_that_cross_beside_the_next_batch_are_those_copied_alone():
    assert compare_states(torch.device("cpu")) == {"batches": 6, "equal": True}
