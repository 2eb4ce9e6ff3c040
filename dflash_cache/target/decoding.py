"""A target that decodes with a key-value cache and gives its hidden states beside the logits.

Axes: T tokens, K context layers, H hidden size.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Cache, DynamicCache, GenerationConfig

from dflash_cache.errors import ConfigError

from .capture import LayerCapture

_ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # share of the norm of logits
Output = tuple[torch.Tensor, torch.Tensor]  # logits [T, vocabulary] and hidden states [T, K, H]


class TargetDecoder:
    """The decoding state of one sequence.

    Keys and values can be cropped; the recurrent state of linear attention cannot. Of a target
    that has such layers the state before a block is kept, and after a rejection it is restored
    and the accepted tokens are run again.
    """

    def __init__(self, capture: LayerCapture) -> None:
        self._capture = capture
        self._recurrent = capture.target.shape.hybrid
        self.cache: Cache = DynamicCache(config=capture.target.model.config)  # type: ignore[arg-type]
        if not self._recurrent:
            self.cache.activate_past_recording()  # type: ignore[no-untyped-call]
        self._num_tokens = 0
        self._before: list[dict[str, Any]] = []  # the state before the last block
        self._block: Sequence[int] = ()

    @torch.inference_mode()
    def forward(self, input_ids: Sequence[Sequence[int]]) -> list[Output]:
        """Append the only sequence's ids [T]."""
        (ids,) = input_ids
        if self._recurrent and self._num_tokens and len(ids) > 1:
            self._before, self._block = _snapshot(self.cache), ids
        self._num_tokens += len(ids)
        logits, states = run_target(self._capture, torch.tensor([list(ids)]), self.cache)
        return [(logits[0], states[0])]

    def crop(self, num_tokens: Sequence[int]) -> None:
        """Forget everything after the first ``num_tokens`` tokens, which the last block holds."""
        surplus = self._num_tokens - num_tokens[0]
        if not surplus:
            return
        self._num_tokens -= surplus
        if not self._recurrent:
            self.cache.crop(-surplus)
            return
        for layer, state in zip(self.cache.layers, self._before, strict=True):
            vars(layer).update(state)
        accepted = list(self._block[:-surplus])
        run_target(self._capture, torch.tensor([accepted]), self.cache)

    def keep(self, indices: Sequence[int]) -> None:
        """There is one sequence, and it is kept."""


@torch.inference_mode()
def run_target(
    capture: LayerCapture, input_ids: torch.Tensor, cache: Cache, **arguments: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Append ids [N, T] to ``cache``: logits [N, T, vocabulary], hidden states [N, T, K, H]."""
    target = capture.target
    arguments |= {"input_ids": input_ids.to(target.device)}
    with capture.recording() as states:
        output = target.model(
            use_cache=True, **{_cache_name(type(target.model).forward): cache}, **arguments
        )
    return output.logits, torch.stack([states[index] for index in capture.layer_ids], dim=2)


@torch.inference_mode()
def require_decodable(capture: LayerCapture) -> None:
    """``ConfigError`` unless a block behind a cache has the logits of a pass without a cache.

    Some recurrent layers of transformers start a block as if nothing were before it.
    """
    target = capture.target
    ids = [token % target.shape.vocab_size for token in range(3, 15)]
    decoder = TargetDecoder(capture)
    decoder.forward([ids[:6]])
    ((found, _),) = decoder.forward([ids[6:]])
    whole = torch.tensor([ids], device=target.device)
    expected = target.model(input_ids=whole, use_cache=False).logits[0, 6:].float()
    expected_norm = (expected - expected.mean()).norm()
    if (found.float() - expected).norm() > _ROUNDING[found.dtype] * expected_norm:
        raise ConfigError(
            f"--target {target.folder}: with a cache {type(target.model).__name__} computes other "
            "logits than without one, so decoding with it cannot be measured; extraction and "
            "training can use it. See docs/reference/targets.md"
        )


@functools.cache
def _cache_name(forward: Callable[..., Any]) -> str:
    """Transformers renamed the argument; models with code of their own keep the old name."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def _snapshot(cache: Cache) -> list[dict[str, Any]]:
    """What each layer holds.

    Keys and values are replaced when they grow, and need no copy; recurrent states, which stand
    in dictionaries, are written in place.
    """
    return [{name: _copied(value) for name, value in vars(layer).items()} for layer in cache.layers]


def _copied(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: each.clone() if isinstance(each, torch.Tensor) else each for key, each in value.items()
    }


def stop_token_ids(folder: Path) -> Sequence[int]:
    """The end-of-sequence ids of the target's generation configuration."""
    if not (folder / "generation_config.json").is_file():
        return ()
    eos = GenerationConfig.from_pretrained(folder).eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
