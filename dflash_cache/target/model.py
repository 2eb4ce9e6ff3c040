"""A frozen target: its shape, its weights, its decoder layers, its embedding and head."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers.utils import logging as transformers_logging

from dflash_cache.cache import TargetParts
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.types import Array, DtypeName

from .compilation import compile_layers
from .kernels import warn_of_slow_kernels
from .layers import find_layers, require_causal
from .placement import place

_BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
LOGIT_CHANGES = (
    "final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier",
)  # fmt: skip
_REMEDY = "give a causal language model of docs/reference/targets.md"
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetShape:
    """What planning needs to know of a target, read from its configuration alone."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    hybrid: bool  # has layers with a recurrent state, such as linear attention
    reserved_token_ids: frozenset[int]  # pad, begin and end tokens
    plain_logits: bool  # they are the head's output, neither scaled nor capped

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool) -> "TargetShape":
        """``ConfigError`` if the configuration is not of a causal language model."""
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except (ValueError, OSError) as error:
            raise ConfigError(f"--target {folder}: {error}") from error
        if config.is_encoder_decoder:
            raise ConfigError(f"--target {folder}: {config.model_type} has an encoder; " + _REMEDY)
        text = config.get_text_config(decoder=True)
        layer_types = set(getattr(text, "layer_types", None) or ATTENTION_LAYERS)
        try:
            _ = text.num_attention_heads  # the drafter takes over its shape
            return cls(
                num_layers=text.num_hidden_layers,
                hidden_size=text.hidden_size,
                vocab_size=text.vocab_size,
                max_position_embeddings=text.max_position_embeddings,
                hybrid=not layer_types <= ATTENTION_LAYERS,
                reserved_token_ids=reserved_tokens(text.to_dict()),
                plain_logits=all(getattr(text, name, None) in (None, 1) for name in LOGIT_CHANGES),
            )
        except AttributeError as error:
            raise ConfigError(
                f"--target {folder}: the configuration of {config.model_type} lacks {error.name}; "
                + _REMEDY
            ) from error

    def check_layer_ids(self, layer_ids: tuple[int, ...]) -> None:
        if not layer_ids or list(layer_ids) != sorted(set(layer_ids)):
            raise ConfigError(f"--target-layers {layer_ids}: ids must ascend, each once")
        if layer_ids[0] < 0 or layer_ids[-1] >= self.num_layers:
            raise ConfigError(
                f"--target-layers {','.join(map(str, layer_ids))}: the target's decoder layers are "
                f"0..{self.num_layers - 1}"
            )


def reserved_tokens(text_config: Mapping[str, Any]) -> frozenset[int]:
    """The ids of pad, begin and end tokens in a text configuration."""
    found: set[int] = set()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = text_config.get(name)
        ids = value if isinstance(value, list) else [value]
        found |= {each for each in ids if each is not None}
    return frozenset(found)


class Target:
    """A loaded target, its input and output on ``device``.

    ``decoder`` ends before the final norm's users: no logits are computed.
    """

    def __init__(self, model: nn.Module, folder: Path, shape: TargetShape) -> None:
        self.model = model
        self.shape = shape
        self.folder = folder
        self.decoder, self.layers = find_layers(model, shape.num_layers)
        self.device: torch.device = next(model.parameters()).device

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: DtypeName,
        device: str,
        trust_remote_code: bool = False,
        compiled: bool = False,
    ) -> "Target":
        """Load frozen weights. A weight that the checkpoint lacks is an error, never random.

        ``device`` may be several, joined by +: each gets a share of the layers.
        """
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        loaded: Any = _class_for(folder, trust_remote_code).from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
        model, report = loaded
        absent = {*report["missing_keys"], *report["mismatched_keys"]}
        if absent:
            raise DataError(
                f"{folder}: the checkpoint lacks weights of {type(model).__name__}: "
                f"{', '.join(map(str, sorted(absent)[:5]))}"
            )
        shape = TargetShape.load(folder, trust_remote_code=trust_remote_code)
        target = cls(model.eval().requires_grad_(False), folder, shape)
        place(model, target.decoder, target.layers, device.split("+"))
        target.device = torch.device(device.split("+", maxsplit=1)[0])
        warn_of_slow_kernels(target.layers, device)
        require_causal(target.decoder, target.layers)
        if compiled:
            compile_layers(target.decoder, target.layers)
        return target

    @property
    def embedding(self) -> torch.Tensor:
        """[vocabulary, H]"""
        return cast(torch.Tensor, self.model.get_input_embeddings().weight)  # type: ignore[operator]

    @property
    def head(self) -> torch.Tensor:
        """[vocabulary, H]"""
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        if head is None:
            raise DataError(
                f"{self.folder}: {type(self.model).__name__} has no language-model head"
            )
        return cast(torch.Tensor, head.weight)

    def parts(self) -> TargetParts:
        """The embedding, head, final norm and configuration, on the CPU."""
        embedding, head = self.embedding, self.head
        norm = getattr(getattr(self.decoder, "norm", None), "weight", None)
        tied = head.data_ptr() == embedding.data_ptr()
        text = self.model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
        config = json.loads(text.to_json_string(use_diff=False))
        config |= {name: getattr(text, name) for name in text.attribute_map}  # older names
        config.pop("_name_or_path", None)  # where the target lies is no part of what it is
        # A wrapper's text configuration has none of its own.
        config["architectures"] = getattr(self.model.config, "architectures", None)
        return TargetParts(
            config=config,
            embedding=as_array(embedding),
            head=None if tied else as_array(head),
            norm=None if norm is None else as_array(norm),
            mask_token_id=mask_token_of(self.folder, self.shape.vocab_size),
        )


def _class_for(folder: Path, trust_remote_code: bool) -> Any:
    """A wrapper of which transformers has no language model alone is loaded whole."""
    kind = type(AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code))
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def as_array(tensor: torch.Tensor) -> Array:
    """A numpy view of a CPU copy, or of a CPU tensor itself.

    float32, or the bits of bfloat16 as uint16, of float8_e4m3fn as uint8.
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype in _BITS:
        return tensor.view(_BITS[tensor.dtype]).numpy()
    return tensor.float().numpy()


def mask_token_of(folder: Path, vocab_size: int) -> int | None:
    """The tokenizer's own mask token, else an embedding row that no token uses, else None."""
    tokenizer = _load_json(folder / "tokenizer.json")
    if not tokenizer:
        return None
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    mask = _load_json(folder / "tokenizer_config.json").get("mask_token")
    content = mask["content"] if isinstance(mask, Mapping) else mask
    if content in added:
        return int(added[content])
    first_unused = max(ids | set(added.values()), default=-1) + 1
    return first_unused if first_unused < vocab_size else None


def _load_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
