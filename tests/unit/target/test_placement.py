"""One target over several devices."""

import pytest
import torch

from dflash_cache.errors import ConfigError
from dflash_cache.runs.devices import target_devices
from dflash_cache.target import LayerCapture, Target
from dflash_cache.target.layers import find_layers
from dflash_cache.target.placement import place
from tests.support.architectures import build


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "qwen3_5"])
def test_a_target_over_two_devices_gives_the_states_of_one(name, tmp_path):
    build(name).save_pretrained(tmp_path)
    rows = [torch.arange(3, 3 + length) for length in (7, 19)]
    one, two = (
        LayerCapture(Target.load(tmp_path, dtype="float32", device=device), (0, 2, 3))
        for device in ("cpu", "cpu+cpu")
    )
    assert torch.equal(one.hidden_states(rows), two.hidden_states(rows))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "qwen3_5"])
def test_layers_go_to_their_devices_in_order_and_their_arguments_follow(name):
    """The meta device stands for one that holds no part of the other's memory."""
    model = build(name)
    decoder, layers = find_layers(model, 4)
    place(model, decoder, layers, ["cpu", "meta"])
    assert [next(each.parameters()).device.type for each in layers] == ["cpu"] * 2 + ["meta"] * 2
    assert model.get_input_embeddings().weight.device.type == "cpu"
    assert model.get_output_embeddings().weight.device.type == "cpu"
    tied = model.config.get_text_config().tie_word_embeddings
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    devices = []
    for layer in layers:
        layer.register_forward_hook(
            lambda _module, _arguments, output: devices.append(
                (output[0] if isinstance(output, tuple) else output).device.type
            )
        )
    with pytest.raises(NotImplementedError, match="meta"):  # the norm is on the CPU again
        decoder(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False)
    assert devices == ["cpu", "cpu", "meta", "meta"]


def test_each_device_of_a_group_is_checked():
    assert target_devices(("cpu+cpu", "cpu")) == ("cpu+cpu", "cpu")
    with pytest.raises(ConfigError, match="cuda:77"):
        target_devices(("cpu+cuda:77",))
