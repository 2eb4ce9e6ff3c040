"""Start of an extraction on 902,087 rows against 9,020: seconds, memory, reading single rows.

    python tests/benchmarks/startup.py [--rows 902087 9020] [--rounds 3] [--folder DIR]

Writes made-up rows of 300 tokens on average (1.4 GB for 902,087 rows) into a temporary folder,
removed at the end. Every round starts a new process for each size, in turn, which goes the way
of ``extract`` on the demo target up to the first batch: imports, ``prepare``, the target, and the
first planned batch read. ``without_model_s`` is the time without imports and target. ``inspect_s``
is what ``dflash-cache inspect`` takes from its start to its end. The report, JSON on stdout, has
the medians, their ratios, the padding of the target's batches, and seconds a row of random reads:
this program's, and two slow ways of the datasets library on the same files. The slow ways run on
few rows; their seconds for the whole dataset are extrapolated.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MEAN_TOKENS, LONGEST, SHARD_ROWS = 300, 2048, 20_000
READS = 20_000  # of single rows
SLOW_READS = 1_000  # of single rows in the slow ways
SLOW_LISTED = 20_000  # rows of which a column is made to a list


def write_rows(folder: Path, num_rows: int) -> None:
    """A ``save_to_disk`` folder of ``num_rows`` rows, a shard at a time."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    folder.mkdir()
    fields = [("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))]
    schema, names = pa.schema(fields), []
    for start in range(0, num_rows, SHARD_ROWS):
        count = min(SHARD_ROWS, num_rows - start)
        lengths = np.clip(rng.gamma(2.0, MEAN_TOKENS / 2, count), 8, LONGEST).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = rng.integers(0, 4096, offsets[-1], dtype=np.int32)
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        mask = (2 * places >= np.repeat(lengths, lengths)).astype(np.int8)
        lists = [pa.ListArray.from_arrays(offsets, values) for values in (ids, mask)]
        names.append(f"data-{len(names):05d}.arrow")
        with (
            pa.OSFile(str(folder / names[-1]), "wb") as sink,
            pa.ipc.new_stream(sink, schema) as writer,
        ):
            writer.write_table(pa.table(lists, schema), max_chunksize=1000)
    files = [{"filename": name} for name in names]
    state = {
        "_data_files": files, "_fingerprint": f"made-up-{num_rows}", "_format_columns": None,
        "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state))
    kinds = {"input_ids": "int32", "loss_mask": "int8"}
    features = {
        name: {"feature": {"dtype": kind, "_type": "Value"}, "_type": "List"}
        for name, kind in kinds.items()
    }
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("RssAnon is not known here")


def start(data: Path, began: float) -> dict[str, Any]:
    """What ``extract`` does up to its first batch, in this process; ``began`` is of its start."""
    from dflash_cache import demo
    from dflash_cache.config import ExtractConfig
    from dflash_cache.data import plan_batches
    from dflash_cache.runs.extraction import load_captures
    from dflash_cache.runs.preparation import missing_segments, prepare

    imported, imported_cpu = time.time(), time.process_time()
    config = ExtractConfig(
        data=data, target=str(demo.TARGET), cache=str(data / "cache"), devices=("cpu",)
    )
    preparation = prepare(config)
    prepared, prepare_cpu_s = time.time(), time.process_time() - imported_cpu
    captures = load_captures(preparation)
    loaded = time.time()
    segment = missing_segments(preparation, None)[0]
    first = plan_batches(segment.lengths, config.batch_tokens)[0]
    pairs = zip(segment.row_ids[first].tolist(), segment.lengths[first].tolist(), strict=True)
    sequences = [preparation.rows.sequence(row, length) for row, length in pairs]
    read = time.time()
    anonymous = anonymous_bytes()
    found = preparation.survey
    padded = sum(
        int(plan.lengths[batch].max()) * len(plan.lengths[batch])
        for plan in preparation.plan
        for batch in plan_batches(plan.lengths, config.batch_tokens)
    )
    del captures
    return {
        "first_batch_s": read - began,
        "without_model_s": (prepared - imported) + (read - loaded),
        "prepare_s": prepared - imported,
        "prepare_cpu_s": prepare_cpu_s,
        "first_read_s": read - loaded,
        "anonymous_bytes": anonymous,
        "padding": 1 - int(found.lengths.sum()) / padded,
        "first_batch_rows": len(sequences),
    }


def read_rows(data: Path) -> dict[str, Any]:
    """Microseconds a row, in random order: ids and mask copied, and the two slow ways."""
    import datasets
    import numpy as np

    from dflash_cache.data import TokenRows

    rows = TokenRows.open(data)
    order = np.random.default_rng(1).permutation(rows.num_rows)[:READS].tolist()
    seconds = []
    for _ in range(3):  # the first time the rows come from the disk
        began = time.perf_counter()
        for row in order:
            rows.sequence(row, LONGEST)
        seconds.append((time.perf_counter() - began) / len(order))
    columns, plain = ("input_ids", "loss_mask"), datasets.load_from_disk(str(data))
    few = order[:SLOW_READS]
    began = time.perf_counter()
    for row in few:
        for column in columns:
            plain[column][row]
    indexed = (time.perf_counter() - began) / len(few)
    part = plain.select(range(min(SLOW_LISTED, rows.num_rows)))
    began = time.perf_counter()
    for column in columns:
        list(part[column])
    listed = (time.perf_counter() - began) / len(part)
    return {
        "row_us": 1e6 * statistics.median(seconds),
        "indexed_row_us": 1e6 * indexed,
        "listed_row_us": 1e6 * listed,
        "indexed_all_s_extrapolated": indexed * rows.num_rows,
        "listed_all_s_extrapolated": listed * rows.num_rows,
    }


def in_new_process(kind: str, data: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", kind, str(data), str(time.time())]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def inspect_s(data: Path) -> float:
    program = Path(sys.executable).with_name("dflash-cache")
    began = time.perf_counter()
    subprocess.run([program, "inspect", data], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def compared(folder: Path, sizes: list[int], rounds: int) -> dict[str, Any]:
    data = {size: folder / f"rows-{size}" for size in sizes}
    for size, path in data.items():
        write_rows(path, size)
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes if number % 2 else sizes[::-1]:
            run = in_new_process("start", data[size]) | {"inspect_s": inspect_s(data[size])}
            found[size].append(run)
    medians = {
        str(size): {name: statistics.median(each[name] for each in runs) for name in runs[0]}
        for size, runs in found.items()
    }
    large, small = (medians[str(size)] for size in (max(sizes), min(sizes)))
    ratios = ("first_batch_s", "without_model_s", "inspect_s", "anonymous_bytes")
    return {
        "starts": medians,
        "large_of_small": {name: large[name] / small[name] for name in ratios},
        "reads": in_new_process("read", data[max(sizes)]),
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, data, began = sys.argv[2:]
        report = start(Path(data), float(began)) if kind == "start" else read_rows(Path(data))
        print(json.dumps(report))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=[902_087, 9_020])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        report = compared(Path(name), arguments.rows, arguments.rounds)
    print(json.dumps(rounded(report), indent=1))


if __name__ == "__main__":
    main()
