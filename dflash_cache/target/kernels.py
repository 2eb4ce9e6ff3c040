"""Whether a target's recurrent layers have fast kernels, or reference ones that are far slower."""

import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec

from torch import nn

# Reference functions in the modelling code of transformers, by the package that has a fast one.
_FUNCTIONS = {
    "torch_chunk_gated_delta_rule": "fla",
    "chunk_kimi_delta_attention": "fla",
    "causal_conv1d_fn": "causal_conv1d",
    "mamba2_chunk_scan": "mamba_ssm",
    "mamba_selective_scan": "mamba_ssm",
}
_DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
}


def missing_kernels(layers: Iterable[nn.Module]) -> list[str]:
    """The distributions that ``layers`` would be much faster with and that are not installed."""
    modules = [sys.modules[name] for name in {type(each).__module__ for each in layers}]
    packages = {
        package
        for function, package in _FUNCTIONS.items()
        if any(hasattr(module, function) for module in modules)
    }
    return sorted(_DISTRIBUTIONS[each] for each in packages if find_spec(each) is None)


def warn_of_slow_kernels(layers: Iterable[nn.Module], device: str) -> None:
    """Warn, with the remedy, if a CUDA device will run without kernels that it could have."""
    missing = missing_kernels(layers) if "cuda" in device else []
    if missing:
        warnings.warn(
            f"SLOW TARGET: its recurrent layers run on reference code, several times slower, as "
            f"{' and '.join(missing)} cannot be imported. Stop, run `pip install "
            f"{' '.join(missing)}` and start again; what is extracted so far is kept",
            stacklevel=2,
        )
