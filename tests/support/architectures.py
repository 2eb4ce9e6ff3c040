"""The architectures that are tested as targets, each from a tiny configuration."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS, HEAD_DIM = 128, 32, 4, 8

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "initializer_range": 0.2,  # so that a row's tokens matter to each other
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED_EXPERT = EXPERTS | {"shared_expert_intermediate_size": 16}
ROUTED_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT_ATTENTION = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
    "num_key_value_heads": 4,
}
DELTA_NET = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
SECTIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
    }
}
PARTIAL_SECTIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    }
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": HIDDEN_SIZE,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """``settings`` go over ``SHAPE``; None takes one out of it. ``layers`` is where they are."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    layers: str = "model.layers"

    @property
    def tolerance(self) -> float:
        """Of a row's largest value."""
        return 1e-4 if "hybrid" in self.kind else 1e-5


def _dense(settings: dict[str, Any] | None = None, layers: str = "model.layers") -> Architecture:
    return Architecture(kind="dense", settings=settings or {}, layers=layers)


def _sliding(**settings: Any) -> Architecture:
    return Architecture(kind="dense, sliding window", settings=WINDOW | settings)


def _experts(kind: str = "mixture of experts", **settings: Any) -> Architecture:
    return Architecture(kind=kind, settings=settings)


def _hybrid(kind: str = "hybrid", **settings: Any) -> Architecture:
    return Architecture(kind=kind, settings=settings)


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _wrapper(
    text: dict[str, Any],
    vision: dict[str, Any],
    kind: str = "wrapper",
    layers: str = "model.language_model.layers",
) -> Architecture:
    settings = {"text_config": _without_none(SHAPE | text), "vision_config": vision}
    return Architecture(kind=kind, settings=dict.fromkeys(SHAPE) | settings, layers=layers)


ARCHITECTURES: dict[str, Architecture] = {
    "apertus": _dense(),
    "cohere": _dense({"head_dim": None}),
    "ernie4_5": _dense(),
    "gemma": _dense(),
    "glm4": _dense(),
    "gpt2": _dense(
        {"num_key_value_heads": None, "head_dim": None, "intermediate_size": None},
        "transformer.h",
    ),
    "gpt_neox": _dense({"num_key_value_heads": None, "head_dim": None}, "gpt_neox.layers"),
    "granite": _dense({"head_dim": None, "embedding_multiplier": 12.0, "residual_multiplier": 0.5}),
    "hunyuan_v1_dense": _dense(),
    "llama": _dense(),
    "nemotron": _dense({"head_dim": None}),
    "olmo": _dense({"head_dim": None}),
    "olmo2": _dense({"head_dim": None}),
    "phi": _dense({"head_dim": None}),
    "qwen3": _dense(),
    "seed_oss": _dense(),
    "smollm3": _dense({"head_dim": None}),
    "stablelm": _dense({"head_dim": None}),
    "cohere2": _sliding(head_dim=None),
    "exaone4": _sliding(head_dim=None),
    "gemma2": _sliding(),
    "gemma3_text": _sliding(layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    "gemma4_text": _sliding(
        global_head_dim=HEAD_DIM,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
    ),
    "mistral": _sliding(),
    "olmo3": _sliding(head_dim=None),
    "phi3": _sliding(head_dim=None),
    "qwen2": _sliding(head_dim=None, use_sliding_window=True, max_window_layers=2),
    "starcoder2": _sliding(head_dim=None),
    "deepseek_v2": _experts(**ROUTED_EXPERTS, **LATENT_ATTENTION),
    "deepseek_v3": _experts(**ROUTED_EXPERTS, **LATENT_ATTENTION),
    "ernie4_5_moe": _experts(moe_num_experts=4, moe_k=2, moe_intermediate_size=16),
    "glm4_moe": _experts(**ROUTED_EXPERTS),
    "gpt_oss": _experts("mixture of experts, sliding window", **LOCAL_EXPERTS, **WINDOW),
    "granitemoe": _experts(**LOCAL_EXPERTS, head_dim=None),
    "llama4_text": _experts(
        "mixture of experts, chunked attention",
        **LOCAL_EXPERTS,
        attention_chunk_size=4,
        intermediate_size_mlp=48,
    ),
    "minimax_m2": _experts(**LOCAL_EXPERTS),
    "mixtral": _experts("mixture of experts, sliding window", **LOCAL_EXPERTS, **WINDOW),
    "olmoe": _experts(**EXPERTS, head_dim=None),
    "phimoe": _experts(**LOCAL_EXPERTS, head_dim=None),
    "qwen2_moe": _experts(**SHARED_EXPERT, head_dim=None),
    "qwen3_moe": _experts(**EXPERTS),
    "bamba": _hybrid(**MAMBA, attn_layer_indices=[2], head_dim=None),
    "falcon_h1": _hybrid(
        mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8
    ),
    "granitemoehybrid": _hybrid(
        "hybrid, mixture of experts",
        **MAMBA,
        **LOCAL_EXPERTS,
        head_dim=None,
        layer_types=["mamba", "mamba", "attention", "mamba"],
        shared_intermediate_size=16,
    ),
    "jamba": _hybrid(
        "hybrid, mixture of experts",
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        head_dim=None,
    ),
    "lfm2": _hybrid(
        layer_types=["conv", "conv", "full_attention", "conv"], block_ffn_dim=48, head_dim=None
    ),
    "qwen3_5_moe_text": _hybrid("hybrid, mixture of experts", **DELTA_NET, **SHARED_EXPERT),
    "qwen3_5_text": _hybrid(**DELTA_NET),
    "qwen3_next": _hybrid("hybrid, mixture of experts", **DELTA_NET, **SHARED_EXPERT),
    "gemma3": _wrapper(
        WINDOW,
        VISION | {"model_type": "siglip_vision_model"},
        "wrapper, sliding window",
    ),
    "glm4v": _wrapper(
        SECTIONS,
        {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_SIZE,
        },
    ),
    "internvl": _wrapper(
        {"model_type": "qwen2", "head_dim": None},
        VISION | {"image_size": [16, 16], "patch_size": [4, 4]},
    ),
    "llava": _wrapper({"model_type": "llama"}, VISION | {"model_type": "clip_vision_model"}),
    "mistral3": _wrapper(
        {"model_type": "mistral"} | WINDOW,
        VISION | {"model_type": "pixtral", "head_dim": 8},
        "wrapper, sliding window",
    ),
    "qwen2_5_vl": _wrapper(
        SECTIONS | {"head_dim": None},
        {
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_SIZE,
            "fullatt_block_indexes": [0],
        },
    ),
    "qwen3_5": _wrapper(DELTA_NET | PARTIAL_SECTIONS, QWEN_VISION, "wrapper, hybrid"),
    "qwen3_5_moe": _wrapper(
        DELTA_NET | SHARED_EXPERT | PARTIAL_SECTIONS,
        QWEN_VISION,
        "wrapper, hybrid, mixture of experts",
    ),
    "qwen3_vl": _wrapper(SECTIONS, QWEN_VISION),
    "qwen3_vl_moe": _wrapper(EXPERTS | SECTIONS, QWEN_VISION, "wrapper, mixture of experts"),
    "smolvlm": _wrapper({"model_type": "llama"}, VISION, layers="model.text_model.layers"),
}


# With a cache transformers computes other logits for these than without one.
NOT_DECODED = ("bamba", "jamba")

# Model types that cannot be targets, with what the refusal says.
REFUSED: dict[str, tuple[Architecture, str]] = {
    "bert": (_dense({"is_decoder": True}), "has no list of 4 decoder layers"),
    "gemma3_text": (_dense({"use_bidirectional_attention": True}), "depend on later tokens"),
    "mamba": (
        _hybrid(num_attention_heads=None, num_key_value_heads=None, head_dim=None, state_size=4),
        "the configuration of mamba lacks num_attention_heads",
    ),
    "mllama": (
        _wrapper(
            {"cross_attention_layers": [1]},
            {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "vision_output_dim": HIDDEN_SIZE,
                "intermediate_layers_indices": [0],
            },
        ),
        r"in the order \[0, 2, 3\]",
    ),
    "paligemma": (
        _wrapper({"model_type": "gemma"}, VISION | {"model_type": "siglip_vision_model"}),
        "depend on later tokens",
    ),
}


def build(name: str, architecture: Architecture | None = None) -> PreTrainedModel:
    """A float32 model of ``name`` (transformers' model_type), which is a tested one by default."""
    settings = (architecture or ARCHITECTURES[name]).settings
    config = AutoConfig.for_model(name, **_without_none(SHAPE | settings))
    kind = AutoModelForImageTextToText if "vision_config" in settings else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind.from_config(config).float().eval()


def table() -> str:
    """The table of docs/reference/targets.md."""
    lines = ["| model type | kind | class | tolerance |", "|---|---|---|---|"]
    for name, each in ARCHITECTURES.items():
        classes = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        lines.append(f"| `{name}` | {each.kind} | `{classes[name]}` | {each.tolerance:.0e} |")
    return "\n".join(lines)
