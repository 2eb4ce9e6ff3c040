"""A target that decodes with a key-value cache and gives its hidden states beside the logits."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import DynamicCache, GenerationConfig

from .capture import LayerCapture


class TargetDecoder:
    """One sequence's decoding state. Dense targets only: a recurrent state cannot be cropped."""

    def __init__(self, capture: LayerCapture) -> None:
        self._capture = capture
        self._target = capture.target
        self._cache = DynamicCache(config=self._target.model.config)  # type: ignore[arg-type]
        self._cache.activate_past_recording()  # type: ignore[no-untyped-call]
        # transformers renamed the argument; models with code of their own keep the old name.
        parameters = inspect.signature(self._target.model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @torch.inference_mode()
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``input_ids`` [T]: logits [T, vocabulary] and hidden states [T, K, H]."""
        with self._capture.recording() as states:
            output = self._target.model(
                input_ids[None].to(self._target.device),
                use_cache=True,
                **{self._cache_argument: self._cache},
            )
        layers = [states[index][0] for index in self._capture.layer_ids]
        return output.logits[0], torch.stack(layers, dim=1)

    def crop(self, num_tokens: int) -> None:
        """Forget everything after the first ``num_tokens`` tokens."""
        surplus = self._cache.get_seq_length() - num_tokens
        if surplus:
            self._cache.crop(-surplus)


def stop_token_ids(folder: Path) -> Sequence[int]:
    """The end-of-sequence ids of the target's generation configuration."""
    if not (folder / "generation_config.json").is_file():
        return ()
    eos = GenerationConfig.from_pretrained(folder).eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
