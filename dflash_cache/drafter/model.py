"""The DFlash drafter, on transformers' Qwen3 parts and with z-lab's parameter names.

Axes: T context tokens, K context layers, H hidden size, Q block tokens, n query heads,
g key-value heads, d head dimension.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from .attention import BlockAttention, KeyValue, Visibility
from .config import DrafterConfig


class DrafterAttention(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def key_value(self, hidden: torch.Tensor, rope: KeyValue) -> KeyValue:
        """Keys and values [T, g, d] of ``hidden`` [T, H]."""
        key = self.k_norm(self.k_proj(hidden).unflatten(-1, (-1, self.head_dim)))
        value = self.v_proj(hidden).unflatten(-1, (-1, self.head_dim))
        return rotate(key, rope), value

    def forward(
        self,
        hidden: torch.Tensor,
        rope: KeyValue,
        context: KeyValue,
        attention: BlockAttention,
        sees: Visibility,
    ) -> torch.Tensor:
        query = self.q_norm(self.q_proj(hidden).unflatten(-1, (-1, self.head_dim)))
        block = self.key_value(hidden, rope)
        output = attention(rotate(query, rope), context, block, sees)
        return cast(torch.Tensor, self.o_proj(output.flatten(1)))


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config)
        self.mlp = Qwen3MLP(config.qwen3())  # type: ignore[no-untyped-call]
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden: torch.Tensor,
        rope: KeyValue,
        context: KeyValue,
        attention: BlockAttention,
        sees: Visibility,
    ) -> torch.Tensor:
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, rope, context, attention, sees)
        return hidden + cast(torch.Tensor, self.mlp(self.post_attention_layernorm(hidden)))


class DFlashDrafter(nn.Module):
    """Proposes a block of tokens from the target's hidden states (arXiv 2602.06036).

    The target's embedding and head are frozen and no part of this module.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        # Recompute each layer in the backward pass instead of keeping what is inside it.
        self.checkpoint_activations = False
        num_features = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(num_features, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config.qwen3())
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)

    @classmethod
    def fresh(cls, config: DrafterConfig, seed: int) -> "DFlashDrafter":
        """Weights that depend on ``seed`` alone; torch's own generator is left as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config)

    @property
    def visibilities(self) -> list[Visibility]:
        """What each layer sees: for the plan of an attention."""
        return [self.config.layer_visibility(layer) for layer in range(len(self.layers))]

    def context(self, features_TKH: torch.Tensor, positions: torch.Tensor) -> list[KeyValue]:
        """Each layer's keys and values of the context.

        Args:
            features_TKH: the target's hidden states [T, K, H] of ``target_layer_ids``.
            positions: [T] int64, absolute in each token's own sequence.

        The context passes ``fc`` and ``hidden_norm`` once; it has no query, MLP or residual.
        """
        context = self.hidden_norm(self.fc(features_TKH.flatten(1)))
        rope = self._rope(context, positions)
        return [
            cast(DrafterLayer, layer).self_attn.key_value(context, rope) for layer in self.layers
        ]

    def forward(
        self,
        block_embeddings: torch.Tensor,
        positions: torch.Tensor,
        context: Sequence[KeyValue],
        attention: BlockAttention,
    ) -> torch.Tensor:
        """Hidden states of all slots, ready for the target's head.

        Args:
            block_embeddings: [Q, H], the target's embedding of [anchor token, MASK, ...] a block.
            positions: [Q] int64, absolute in each block's own sequence.
            context: of ``context``; attention: planned for these blocks and ``visibilities``.

        Returns:
            [Q, H]
        """
        rope = self._rope(block_embeddings, positions)
        hidden = block_embeddings
        for layer, key_value, sees in zip(self.layers, context, self.visibilities, strict=True):
            arguments = (hidden, rope, key_value, attention, sees)
            if self.checkpoint_activations and torch.is_grad_enabled():
                hidden = cast(torch.Tensor, checkpoint(layer, *arguments, use_reentrant=False))
            else:
                hidden = layer(*arguments)
        return cast(torch.Tensor, self.norm(hidden))

    def _rope(self, like: torch.Tensor, positions: torch.Tensor) -> KeyValue:
        cos, sin = self.rotary_emb(like, positions[None])
        return cos[0, :, None], sin[0, :, None]


def rotate(states: torch.Tensor, rope: KeyValue) -> torch.Tensor:
    """Rotary position embedding of ``states`` [T, heads, d]; cos and sin are [T, 1, d]."""
    cos, sin = rope
    rotated: torch.Tensor = rotate_half(states)  # type: ignore[no-untyped-call]
    return states * cos + rotated * sin
