"""``config.json`` in the layout of the speculators library, beside z-lab's.

Weight names are the same in both. Pure translations of one dictionary into the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_cache.errors import ConfigError

VERSION = "0.9.0"  # of the library whose layout this is
FULL, SLIDING = "full_attention", "sliding_attention"
_OUTSIDE_LAYERS = ("architectures", "block_size", "dflash_config", "num_target_layers")
# The target's own weights, which the library may leave in a file for its drafters.
TARGET_WEIGHTS = frozenset(
    {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
)


def is_speculators(config: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in config


def to_speculators(
    config: Mapping[str, Any], target: str | None, architectures: Sequence[str]
) -> dict[str, Any]:
    """The content of z-lab's ``config.json`` in the library's layout.

    Args:
        config: of ``DrafterConfig.to_json``.
        target: the target's name or folder, which the library loads embedding and head from.
        architectures: the target's.

    Layers are counted from the embedding's output there, so each id is one higher.
    """
    dflash = config["dflash_config"]
    layers = {name: value for name, value in config.items() if name not in _OUTSIDE_LAYERS}
    return {
        "architectures": list(config["architectures"]),
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "dtype": config["dtype"],
        "transformer_layer_config": layers,
        "draft_vocab_size": config["vocab_size"],
        "block_size": config["block_size"],
        "aux_hidden_state_layer_ids": [index + 1 for index in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        # vLLM takes the opposite of it as the causality of all layers.
        "sliding_window_non_causal": not any(causal_layers(config)),
        "sample_from_anchor": False,
        "num_target_layers": config["num_target_layers"],  # the library ignores it; we read it
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": config["block_size"] - 1}
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target, "architectures": list(architectures)},
        },
    }


def from_speculators(config: Mapping[str, Any]) -> dict[str, Any]:
    """A ``config.json`` of the library in z-lab's layout; ``ConfigError`` if it has no such form.

    ``num_target_layers`` is missing unless we wrote the file.
    """
    layers = dict(config["transformer_layer_config"])
    kind, vocab_size = config["speculators_model_type"], layers["vocab_size"]
    if kind != "dflash":
        raise ConfigError(f"a {kind!r} drafter; only 'dflash' is read")
    if config.get("draft_vocab_size", vocab_size) != vocab_size:
        raise ConfigError(
            f"draft_vocab_size {config['draft_vocab_size']} is not the target's {vocab_size}; a "
            "drafter with a vocabulary of its own is not read"
        )
    if config.get("sample_from_anchor"):
        raise ConfigError("sample_from_anchor is set; here slot 0 is the anchor and never sampled")
    if config.get("mask_token_id") is None:
        raise ConfigError("mask_token_id is not set")
    flat = layers | {
        "architectures": config.get("architectures", []),
        "block_size": config["block_size"],
        "dflash_config": {
            "mask_token_id": config["mask_token_id"],
            "target_layer_ids": [index - 1 for index in config["aux_hidden_state_layer_ids"]],
        },
    }
    if config.get("sliding_window_non_causal") and SLIDING in (flat.get("layer_types") or ()):
        flat["is_causal"] = False
    for name in ("dtype", "num_target_layers"):
        if name in config:
            flat[name] = config[name]
    return flat


def causal_layers(config: Mapping[str, Any]) -> list[bool]:
    """For each drafter layer, whether a slot sees only earlier slots of its block."""
    override = config.get("is_causal")
    return [kind == SLIDING if override is None else override for kind in config["layer_types"]]
