"""Stored bits as numbers, against torch. Axes in names: T tokens, K layers, H hidden size."""

import numpy as np
import torch

from dflash_cache.cache import float32_states, saturated
from dflash_cache.cache.values import E4M3_VALUES
from dflash_cache.types import HiddenSegment


def segment_of(hidden_TKH: np.ndarray, scales_TK: np.ndarray | None = None) -> HiddenSegment:
    num_tokens = len(hidden_TKH)
    return HiddenSegment(
        index=0,
        row_ids=np.array([5]),
        offsets=np.array([0, num_tokens]),
        input_ids=np.zeros(num_tokens, np.int32),
        loss_mask=np.ones(num_tokens, np.uint8),
        hidden_TKH=hidden_TKH,
        scales_TK=scales_TK,
    )


def test_every_byte_has_the_value_that_torch_gives_it():
    bits = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(E4M3_VALUES, bits.view(torch.float8_e4m3fn).float().numpy())


def test_every_bfloat16_pattern_has_the_value_that_torch_gives_it():
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 2, 4)
    expected = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(float32_states(segment_of(bits)), expected)


def test_float32_states_are_what_is_stored():
    states = np.random.default_rng(0).standard_normal((3, 2, 4), np.float32)
    assert float32_states(segment_of(states)).tobytes() == states.tobytes()
    assert not saturated(segment_of(states)).any()


def test_each_token_and_layer_has_its_own_scale():
    one = int(np.flatnonzero(E4M3_VALUES == 1)[0])
    scales = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    found = float32_states(segment_of(np.full((3, 2, 4), one, np.uint8), scales))
    np.testing.assert_array_equal(found, np.broadcast_to(scales[..., None], (3, 2, 4)))


def test_the_largest_value_of_either_sign_is_saturated_and_no_other():
    bits = np.array([0x7E, 0xFE, 0x7D, 0x00], np.uint8).reshape(1, 1, 4)
    found = saturated(segment_of(bits, np.ones((1, 1), np.float32)))
    assert found.ravel().tolist() == [True, True, False, False]
