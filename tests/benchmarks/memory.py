"""How much memory writing and reading a large cache take.

    python tests/benchmarks/memory.py [--bytes 4GiB] [--writers 4] [--codec lz4] [--folder DIR]

The stages are those of the program; only the target's forward pass is left out: one random block
is copied into the staging buffers again and again. Reading goes through the stages that prefetch
for training. The report, JSON on stdout, gives by how many bytes the process grew, resident memory
of its own, and what the buffers of either way are.
"""

import argparse
import gc
import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support, wherever it is run

from dflash_cache.cache import Cache
from dflash_cache.cache.segment import INNER_CHUNK_BYTES
from dflash_cache.cache.shard import CHUNKS_AT_ONCE
from dflash_cache.cache.shard_reader import REQUEST_BYTES
from dflash_cache.config import ExtractConfig, TrainConfig
from dflash_cache.pipeline import Pipeline
from dflash_cache.runs import workers
from dflash_cache.runs.extract import extract
from dflash_cache.sizes import ByteCount
from dflash_cache.target import BatchUnderWay
from dflash_cache.train import TrainingOrder, prefetch
from dflash_cache.train.order import Position
from tests.support.resident import Growth
from tests.support.tiny_targets import rows_of, save_rows
from tests.support.wide_targets import HIDDEN_SIZE, save_wide_target

ROW_TOKENS, NUM_LAYERS = 1024, 5
TOKEN_BYTES = NUM_LAYERS * HIDDEN_SIZE * 2  # bfloat16
BLOCK = torch.randn(ROW_TOKENS, NUM_LAYERS, HIDDEN_SIZE).bfloat16()


def staged_block(capture, sequences, staging, _check, _copies) -> BatchUnderWay:
    """In place of the target: ``BLOCK`` for every sequence."""
    for number in range(len(sequences)):
        place = slice(number * ROW_TOKENS, (number + 1) * ROW_TOKENS)
        staging.hidden_TKH[place].copy_(BLOCK)
    staging.extremes.fill_(1.0)
    return BatchUnderWay(
        sequences=tuple(sequences), staging=staging, layer_ids=capture.layer_ids, arrived=None
    )


def settings(folder: Path, options: argparse.Namespace) -> ExtractConfig:
    num_rows = -(-options.bytes // (ROW_TOKENS * TOKEN_BYTES))
    ids = np.arange(ROW_TOKENS) % 500
    return ExtractConfig(
        data=save_rows(folder / "data", rows_of([ids] * num_rows)),
        target=str(save_wide_target(folder / "target")),
        cache=str(folder / "cache"),
        devices=("cpu",),
        dtype="bfloat16",
        target_layers=tuple(range(NUM_LAYERS)),
        codec=options.codec,
        writers=options.writers,
        segment_tokens=options.segment_tokens,
        batch_tokens=options.batch_tokens,
    )


def write(config: ExtractConfig) -> dict[str, int]:
    """Fill the cache; the growth, what the staging buffers hold and what the writers do."""
    extract(replace(config, cache=config.cache + "-first", limit=1))  # loads what stays loaded
    gc.collect()
    with Growth() as growth:
        report = extract(config)
    num_buffers = 2 * len(config.devices) + config.writers
    return {
        "bytes": report["bytes_raw"],
        "growth_bytes": growth.peak_bytes,
        "buffer_bytes": num_buffers * config.batch_tokens * TOKEN_BYTES,
        # A chunk in the making, the bytes that it becomes, and the codec's own.
        "chunk_bytes": (CHUNKS_AT_ONCE + 2) * config.writers * INNER_CHUNK_BYTES,  # compressed
    }


def read(config: ExtractConfig, training: TrainConfig) -> dict[str, int]:
    """Read one epoch as training does; the growth, and what windows, batches and readers hold."""
    cache = Cache.open(config.cache)
    order = TrainingOrder(
        cache.plan, np.zeros(0, np.int64), seed=0, window_segments=training.shuffle_segments
    )
    num_tokens = 0
    gc.collect()
    with Growth() as growth, Pipeline("read") as pipeline:
        batches = prefetch(pipeline, cache, order, Position(), training)
        pipeline.start()
        for each in batches:
            num_tokens += each.batch.num_tokens
    segments = 2 * training.shuffle_segments + training.prefetch_readers  # two windows, and hands
    # Rows kept from a window, a batch in the making, one taken, one over the limit.
    in_batches = 4 * training.batch_size * ROW_TOKENS
    return {
        "bytes": num_tokens * TOKEN_BYTES,
        "growth_bytes": growth.peak_bytes,
        "buffer_bytes": (segments * config.segment_tokens + in_batches) * TOKEN_BYTES
        + training.prefetch_bytes,
        "chunk_bytes": training.prefetch_readers * REQUEST_BYTES,  # compressed, on the way
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=partial(ByteCount.parse, "--bytes"), default=4 << 30)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--segment-tokens", type=int, default=4096)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with (
        mock.patch.object(workers, "capture_batch", staged_block),
        tempfile.TemporaryDirectory(dir=options.folder) as name,
    ):
        config = settings(Path(name), options)
        written = write(config)
        training = TrainConfig(
            cache=config.cache, out=Path(name, "run"), epochs=1, anchors=4, batch_size=2,
            shuffle_segments=2, prefetch_bytes=16 << 20,
        )  # fmt: skip
        print(json.dumps({"write": written, "read": read(config, training)}))


if __name__ == "__main__":
    main()
