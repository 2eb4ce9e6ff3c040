"""Each tested architecture as a target: its states, its embedding and head, and a drafter's shape.

Axes: T tokens, K layers, H hidden size.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.errors import ConfigError
from dflash_cache.target import LayerCapture, Target, TargetShape, require_decodable
from dflash_cache.target.model import as_array
from tests.support.architectures import (
    ARCHITECTURES,
    HIDDEN_SIZE,
    NOT_DECODED,
    NUM_LAYERS,
    REFUSED,
    VOCAB_SIZE,
    build,
)

LAYERS = (0, 2)
LENGTHS = (5, 23, 1, 12)  # one batch, padded to 23; windows have 4 tokens


@torch.no_grad()
def oracle(model: nn.Module, layers: nn.ModuleList, ids: Sequence[int]) -> torch.Tensor:
    """States [T, K, H] of one row: run alone, unpadded, without a cache, by forward hooks."""
    caught = []
    handles = [
        layers[index].register_forward_hook(
            lambda _module, _arguments, output: caught.append(
                (output[0] if isinstance(output, tuple) else output)[0]
            )
        )
        for index in LAYERS
    ]
    model(input_ids=torch.tensor([ids]), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(caught, dim=1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_states_of_a_padded_batch_are_those_of_each_row_alone(name, tmp_path):
    architecture, model = ARCHITECTURES[name], build(name)
    layers = model.get_submodule(architecture.layers)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in LENGTHS]
    expected = [oracle(model, layers, row.tolist()) for row in rows]
    model.save_pretrained(tmp_path)
    target = Target.load(tmp_path, dtype="float32", device="cpu")
    capture = LayerCapture(target, LAYERS)
    found = torch.split(capture.hidden_states(rows), LENGTHS)
    bound = architecture.tolerance
    for row, (found_TKH, expected_TKH) in enumerate(zip(found, expected, strict=True)):
        error = (found_TKH - expected_TKH).abs().max()
        assert error <= bound * expected_TKH.abs().max(), f"row {row}"
    # One token of left padding would not pass.
    padded = oracle(model, layers, [3, *rows[1].tolist()])[1:]
    assert (padded - expected[1]).abs().max() > 10 * bound * expected[1].abs().max()
    assert target.shape.hybrid == ("hybrid" in architecture.kind)
    assert_parts(target, model)
    with raises_if(name in NOT_DECODED):
        require_decodable(capture)


def raises_if(refused: bool) -> AbstractContextManager[object]:
    return pytest.raises(ConfigError, match="with a cache") if refused else nullcontext()


def assert_parts(target: Target, model: nn.Module) -> None:
    """Embedding and head as the model has them, and a configuration that shapes a drafter."""
    parts = target.parts()
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    assert (parts.embedding == as_array(embedding)).all()
    assert (parts.head is None) == (head is embedding)
    assert parts.head is None or (parts.head == as_array(head)).all()
    drafter = DrafterConfig.for_target(
        parts.config,
        vocab_size=VOCAB_SIZE,
        num_layers=1,
        block_size=4,
        mask_token_id=3,
        target_layer_ids=LAYERS,
    )
    assert (drafter.hidden_size, drafter.num_target_layers) == (HIDDEN_SIZE, NUM_LAYERS)
    assert drafter.num_attention_heads == 4


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_a_target_is_refused_with_the_reason(name, tmp_path):
    architecture, message = REFUSED[name]
    build(name, architecture).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        Target.load(tmp_path, dtype="float32", device="cpu")
    assert "docs/reference/targets.md" in str(caught.value)


def test_a_model_with_an_encoder_is_refused_by_its_configuration(tmp_path):
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"t5 has an encoder.*docs/reference/targets\.md"):
        TargetShape.load(tmp_path, trust_remote_code=False)
