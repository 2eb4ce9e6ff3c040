"""``torch.compile`` for a target's decoder layers."""

import torch
from torch import nn

from dflash_cache.errors import ConfigError

_FEW_TOKENS = 3  # enough to find that nothing can be compiled here


def compile_layers(decoder: nn.Module, layers: nn.ModuleList) -> None:
    """Compile each layer's forward pass, and try it on a few tokens.

    Layers of one kind share what is compiled. Their hooks, which capture states and may end the
    pass, stay outside. ``ConfigError`` if the compiler fails, as it does where there is no C++
    compiler, or none for the device.
    """
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    ids = torch.arange(1, 1 + _FEW_TOKENS).expand(2, -1)
    ids = ids.to(next(decoder.parameters()).device)
    try:
        with torch.inference_mode():
            for num_rows in (1, 2):  # a batch of one is compiled apart
                decoder(input_ids=ids[:num_rows], use_cache=False)
    except torch._dynamo.exc.TorchDynamoException as error:
        raise ConfigError(f"--compile: {error}. Leave it out to go without") from error
