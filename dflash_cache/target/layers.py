"""Where a model keeps its decoder layers, and whether they can be a target's.

Axes: L padded length, H hidden size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dflash_cache.errors import ConfigError

LAYER_LISTS = ("layers", "h", "blocks")
# Of a state's norm. Rounding stays below it in one layer; another token of three does not.
_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def find_layers(model: nn.Module, num_layers: int) -> tuple[nn.Module, nn.ModuleList]:
    """The decoder of ``model``, and its layers; ``ConfigError`` if there are no ``num_layers``.

    The decoder is the module that runs the layers: it ends before any logits.
    """
    decoder: nn.Module = model.get_decoder()  # type: ignore[operator]
    # Some classes name a decoder that they lack, and give themselves.
    for owner in (decoder, getattr(decoder, "model", decoder)):
        for name in LAYER_LISTS:
            layers = getattr(owner, name, None)
            if isinstance(layers, nn.ModuleList) and len(layers) == num_layers:
                return owner, layers
    raise ConfigError(
        f"--target: {type(model).__name__} has no list of {num_layers} decoder layers "
        f"({', '.join(LAYER_LISTS)}), so it cannot be a target; see docs/reference/targets.md"
    )


@torch.inference_mode()
def require_causal(decoder: nn.Module, layers: nn.ModuleList) -> None:
    """``ConfigError`` unless each layer runs once, in order, and sees no later token.

    Three tokens are run twice, with another last one.
    """
    device = next(decoder.parameters()).device
    order, first = _run(decoder, layers, torch.tensor([[0, 1, 0]], device=device))
    name = type(decoder).__name__
    if order != list(range(len(layers))):
        raise ConfigError(
            f"--target: {name} ran its {len(layers)} decoder layers on text in the order {order}, "
            "not each once and one after the other; see docs/reference/targets.md"
        )
    _, other = _run(decoder, layers, torch.tensor([[0, 1, 1]], device=device))
    change = (first - other)[0, 1].float().norm() / first[0, 1].float().norm()
    if change > _ROUNDING[first.dtype]:
        raise ConfigError(
            f"--target: the states of {name} depend on later tokens, so it is no causal language "
            "model; see docs/reference/targets.md"
        )


def _run(
    decoder: nn.Module, layers: nn.ModuleList, input_ids: torch.Tensor
) -> tuple[list[int], torch.Tensor]:
    """The order in which the layers ran, and the first one's states [1, L, H]."""
    order: list[int] = []
    states: list[torch.Tensor] = []

    def hook(index: int) -> Callable[[nn.Module, Any, Any], None]:
        def note(_module: nn.Module, _arguments: Any, output: Any) -> None:
            order.append(index)
            if index == 0:
                states.append(state_of(output))

        return note

    handles = [each.register_forward_hook(hook(index)) for index, each in enumerate(layers)]
    try:
        decoder(input_ids=input_ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return order, states[0] if states else torch.empty(0)


def state_of(output: Any) -> torch.Tensor:
    """The states in a decoder layer's output: some layers give a tuple that starts with them."""
    state: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return state
