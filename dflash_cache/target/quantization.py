"""Hidden states in 8 bits: e4m3 values with one scale for each token and layer.

Axes: T tokens, K context layers, H hidden size.
"""

import torch

LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448
PIECE_TOKENS = 1024  # bounds the float32 copies on the device


def quantize(states_TKH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``states_TKH`` as float8_e4m3fn [T, K, H] and float32 scales [T, K].

    A state is about its value times its scale. The scale maps the largest magnitude of a token's
    layer to 448, the largest of e4m3; where that is 0, or too small for a scale, it is 1. Where a
    state is not finite the scale is not.
    """
    scales_TK = torch.linalg.vector_norm(states_TKH, torch.inf, -1, dtype=torch.float32) / LARGEST
    scales_TK = torch.where(scales_TK == 0, 1.0, scales_TK)
    values_TKH = torch.empty_like(states_TKH, dtype=torch.float8_e4m3fn)
    for start in range(0, len(states_TKH), PIECE_TOKENS):
        piece = slice(start, start + PIECE_TOKENS)
        # Rounding of the scale may carry the largest value past 448, which is NaN in e4m3fn.
        scaled = (states_TKH[piece].float() / scales_TK[piece, :, None]).clamp(-LARGEST, LARGEST)
        values_TKH[piece] = scaled.to(torch.float8_e4m3fn)
    return values_TKH, scales_TK
