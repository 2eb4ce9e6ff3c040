"""A model on its devices: one, or several that share its decoder layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def place(
    model: nn.Module, decoder: nn.Module, layers: nn.ModuleList, devices: Sequence[str]
) -> None:
    """Move each device's share of ``layers`` to it, in order, and all else to the first.

    No device ever holds more than its own. What the decoder hands to a layer, or to a part of its
    own such as the final norm, is moved to where that is.
    """
    if len(devices) == 1:
        model.to(devices[0])
        return
    device_of: dict[nn.Module, str] = {}
    for index, layer in enumerate(layers):
        device = devices[index * len(devices) // len(layers)]
        device_of |= dict.fromkeys(layer.modules(), device)
    for module in model.modules():
        _move_own(module, device_of.get(module, devices[0]))
    for module in [*layers, *(each for each in decoder.children() if each is not layers)]:
        _bring_arguments(module, device_of.get(module, devices[0]))


def _move_own(module: nn.Module, device: str) -> None:
    module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]


def _bring_arguments(module: nn.Module, device: str) -> None:
    module.register_forward_pre_hook(
        lambda _module, arguments, named: _moved((arguments, named), device), with_kwargs=True
    )


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return value
