"""The warning of slow kernels. The packages that have fast ones run on CUDA only."""

import warnings
from importlib.util import find_spec

import pytest

from dflash_cache.target.kernels import missing_kernels, warn_of_slow_kernels
from tests.support.architectures import build

FAST = {
    "qwen3_5_text": {"causal-conv1d": "causal_conv1d", "flash-linear-attention": "fla"},
    "falcon_h1": {"causal-conv1d": "causal_conv1d", "mamba-ssm": "mamba_ssm"},
    "jamba": {"causal-conv1d": "causal_conv1d", "mamba-ssm": "mamba_ssm"},
    "lfm2": {"causal-conv1d": "causal_conv1d"},
    "qwen3": {},
}


@pytest.mark.parametrize("name", FAST)
def test_the_kernels_that_a_target_could_have_are_named_if_absent(name):
    absent = [each for each, package in FAST[name].items() if find_spec(package) is None]
    assert missing_kernels(build(name).model.layers) == absent


def test_a_hybrid_target_on_cuda_without_its_kernels_gets_a_warning_with_the_remedy(monkeypatch):
    monkeypatch.setattr("dflash_cache.target.kernels.find_spec", lambda _package: None)
    layers = build("qwen3_5_text").model.layers
    remedy = "pip install causal-conv1d flash-linear-attention"
    with pytest.warns(UserWarning, match=f"SLOW TARGET.*{remedy}"):
        warn_of_slow_kernels(layers, "cuda:0")
    with warnings.catch_warnings():  # nothing to gain on the CPU, or for a dense target
        warnings.simplefilter("error")
        warn_of_slow_kernels(layers, "cpu")
        warn_of_slow_kernels(build("qwen3").model.layers, "cuda:0")
