"""The memory that an extraction takes beside a target: no logits. (Linux counts it.)"""

import re
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_cache.config import ExtractConfig
from dflash_cache.runs.extract import extract
from tests.support.tiny_targets import load_plain, rows_of, save_rows

LENGTH, VOCAB_SIZE, HIDDEN_SIZE = 4096, 24_000, 32
LOGITS_BYTES = LENGTH * VOCAB_SIZE * 4  # 393 MB; the target's weights have 6 MB


def memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status)[1])


def peak_bytes(work: Callable[[], object]) -> int:
    """How far the process grows at most while it does ``work``."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def test_the_peak_stays_far_below_the_size_of_the_logits(tmp_path):
    shape = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "target")
    row = torch.randint(VOCAB_SIZE, (LENGTH,), generator=torch.Generator().manual_seed(0))
    config = ExtractConfig(
        data=save_rows(tmp_path / "rows", rows_of([row.tolist()])),
        target=str(tmp_path / "target"),
        cache=str(tmp_path / "cache"),
        target_layers=(0, 1),
        max_seq_len=LENGTH,
        devices=("cpu",),
    )
    assert peak_bytes(lambda: extract(config)) < LOGITS_BYTES / 4
    plain = load_plain(tmp_path / "target")
    with torch.no_grad():  # what the measure would say of logits
        assert peak_bytes(lambda: plain(input_ids=row[None])) > 0.9 * LOGITS_BYTES
