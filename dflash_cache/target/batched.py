"""Several sequences that are decoded in one pass of a target.

Axes: N sequences, W columns of the cache, T new tokens, K context layers, H hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicLayer

from .capture import LayerCapture
from .decoding import Output, TargetDecoder, run_target


class BatchedDecoder:
    """The decoding state of several sequences of a target whose layers are all attention.

    The last token of every sequence stands in the cache's last column, and what is left of its
    first token is masked. So the distance of two columns is that of their tokens, also where a
    layer sees a window only. Every layer keeps all columns.
    """

    def __init__(self, capture: LayerCapture) -> None:
        if capture.target.shape.hybrid:
            raise ValueError("a recurrent state has no columns")
        self._capture = capture
        self._device = capture.target.device
        self._lengths: list[int] = []  # tokens of each sequence, those of the last pass included
        self._past = 0  # columns before the last pass
        self._past_lengths: list[int] = []

    @torch.inference_mode()
    def forward(self, input_ids: Sequence[Sequence[int]]) -> list[Output]:
        """Append each sequence's ids, of any length; the first call takes the prompts."""
        if not self._lengths:
            return self._prefill(input_ids)
        counts = [len(ids) for ids in input_ids]
        most = max(counts)
        # Padding stands behind the new tokens, which do not see it; a token's own copy, as
        # another token's state might not be finite.
        padded = [[*ids, *[ids[-1]] * (most - len(ids))] for ids in input_ids]
        lengths = torch.tensor(self._lengths)[:, None]
        columns = torch.arange(self._past + most)
        logits, states = run_target(
            self._capture,
            torch.tensor(padded),
            self._cache,
            attention_mask=(columns >= self._past - lengths).long().to(self._device),
            position_ids=(lengths + torch.arange(most)).to(self._device),
        )
        self._past_lengths = self._lengths
        self._lengths = [a + b for a, b in zip(self._lengths, counts, strict=True)]
        return [(logits[row, :count], states[row, :count]) for row, count in enumerate(counts)]

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Output]:
        """Each prompt alone: padding before it would be queries that see nothing."""
        decoders = [TargetDecoder(self._capture) for _ in prompts]
        outputs = [
            decoder.forward([prompt])[0] for decoder, prompt in zip(decoders, prompts, strict=True)
        ]
        self._lengths = self._past_lengths = [len(prompt) for prompt in prompts]
        self._past = max(self._lengths)
        layers: list[Any] = []
        for alone in zip(*(decoder.cache.layers for decoder in decoders), strict=True):
            layer = DynamicLayer()  # type: ignore[no-untyped-call]
            layer.update(
                _aligned([each.keys for each in alone], self._past),
                _aligned([each.values for each in alone], self._past),
            )
            layers.append(layer)
        self._layers, self._cache = layers, Cache(layers=layers)
        return outputs

    def crop(self, num_tokens: Sequence[int]) -> None:
        """Forget everything after each sequence's first ``num_tokens`` tokens."""
        ends = [
            self._past + length - past
            for length, past in zip(num_tokens, self._past_lengths, strict=True)
        ]
        self._lengths = list(num_tokens)
        self._arrange(list(range(len(ends))), ends)

    def keep(self, indices: Sequence[int]) -> None:
        """Forget the other sequences."""
        self._lengths = [self._lengths[index] for index in indices]
        self._arrange(indices, [self._past] * len(indices))

    def _arrange(self, indices: Sequence[int], ends: Sequence[int]) -> None:
        """Keep the sequences of ``indices``, the last token of each in the column before its end.

        Columns before a sequence's first token are masked: what is copied there does not matter.
        """
        width = max(self._lengths)
        columns = (torch.tensor(ends)[:, None] - width + torch.arange(width)).clamp(min=0)
        columns = columns[:, None, :].to(self._device)
        rows = torch.tensor(indices, device=self._device)[:, None, None]
        for layer in self._layers:
            heads = torch.arange(layer.keys.shape[1], device=self._device)[None, :, None]
            layer.keys = layer.keys[rows, heads, columns]
            layer.values = layer.values[rows, heads, columns]
        self._past, self._past_lengths = width, self._lengths


def _aligned(states: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """[1, heads, own columns, size] of each sequence as [N, heads, W, size], zeros before."""
    return torch.cat(
        [torch.nn.functional.pad(own, (0, 0, width - own.shape[-2], 0)) for own in states]
    )
