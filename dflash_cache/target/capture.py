"""Hidden states of chosen decoder layers, from a forward pass that stops after the last of them.

Axes: N sequences, L padded length, T tokens, K context layers, H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .layers import state_of
from .model import Target

_LAST = -1  # in place of a layer's id: the head's input, after the final norm


class _LastLayerDone(Exception):
    """Leaves the forward pass: the layers after the last wanted one would be thrown away."""


@dataclass(slots=True)
class _Capture:
    """What one thread's forward pass collects."""

    stop_after: int | None
    check: Callable[[], None]
    states: dict[int, torch.Tensor] = field(default_factory=dict)


# Workers may share one model's weights, and so its hooks: each thread sees its own capture.
_current: ContextVar[_Capture | None] = ContextVar("capture", default=None)


class LayerCapture:
    """Hooks on a target's decoder layers. The state of layer i is its raw residual output.

    ``output_hidden_states`` is not used: its last entry is after the final norm.
    """

    def __init__(
        self, target: Target, layer_ids: Sequence[int], *, keep_last: bool = False
    ) -> None:
        """``keep_last``: ``hidden_states`` ends with the head's input, after the final norm."""
        self.target = target
        self._keep_last = keep_last
        self.layer_ids = tuple(layer_ids)
        self._handles = [
            layer.register_forward_hook(self._hook(index))
            for index, layer in enumerate(target.layers[: self.layer_ids[-1] + 1])
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        wanted = index in self.layer_ids

        def hook(_module: nn.Module, _arguments: Any, output: Any) -> None:
            capture = _current.get()
            if capture is None:
                return
            capture.check()
            if wanted:
                # A target over several devices gives states on each of them.
                capture.states[index] = state_of(output).to(self.target.device)
            if index == capture.stop_after:
                raise _LastLayerDone

        return hook

    @contextmanager
    def recording(
        self, *, stop: bool = False, check: Callable[[], None] = lambda: None
    ) -> Iterator[dict[int, torch.Tensor]]:
        """Collect states [N, L, H] by layer id from forward passes of this thread.

        With ``stop`` the pass ends after the last wanted layer. ``check`` is called at every layer
        and may raise to abandon the pass.
        """
        capture = _Capture(self.layer_ids[-1] if stop else None, check)
        token = _current.set(capture)
        try:
            yield capture.states
        except _LastLayerDone:
            pass
        finally:
            _current.reset(token)

    @torch.inference_mode()
    def hidden_states(
        self, sequences: Sequence[torch.Tensor], check: Callable[[], None] = lambda: None
    ) -> torch.Tensor:
        """States [T, K, H] of ``sequences`` (ids [length] each) end to end, on the target's device.

        Sequences are padded on the right, where a causal model cannot see, and need no mask; the
        padding's states are left out. With ``keep_last`` K is one more and no layer is left out.
        """
        lengths = [len(ids) for ids in sequences]
        longest = max(lengths)
        # Each sequence is padded with a token of its own: attention multiplies padding by 0, and
        # another token's state, if it is not finite, would spoil this one's.
        padded = torch.stack(
            [torch.cat([ids, ids[-1:].expand(longest - len(ids))]) for ids in sequences]
        )
        if self.target.device.type == "cuda":  # from other memory a copy waits for the pass before
            padded = padded.pin_memory()
        ids = padded.to(self.target.device, non_blocking=True)
        with self.recording(stop=not self._keep_last, check=check) as states:
            output = self.target.decoder(input_ids=ids, use_cache=False)
            states[_LAST] = output.last_hidden_state
            del output
        wanted = [*self.layer_ids, _LAST] if self._keep_last else self.layer_ids
        return _interleaved([states.pop(index) for index in wanted], lengths)


def _interleaved(layers_NLH: list[torch.Tensor], lengths: list[int]) -> torch.Tensor:
    """[T, K, H] of the sequences. The list is emptied on the way, for a long batch is large.

    So at no time is more in memory than the states twice.
    """
    shape = (sum(lengths), len(layers_NLH), layers_NLH[0].shape[-1])
    found_TKH = layers_NLH[0].new_empty(shape)
    for number in reversed(range(len(layers_NLH))):
        layer_NLH, start = layers_NLH.pop(), 0
        for row, length in enumerate(lengths):
            found_TKH[start : start + length, number] = layer_NLH[row, :length]
            start += length
    return found_TKH
