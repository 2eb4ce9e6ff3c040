"""Where a batch's hidden states land on the host, in the form in which they are stored.

Axes: T tokens, K context layers, H hidden size.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_cache.cache import CacheSpec
from dflash_cache.types import Array

from .model import as_array
from .quantization import quantize

MOST_UNDER_WAY = 2  # copies of one stream; a batch's states stay on the device until theirs is done


class CopyStream:
    """Copies a target's states to pinned memory while the next forward pass runs.

    On the CPU a copy is done at once. Not thread-safe: a target worker has one.
    """

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        self._under_way: deque[torch.cuda.Event] = deque()

    def wait_for_room(self) -> None:
        """Before a forward pass: those before the last copy are done, and their states gone."""
        while len(self._under_way) >= MOST_UNDER_WAY:
            self._under_way.popleft().synchronize()

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event | None:
        """Fill the first of each pair with the second; the event says when, None that it is."""
        if self._stream is None:
            for place, tensor in pairs:
                place.copy_(tensor)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for place, tensor in pairs:
                place.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._stream)
        # Who waits for it sleeps, and leaves the core to others.
        event: torch.cuda.Event = self._stream.record_event(
            torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        )
        self._under_way.append(event)
        return event


@dataclass(frozen=True, kw_only=True, slots=True)
class StagingBuffer:
    """Room for the longest batch; a batch fills its first tokens."""

    hidden_TKH: torch.Tensor  # float32, bfloat16 or, with scales, float8_e4m3fn
    scales_TK: torch.Tensor | None  # float32
    extremes: torch.Tensor  # float32: least and largest state; NaN and infinity show in them

    @classmethod
    def allocate(cls, spec: CacheSpec, num_tokens: int, *, pinned: bool) -> "StagingBuffer":
        """``pinned`` where a CUDA device copies into it."""
        shape = (num_tokens, spec.num_states, spec.hidden_size)
        dtype = getattr(torch, spec.logical_dtype)
        return cls(
            hidden_TKH=torch.empty(shape, dtype=dtype, pin_memory=pinned),
            scales_TK=torch.empty(shape[:2], pin_memory=pinned) if spec.quantized else None,
            extremes=torch.empty(2, pin_memory=pinned),
        )

    def fill(self, states_TKH: torch.Tensor, copies: CopyStream) -> torch.cuda.Event | None:
        """Take a batch's states from the target's device; what is to be 8 bits crosses as such.

        Returns as ``CopyStream.copy``.
        """
        num_tokens = len(states_TKH)
        pairs = [(self.extremes, torch.stack(torch.aminmax(states_TKH)))]
        if self.scales_TK is not None:
            states_TKH, scales_TK = quantize(states_TKH)
            pairs.append((self.scales_TK[:num_tokens], scales_TK))
        return copies.copy([*pairs, (self.hidden_TKH[:num_tokens], states_TKH)])

    def faults(self, num_tokens: int) -> torch.Tensor | None:
        """Where the first ``num_tokens`` states are not finite, bool [T, K]; None if nowhere."""
        if bool(torch.isfinite(self.extremes).all()):
            return None
        if self.scales_TK is not None:  # such a state has such a scale
            return ~torch.isfinite(self.scales_TK[:num_tokens])
        return ~torch.isfinite(self.hidden_TKH[:num_tokens]).all(-1)

    def keep(self, lengths: Sequence[int], kept: Sequence[bool]) -> int:
        """Of sequences end to end leave those to be ``kept``. Returns the tokens left."""
        kept_T = torch.tensor(kept).repeat_interleave(torch.tensor(lengths))
        for tensor in (self.hidden_TKH, self.scales_TK):
            if tensor is not None:
                left = tensor[: len(kept_T)][kept_T]
                tensor[: len(left)] = left
        return int(kept_T.sum())

    def arrays(self, num_tokens: int) -> tuple[Array, Array | None]:
        """Views of the first ``num_tokens`` states, as the cache stores them, and their scales."""
        scales_TK = None if self.scales_TK is None else self.scales_TK[:num_tokens].numpy()
        return as_array(self.hidden_TKH[:num_tokens]), scales_TK
