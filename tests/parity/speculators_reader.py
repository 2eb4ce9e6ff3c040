"""Reads exports with the speculators library and prints what it found, as JSON.

A program of its own: the library and what it imports lie in a folder that only it sees. Each
argument is a folder of: an export in the speculators layout (``theirs``), the same in the
transformers layout (``ours``), the target, and ``block.pt``: features, block embeddings and our
hidden states.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.convert.dflash.converter import DFlashConverter
from speculators.models.dflash import DFlashDraftModel
from transformers import PreTrainedModel


def loading_report(folder: Path) -> dict[str, list[str]]:
    """What transformers reports while it loads ``folder`` as the library's model."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    load = PreTrainedModel.from_pretrained.__func__  # the library's own drops the report
    _, report = load(DFlashDraftModel, folder, config=config, output_loading_info=True)
    return {name: sorted(map(str, keys)) for name, keys in report.items()}


@torch.no_grad()
def block_difference(folder: Path) -> float:
    """The largest difference of one block's hidden states from ours, all slots seeing all."""
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    block = torch.load(folder.parent / "block.pt")
    context = model.hidden_norm(model.fc(block["features"].flatten(1)[None]))
    hidden = block["embeddings"][None]
    positions = torch.arange(context.shape[1] + hidden.shape[1])[None]
    rope = model.rotary_emb(hidden, positions)
    for layer in model.layers:
        hidden = layer(hidden_states=hidden, target_hidden=context, position_embeddings=rope)
    return float((model.norm(hidden)[0] - block["expected"]).abs().max())


def read(folder: Path) -> dict[str, object]:
    theirs, target = folder / "theirs", str(folder / "target")
    weights = load_file(theirs / "model.safetensors")
    model = SpeculatorModel.from_pretrained(theirs)
    loaded = model.state_dict()
    source = json.loads((folder / "ours" / "config.json").read_text())
    return {
        "report": loading_report(theirs),
        "equal": all(torch.equal(loaded[name], weights[name]) for name in weights),
        "extra": sorted(set(loaded) - set(weights)),
        "nan": [name for name, value in loaded.items() if value.isnan().any()],
        "dtypes": sorted({str(value.dtype) for value in loaded.values()}),
        "config": model.config.to_dict(),
        "converted": DFlashConverter()._build_config(source, target, None).to_dict(),
        "block_difference": block_difference(theirs),
        "block_size": model.block_size,
        "mask_token_id": model.mask_token_id,
        "sliding_layers": model.sliding_window_indices,
        "window": model.sliding_window,
    }


if __name__ == "__main__":
    found = {Path(argument).name: read(Path(argument)) for argument in sys.argv[1:]}
    sys.stdout.write(json.dumps(found, default=str) + "\n")
