"""Names of models: a hub id, such as ``Qwen/Qwen3-8B``, or a local folder."""

from pathlib import Path


def is_hub_id(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/")) and not Path(model).exists()


def shown_model(model: str) -> str:
    """A hub id whole, of a folder the last part of its path."""
    return model if is_hub_id(model) else Path(model).name or model
