"""``--compile``: the same states from compiled layers."""

from functools import partial

import pytest
import torch

from dflash_cache.errors import ConfigError
from dflash_cache.target import LayerCapture, Target
from dflash_cache.target.compilation import compile_layers
from tests.support.tiny_targets import save_target

LAYERS = (1, 4, 6)


def states(target, sequences):
    capture = LayerCapture(target, LAYERS)
    try:
        return capture.hidden_states(sequences)
    finally:
        capture.close()


def assert_same_states(folder):
    sequences = [torch.arange(1, 1 + length) for length in (30, 47, 5)]
    plain = states(Target.load(folder, dtype="float32", device="cpu"), sequences)
    compiled = states(Target.load(folder, dtype="float32", device="cpu", compiled=True), sequences)
    # Fused operations round otherwise.
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_traced_layers_give_the_states_of_the_others(kind, tmp_path, monkeypatch):
    """Without the compiler behind the tracing, which takes half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert_same_states(save_target(tmp_path, kind))


@pytest.mark.torture
# What torch's compiler imports of torch warns on import.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "qwen3_moe", "qwen3_5"])
def test_compiled_layers_give_the_states_of_the_others(kind, tmp_path):
    assert_same_states(save_target(tmp_path, kind))


def test_a_compiler_that_fails_is_named_before_any_work(tmp_path, monkeypatch):
    target = Target.load(save_target(tmp_path), dtype="float32", device="cpu")

    def broken(*_arguments, **_settings):
        raise torch._dynamo.exc.BackendCompilerFailed(broken, RuntimeError("no g++"), None)

    monkeypatch.setattr(torch, "compile", lambda forward, dynamic: broken)
    with pytest.raises(ConfigError, match=r"(?s)--compile: .*no g\+\+.*Leave it out to go without"):
        compile_layers(target.decoder, target.layers)
