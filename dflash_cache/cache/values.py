"""Stored hidden states as numbers, without torch. Axes: T tokens, K layers, H hidden size."""

import numpy as np
import numpy.typing as npt

from dflash_cache.types import Array, HiddenSegment

LARGEST_CODE = 0x7E  # 448, the sign aside


def _e4m3_values() -> npt.NDArray[np.float32]:
    """The value of each byte: a sign, four bits of exponent (bias 7), three of mantissa.

    Exponent 0 is subnormal; both signs of 0x7f are NaN; there is no infinity (OCP 8-bit floating
    point specification, E4M3).
    """
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(
        exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0**-6
    )
    magnitude[codes & 127 == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


E4M3_VALUES = _e4m3_values()


def float32_states(segment: HiddenSegment) -> npt.NDArray[np.float32]:
    """The states [T, K, H] of ``segment`` as float32."""
    states: Array = segment.hidden_TKH
    if segment.scales_TK is not None:
        return E4M3_VALUES[states] * segment.scales_TK[..., None]
    if states.dtype == np.uint16:  # bfloat16 is the upper half of float32
        return (states.astype(np.uint32) << 16).view(np.float32)
    return states


def saturated(segment: HiddenSegment) -> npt.NDArray[np.bool_]:
    """Which states [T, K, H] are stored as the largest 8-bit value; none where there are none."""
    if segment.scales_TK is None:
        return np.zeros(segment.hidden_TKH.shape, np.bool_)
    codes: Array = segment.hidden_TKH & 127
    return np.equal(codes, LARGEST_CODE)
