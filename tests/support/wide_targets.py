"""A target whose states are as wide as a real one's and whose attention is as good as free."""

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

HIDDEN_SIZE, MAX_POSITIONS, VOCAB_SIZE = 1024, 70_000, 512


def save_wide_target(folder: Path, num_layers: int = 6) -> Path:
    """Save a float32 Qwen3 with states of 1024 values and one attention head of 16."""
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
