"""The bundled demo: the settings that ``both`` has when it is told nothing."""

from pathlib import Path
from typing import Any

from dflash_cache import demo

FOLDER = Path("dflash-demo")


def demo_settings() -> dict[str, Any]:
    """Settings for two laptop cores: the whole path in a few minutes."""
    return {
        "data": demo.DATA,
        "target": str(demo.TARGET),
        "cache": FOLDER / "cache",
        "out": FOLDER / "run",
        "evaluate": True,
        "device": "cpu",
        "devices": ("cpu",),
        "codec": "crc32c",  # two cores have better things to do than to compress
        "segment_tokens": 4096,
        "batch_tokens": 4096,
        "draft_layers": 2,
        "block_size": 8,
        "anchors": 48,
        "steps": 400,
        "lr": 2e-3,
        "save_every": 100,
    }
