"""Writing and reading segments against the raw disk and against other ways to store the same bytes.

    python tests/benchmarks/store.py [--rounds 7] [--sizes 16,256,1024] [--folder DIR]

Every round runs all ways one after the other on the same real hidden states (the demo target's,
repeated to size); the report, JSON on stdout, gives ratios of the medians over the rounds, and of
the fastest ones.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zarr
from safetensors.numpy import load_file, save_file

from dflash_cache import demo
from dflash_cache.cache import CODECS, CacheSpec, SegmentWriter
from dflash_cache.cache.layout import segment_folder
from dflash_cache.cache.local import LocalStorage
from dflash_cache.cache.record import read_record
from dflash_cache.cache.segment_reader import SegmentReader
from dflash_cache.cache.tokens import aligned_empty
from dflash_cache.config import ExtractConfig
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import prepare
from dflash_cache.target import quantize
from dflash_cache.types import TokenSequence

ROW_TOKENS = 256


def real_states(num_tokens: int) -> tuple[np.ndarray, CacheSpec]:
    """bfloat16 states [tokens, layers, hidden] of the demo's rows, repeated."""
    config = ExtractConfig(
        data=demo.DATA, target=str(demo.TARGET), cache=Path("unused"), limit=64, dtype="bfloat16",
        devices=("cpu",),
    )  # fmt: skip
    preparation = prepare(config)
    (capture,) = load_captures(preparation).values()
    rows = [preparation.rows.sequence(row, 512) for row in range(64)]
    states = capture.hidden_states([torch.from_numpy(row.input_ids).long() for row in rows])
    array = states.view(torch.uint16).numpy()
    # Aligned, or where the array happens to lie would make the raw copies several times slower.
    repeated = aligned_empty((num_tokens, *array.shape[1:]), array.dtype)
    for start in range(0, num_tokens, len(array)):
        part = repeated[start : start + len(array)]
        part[...] = array[: len(part)]
    return repeated, preparation.spec


def sequences_of(num_tokens: int) -> list[TokenSequence]:
    ids = np.zeros(ROW_TOKENS, np.int32)
    mask = np.ones(ROW_TOKENS, np.uint8)
    return [
        TokenSequence(row_id=row, input_ids=ids, loss_mask=mask)
        for row in range(num_tokens // ROW_TOKENS)
    ]


def write_raw(folder: Path, states: np.ndarray) -> None:
    """The same bytes appended in pieces of 4 MiB and made durable, and nothing else."""
    view = states.reshape(-1).view(np.uint8).data
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT, 0o644)
    for start in range(0, len(view), 4 << 20):
        piece = view[start : start + (4 << 20)]
        while piece:
            piece = piece[os.write(descriptor, piece) :]
    os.fsync(descriptor)
    os.close(descriptor)


def stored_form(states: np.ndarray, spec: CacheSpec) -> tuple[np.ndarray, np.ndarray | None]:
    """bfloat16 ``states`` as the codec of ``spec`` is given them, and their scales for fp8."""
    if not spec.quantized:
        return states, None
    values, scales = quantize(torch.from_numpy(states).view(torch.bfloat16))
    return values.view(torch.uint8).numpy(), scales.numpy()


def write_segment(
    folder: Path, states: np.ndarray, scales: np.ndarray | None, spec: CacheSpec
) -> None:
    """The full commit: all arrays, checksums, fsyncs, rename and record."""
    storage = LocalStorage(folder)
    writer = SegmentWriter(storage.staging(), spec, 0, len(states))
    for start in range(0, len(states), 8192):  # as target batches arrive
        batch = slice(start, start + 8192)
        writer.append(states[batch], None if scales is None else scales[batch])
    segment = writer.finish(sequences_of(len(states)))
    storage.take(writer.folder, segment_folder(0))
    storage.commits.append(segment)


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(
    ways: dict[str, Callable[[Path], None]], rounds: int, root: Path
) -> dict[str, list[float]]:
    """Seconds of each way in every round; each runs once a round, in a fresh folder."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    for number in range(rounds + 1):
        # At random: who follows a way that left little memory to reuse pays for fresh pages.
        for name in order.sample(list(ways), len(ways)):
            folder = Path(tempfile.mkdtemp(dir=root))
            way_s = timed(lambda way=ways[name], folder=folder: way(folder))
            if number:  # the first round warms up
                seconds[name].append(way_s)
            shutil.rmtree(folder)
    return seconds


def ratios(seconds: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """The speed of each way over that of ``base``: of the medians, and of the fastest rounds.

    Fresh pages from the machine below can make a round several times slower, whichever way it hits.
    """
    return {
        f"{name}_of_{base}": {
            kind: round(of(seconds[base]) / of(values), 3)
            for kind, of in (("median", statistics.median), ("fastest", min))
        }
        for name, values in seconds.items()
    }


def writing(size_mib: int, rounds: int, root: Path) -> dict[str, dict[str, float]]:
    states, spec = real_states(size_mib * (1 << 20) // (5 * 256 * 2) // ROW_TOKENS * ROW_TOKENS)
    ways: dict[str, Callable[[Path], None]] = {"raw": lambda folder: write_raw(folder, states)}
    for codec in CODECS:
        chosen = CacheSpec.from_dict(spec.as_dict() | {"codec": codec})
        form = stored_form(states, chosen)
        ways[codec] = lambda folder, chosen=chosen, form=form: write_segment(folder, *form, chosen)
    return ratios(interleaved(ways, rounds, root), "raw")


def reading(rounds: int, root: Path, num_reads: int = 20) -> dict[str, dict[str, float]]:
    """Random sequences of about 12 MB, every checksum checked, against preadv into one buffer."""
    length = 12 * (1 << 20) // 2560
    states, spec = real_states(length * 24)
    spec = CacheSpec.from_dict(spec.as_dict() | {"codec": "crc32c"})
    storage = LocalStorage(root)
    writer = SegmentWriter(storage.staging(), spec, 0, len(states))
    writer.append(states)
    ids, mask = np.zeros(length, np.int32), np.ones(length, np.uint8)
    rows = [TokenSequence(row_id=r, input_ids=ids, loss_mask=mask) for r in range(24)]
    segment = writer.finish(rows)
    storage.take(writer.folder, segment_folder(0))
    reader = SegmentReader(storage, read_record(storage, segment), spec)
    write_raw(root, states)
    save_file({"states": states[:length]}, root / "one.safetensors")
    torch.save(torch.from_numpy(states[:length].copy()), root / "one.pt")
    array = zarr.open_array(root / segment_folder(0) / "hidden_states", mode="r")
    flat = np.memmap(root / "raw", np.uint16, "r", shape=states.shape)
    buffer = aligned_empty(states[:length].shape, states.dtype)
    raw = os.open(root / "raw", os.O_RDONLY)
    order = np.random.default_rng(0).integers(0, 24, num_reads).tolist()

    def each(read: Callable[[int], object]) -> Callable[[Path], None]:
        return lambda folder: [read(row) for row in order] and None

    ways = {
        "preadv": each(lambda r: os.preadv(raw, [buffer.data.cast("B")], r * buffer.nbytes)),
        "ours": each(lambda r: reader.read(np.array([r]), into=buffer)),
        "ours_fresh": each(lambda r: reader.read(np.array([r]))),  # as the others, into new memory
        "zarr": each(lambda r: array[r * length : (r + 1) * length]),
        "memory_map": each(lambda r: flat[r * length : (r + 1) * length].copy()),
        "safetensors": each(lambda r: load_file(root / "one.safetensors")),
        "torch_save": each(lambda r: torch.load(root / "one.pt")),
    }
    found = interleaved(ways, rounds, root)
    of_zarr = ratios({name: found[name] for name in ("ours", "zarr")}, "zarr")
    return ratios(found, "preadv") | of_zarr


def sizes() -> dict[str, float]:
    states, spec = real_states(8000)
    stored = dict.fromkeys(CODECS, 0)
    for name, codec in CODECS.items():
        chosen = CacheSpec.from_dict(spec.as_dict() | {"codec": name})
        for part in np.split(states, 10):
            form, scales = stored_form(part, chosen)
            payload = codec.encode(np.ascontiguousarray(form))
            stored[name] += len(payload) + (0 if scales is None else scales.nbytes)
    return {name: round(size / states.nbytes, 4) for name, size in stored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default="16,256,1024", help="segment sizes [MiB]")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        root = Path(folder)
        report = {
            "size_of_raw": sizes(),
            "write": {
                f"{mib} MiB": writing(int(mib), arguments.rounds, root)
                for mib in arguments.sizes.split(",")
            },
            "read": reading(arguments.rounds, root),
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
