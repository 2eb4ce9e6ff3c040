"""Short real runs on the bundled demo target."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from dflash_cache import demo
from dflash_cache.config import ExtractConfig, TrainConfig


def extract_config(folder: Path, **changes) -> ExtractConfig:
    settings = {
        "data": demo.DATA,
        "target": str(demo.TARGET),
        "cache": folder / "cache",
        "devices": ("cpu",),
        "limit": 40,
        "segment_tokens": 1024,
        "batch_tokens": 1024,
        "codec": "crc32c",
    }
    return ExtractConfig(**settings | changes)


def train_config(folder: Path, **changes) -> TrainConfig:
    settings = {
        "cache": folder / "cache",
        "out": folder / "run",
        "device": "cpu",
        "draft_layers": 1,
        "block_size": 4,
        "anchors": 4,
        "batch_size": 3,
        "epochs": 2,
        "lr": 1e-3,
        "holdout": 6,
        "log_every": 1,
    }
    return TrainConfig(**settings | changes)


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    newest = max((run / "checkpoints").glob("step-*"))
    return load_file(newest / "model.safetensors")


def metrics(run: Path) -> list[dict[str, float]]:
    """The logged figures, without those that are times or sizes of memory."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    measured = {"tokens_per_s", "waiting_share", "memory_bytes"}
    return [
        {name: value for name, value in json.loads(line).items() if name not in measured}
        for line in lines
    ]


def assert_same_training(run: Path, other: Path) -> None:
    """Weights and logged losses are equal, bit for bit."""
    weights, others = final_weights(run), final_weights(other)
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []
    assert metrics(run) == metrics(other)
