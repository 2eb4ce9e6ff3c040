"""Byte-level tokenizers and the chat templates in ``templates/``."""

import json
import re
from datetime import datetime
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_cache.data.tokenization import RowBatch, TokenBatch, Tokenization
from dflash_cache.types import TokenizerParts

TEMPLATES = Path(__file__).parent / "templates"
NOW = datetime(2031, 2, 3)
SPECIAL = (
    "<s>", "</s>", "<think>", "</think>",
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>",
    "<|call|>",
)  # fmt: skip
_GENERATION_TAG = re.compile(r"\{%-\s*(end)?generation\s*-%\}")


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A token for each byte, and one for each special text of the templates: 282 in all."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    return tokenizer


def template_source(name: str, *, marks: bool) -> str:
    """A template of ``templates/``, with its generation marks or without."""
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return source if marks else _GENERATION_TAG.sub("", source)


def parts(template: str | None) -> TokenizerParts:
    return TokenizerParts(
        tokenizer_json=byte_tokenizer().to_str(),
        chat_template=template,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


def tokenized(template: str | None, *rows: dict, **settings) -> TokenBatch:
    """``rows`` as a worker makes tokens of them."""
    work = Tokenization(tokenizer=parts(template), now=NOW, **settings)
    return work.start()(RowBatch(first_row=0, rows=rows, bytes_read=0))


def as_marked(batch: TokenBatch) -> list[str]:
    """Each sequence as text with ⟦ and ⟧ around what is learned."""
    tokenizer, texts, first = byte_tokenizer(), [], 0
    for length in batch.lengths.tolist():
        pieces, learned = [], 0
        ids, mask = (each[first : first + length] for each in (batch.input_ids, batch.loss_mask))
        runs: list[tuple[int, list[int]]] = []
        for token, learned in zip(ids.tolist(), mask.tolist(), strict=True):
            if not runs or runs[-1][0] != learned:
                runs.append((learned, []))
            runs[-1][1].append(token)
        for learned, run in runs:
            text = tokenizer.decode(run, skip_special_tokens=False)
            pieces.append(f"⟦{text}⟧" if learned else text)
        texts.append("".join(pieces))
        first += length
    return texts


def save_tokenizer(folder: Path, template: str | None) -> Path:
    """Add the tokenizer's files to a target's ``folder``."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def save_chats(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
