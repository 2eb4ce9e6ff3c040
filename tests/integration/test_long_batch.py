"""A row longer than a batch is a batch of its own: what it takes in memory is bounded too."""

import sys

import numpy as np
import pytest

from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import prepare
from dflash_cache.target import CopyStream, StagingBuffer, capture_batch
from tests.support.resident import Growth
from tests.support.runs import extract_config
from tests.support.tiny_targets import rows_of, save_rows
from tests.support.wide_targets import save_wide_target

TOKENS = 8192


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's own memory")
def test_the_states_of_a_batch_are_in_memory_twice_at_most(tmp_path):
    """As the layers gave them and as they are stored, then as stored and in the staging buffer."""
    rows = rows_of([np.arange(TOKENS) % 500])
    config = extract_config(
        tmp_path,
        data=save_rows(tmp_path / "data", rows),
        target=str(save_wide_target(tmp_path / "target")),
        target_layers=(0, 1, 2, 3, 4),
        max_seq_len=TOKENS,
    )
    preparation = prepare(config)
    (capture,) = load_captures(preparation).values()
    sequence = preparation.rows.sequence(0, TOKENS)
    staging = StagingBuffer.allocate(preparation.spec, TOKENS, pinned=False)
    with Growth(every_s=0.001) as growth:
        copies = CopyStream(capture.target.device)
        result = capture_batch(capture, [sequence], staging, lambda: None, copies).finish()
    assert result.num_tokens == TOKENS
    one = TOKENS * preparation.spec.token_bytes
    assert one < growth.peak_bytes < 2.5 * one
