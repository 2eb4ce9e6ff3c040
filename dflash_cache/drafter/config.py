"""The drafter's shape, and its ``config.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen3Config

from dflash_cache.errors import ConfigError
from dflash_cache.run_files import EXPORT, RUN

from .speculators import FULL, SLIDING, from_speculators, is_speculators

__all__ = ["FULL", "SLIDING", "DrafterConfig", "default_target_layer_ids", "load_json"]


def default_target_layer_ids(num_target_layers: int, num_context_layers: int) -> tuple[int, ...]:
    """0-based decoder layers spread from layer 1 to the last but three (DFlash, arXiv 2602.06036).

    >>> default_target_layer_ids(36, 5)
    (1, 9, 17, 25, 33)
    """
    if num_context_layers == 1:
        return (num_target_layers // 2,)
    last = num_target_layers - 4
    ids = tuple(round(1 + i * last / (num_context_layers - 1)) for i in range(num_context_layers))
    if last < 0 or len(set(ids)) != len(ids):
        raise ConfigError(
            f"a target of {num_target_layers} layers has no {num_context_layers} distinct default "
            "context layers; name them with --target-layers, such as --target-layers 0,1"
        )
    return ids


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterConfig:
    """Everything that shapes the drafter. Checked on construction (``ValueError``)."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    layer_types: tuple[str, ...]
    sliding_window: int | None = None
    is_causal: bool | None = None
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"{self.num_hidden_layers} layers need as many layer_types")
        if SLIDING in self.layer_types and not self.sliding_window:
            raise ValueError("sliding_attention layers need sliding_window")
        if tuple(sorted(set(self.target_layer_ids))) != self.target_layer_ids:
            raise ValueError(f"target_layer_ids must ascend: {self.target_layer_ids}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the embedding")

    @classmethod
    def for_target(
        cls,
        text: Mapping[str, Any],
        *,
        vocab_size: int,
        num_layers: int,
        block_size: int,
        mask_token_id: int,
        target_layer_ids: tuple[int, ...],
    ) -> "DrafterConfig":
        """A drafter of ``num_layers`` full-attention layers in the shape of the target's own.

        ``text`` is the target's text configuration with every value written out; ``vocab_size``
        the number of rows of its embedding. A partial rotary factor is not taken over, nor are
        the few wide heads of hybrid targets.
        """
        rope = text.get("rope_parameters") or {}
        rope = rope.get(FULL, rope)  # some targets have one set for each kind of layer
        hidden = text["hidden_size"]
        heads, key_value_heads, head_dim = _heads_for(text)
        return cls(
            hidden_size=hidden,
            intermediate_size=text.get("intermediate_size") or 3 * hidden,
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            max_position_embeddings=text["max_position_embeddings"],
            rms_norm_eps=text.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or text.get("rope_theta") or 10000.0),
            block_size=block_size,
            mask_token_id=mask_token_id,
            target_layer_ids=target_layer_ids,
            num_target_layers=text["num_hidden_layers"],
            layer_types=(FULL,) * num_layers,
            bos_token_id=text.get("bos_token_id"),
            eos_token_id=text.get("eos_token_id"),
        )

    def layer_visibility(self, layer: int) -> tuple[bool, int | None]:
        """(causal inside the block, window in tokens or None) of drafter layer ``layer``."""
        sliding = self.layer_types[layer] == SLIDING
        causal = sliding if self.is_causal is None else self.is_causal
        return causal, self.sliding_window if sliding else None

    def qwen3(self) -> Qwen3Config:
        """The same shape for transformers' Qwen3 parts."""
        return Qwen3Config(**self._qwen3_keys())

    def _qwen3_keys(self) -> dict[str, Any]:
        return {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": self.max_position_embeddings,
            "max_window_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": False,
            "use_cache": True,
            # False beside sliding layers would silently drop the window.
            "use_sliding_window": SLIDING in self.layer_types,
            "vocab_size": self.vocab_size,
        }

    def to_json(self, dtype: str) -> dict[str, Any]:
        """The ``config.json`` that z-lab's package, vLLM and SGLang read.

        ``rope_theta`` stands beside ``rope_parameters``: transformers 5 reads one, the serving
        engines the other.
        """
        config = self._qwen3_keys() | {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": dtype,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
        }
        if self.is_causal is not None:
            config["is_causal"] = self.is_causal
        return config

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> "DrafterConfig":
        """Read a ``config.json`` in z-lab's layout or that of speculators.

        ``ConfigError`` names a missing key.
        """
        try:
            if is_speculators(config):
                config = from_speculators(config)
            nested = config.get("dflash_config", {})
            rope = config.get("rope_parameters") or {}
            return cls(
                block_size=nested.get("block_size", config.get("block_size", 16)),
                mask_token_id=nested["mask_token_id"]
                if "mask_token_id" in nested
                else config["mask_token_id"],
                target_layer_ids=tuple(
                    nested.get("target_layer_ids") or config["target_layer_ids"]
                ),
                rope_theta=float(config.get("rope_theta") or rope["rope_theta"]),
                layer_types=tuple(
                    config.get("layer_types") or [FULL] * config["num_hidden_layers"]
                ),
                sliding_window=config.get("sliding_window"),
                is_causal=config.get("is_causal"),
                initializer_range=config.get("initializer_range", 0.02),
                bos_token_id=config.get("bos_token_id"),
                eos_token_id=config.get("eos_token_id"),
                **{name: config[name] for name in _REQUIRED},
            )
        except KeyError as error:
            raise ConfigError(f"the drafter's config.json lacks {error}") from error

    @classmethod
    def load(cls, folder: Path, *, num_target_layers: int | None = None) -> "DrafterConfig":
        """Of a drafter's folder; ``num_target_layers`` stands in where the file has none."""
        content = load_json(folder)
        if num_target_layers is not None:
            content = {"num_target_layers": num_target_layers} | content
        try:
            return cls.from_json(content)
        except (ConfigError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder / 'config.json'}: {error}") from error


def _heads_for(text: Mapping[str, Any]) -> tuple[int, int, int]:
    """Query heads, key-value heads and their size, for a drafter of the target ``text``."""
    heads = text["num_attention_heads"]
    head_dim = text.get("head_dim") or text["hidden_size"] // heads
    if "linear_attention" in (text.get("layer_types") or ()) and head_dim > 128:
        return 32, 8, 128  # as in the published drafter of Qwen3.6-27B, which has 24, 4, 256
    return heads, text.get("num_key_value_heads") or heads, head_dim


def load_json(folder: Path) -> dict[str, Any]:
    """The content of ``folder``'s ``config.json``, in either layout."""
    path = folder / "config.json"
    if not path.is_file():
        remedy = "give the export folder of a training run (RUN/export)"
        if (run := folder.parent / RUN).is_file() and folder.name == EXPORT:
            remedy = (
                "its training has not ended. Let it, or export a checkpoint with: "
                f"dflash-cache export {run.parent} --out D"
            )
        raise ConfigError(f"{folder} is no drafter: it has no config.json; {remedy}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected one object of settings")
    return content


_REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "num_target_layers",
)
