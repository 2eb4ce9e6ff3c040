"""What random reads of whole sequences cost at several sizes of inner chunks.

    python tests/benchmarks/inner_chunks.py [--rounds 7] [--codec crc32c] [--folder DIR]

One segment of ragged sequences, 12 MB in the mean, is written once for each size. Every round reads
the same random sequences at each size, one size after the other, beginning with another one in each
round; every checksum is checked. The report, JSON on stdout: bytes read over bytes needed, calls a
sequence, medians of the milliseconds a sequence with their quartiles, and their ratios to 1 MiB's.

``spread`` is the machine's noise: the quartiles' distance over the median.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from dflash_cache.cache import CacheSpec, DatasetPart, SegmentWriter
from dflash_cache.cache.layout import segment_folder
from dflash_cache.cache.local import LocalReader, LocalStorage
from dflash_cache.cache.record import SegmentRecord, read_record
from dflash_cache.cache.segment_reader import SegmentReader
from dflash_cache.types import TokenSequence

SIZES_KIB = (256, 512, 1024, 2048, 4096, 8192)
NUM_ROWS, MEAN_TOKENS, NUM_READS = 16, 293, 12  # 40,960 bytes a token: 12 MB a sequence
LAYERS, HIDDEN = 5, 4096


def spec_of(codec: str) -> CacheSpec:
    part = DatasetPart(
        dataset="-", dataset_fingerprint="-", num_rows=NUM_ROWS, num_segments=1, limit=None,
        max_seq_len=4096, too_long="truncate", segment_tokens=16384, plan_seed=0,
    )  # fmt: skip
    return CacheSpec(
        target="-", revision="", target_config_hash="-", target_weights_hash="-",
        tokenizer_hash="-", chat_template_hash="-", target_layer_ids=tuple(range(LAYERS)),
        keep_last=False,
        num_target_layers=36, hidden_size=HIDDEN, vocab_size=1000, dtype="bfloat16", codec=codec,
        parts=(part,),
    )  # fmt: skip


def write(folder: Path, spec: CacheSpec, chunk_kib: int) -> tuple[LocalStorage, SegmentRecord]:
    """A segment of normally distributed states, the same ones whatever the chunk's size."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(MEAN_TOKENS * 2 // 3, MEAN_TOKENS * 4 // 3, NUM_ROWS).tolist()
    storage = LocalStorage(folder)
    with mock.patch("dflash_cache.cache.segment.INNER_CHUNK_BYTES", chunk_kib << 10):
        writer = SegmentWriter(storage.staging(), spec, 0, sum(lengths))
    for length in lengths:
        values = rng.standard_normal((length, LAYERS, HIDDEN), np.float32)
        writer.append((values.view(np.uint32) >> 16).astype(np.uint16))
    sequences = [
        TokenSequence(
            row_id=row, input_ids=np.zeros(length, np.int32), loss_mask=np.ones(length, np.uint8)
        )
        for row, length in enumerate(lengths)
    ]
    segment = writer.finish(sequences)
    storage.take(writer.folder, segment_folder(0))
    os.sync()
    return storage, read_record(storage, segment)


class Counting:
    """Counts what a local file is asked for, the shard's index left out."""

    def __init__(self) -> None:
        self.num_bytes = self.num_calls = 0
        self._read_into = LocalReader.read_into

    def __enter__(self) -> "Counting":
        counting, read_into = self, self._read_into

        def counted(reader: LocalReader, buffers: list[memoryview], offset: int) -> None:
            if len(buffers) > 1:  # the index is read into one buffer
                counting.num_bytes += sum(len(buffer) for buffer in buffers)
                counting.num_calls += 1
            read_into(reader, buffers, offset)

        self._patch = mock.patch.object(LocalReader, "read_into", counted)
        self._patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--codec", default="crc32c")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    spec = spec_of(arguments.codec)
    rows = np.random.default_rng(1).integers(0, NUM_ROWS, NUM_READS).tolist()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        stores = {size: write(Path(folder, str(size)), spec, size) for size in SIZES_KIB}
        read = {size: count(*stores[size], spec, rows) for size in SIZES_KIB}
        seconds: dict[int, list[float]] = {size: [] for size in SIZES_KIB}
        for number in range(arguments.rounds + 1):
            turn = number % len(SIZES_KIB)
            for size in SIZES_KIB[turn:] + SIZES_KIB[:turn]:
                storage, record = stores[size]
                began = time.perf_counter()
                for row in rows:
                    SegmentReader(storage, record, spec).read(np.array([row]))
                if number:  # the first round warms up
                    seconds[size].append((time.perf_counter() - began) / NUM_READS)
    print(json.dumps(report(read, seconds), indent=1))


def count(
    storage: LocalStorage, record: SegmentRecord, spec: CacheSpec, rows: list[int]
) -> tuple[float, float]:
    """(bytes read over bytes needed, calls a sequence); needed: the tokens' share of the shard."""
    needed = 0.0
    with Counting() as counting:
        for row in rows:
            num_tokens = len(SegmentReader(storage, record, spec).read(np.array([row])).input_ids)
            needed += num_tokens / record.num_tokens * record.shard[0]
    return counting.num_bytes / needed, counting.num_calls / len(rows)


def report(
    read: dict[int, tuple[float, float]], seconds: dict[int, list[float]]
) -> dict[str, dict[str, float]]:
    medians = {size: statistics.median(values) for size, values in seconds.items()}
    shown = {}
    for size, (over, calls) in read.items():
        low, _, high = statistics.quantiles(seconds[size], n=4)
        shown[f"{size} KiB"] = {
            "read_of_needed": round(over, 3),
            "calls": round(calls, 2),
            "ms": round(1e3 * medians[size], 2),
            "ms_quartiles_low": round(1e3 * low, 2),
            "ms_quartiles_high": round(1e3 * high, 2),
            "spread": round((high - low) / medians[size], 3),
            "time_of_1_mib": round(medians[size] / medians[1024], 3),
        }
    return shown


if __name__ == "__main__":
    main()
