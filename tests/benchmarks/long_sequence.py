"""One row of 65,536 tokens through both phases: wall time and resident memory of each.

    python tests/benchmarks/long_sequence.py [--tokens 65536] [--overlap] [--folder DIR]

The target's states are as wide as a real one's, 5 layers of 1,024 values, and its attention is as
good as free. `dflash-cache both` runs in a process of its own. The report, JSON on stdout, has the
peak of its resident memory in either phase (of both at once with --overlap), also as multiples of
the row, in which docs/how-to/choose-settings.md counts what staging buffers and windows take.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support, wherever it is run

from tests.support.resident import anonymous_bytes
from tests.support.tiny_targets import rows_of, save_rows
from tests.support.wide_targets import HIDDEN_SIZE, save_wide_target

NUM_LAYERS, SHORT_ROWS, SHORT_TOKENS = 5, 24, 512
TOKEN_BYTES = NUM_LAYERS * HIDDEN_SIZE * 4  # float32
SETTINGS = {
    "target-layers": "0,1,2,3,4", "devices": "cpu", "device": "cpu", "max-seq-len": 65_536,
    "codec": "crc32c", "segment-tokens": 8192, "batch-tokens": 4096, "writers": 2,
    "draft-layers": 1, "block-size": 4, "anchors": 8, "batch-size": 1, "epochs": 1,
    "shuffle-segments": 1, "prefetch-bytes": 1, "prefetch-readers": 1, "holdout": 2,
    "mask-token-id": 511,
}  # fmt: skip


def command(folder: Path, options: argparse.Namespace) -> list[str]:
    rng = np.random.default_rng(0)
    lengths = [options.tokens] + [SHORT_TOKENS] * SHORT_ROWS
    rows = rows_of([rng.integers(0, 500, length) for length in lengths])
    paths = {
        "data": save_rows(folder / "data", rows),
        "target": save_wide_target(folder / "target"),
        "cache": folder / "cache",
        "out": folder / "run",
    }
    words = [word for name, value in (paths | SETTINGS).items() for word in (f"--{name}", value)]
    mode = ["--overlap"] if options.overlap else []
    return [sys.executable, "-m", "dflash_cache.cli", "both", *map(str, words), *mode, "--json"]


def run(words: list[str], out: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """(the command's report, the peaks of its memory before and since training began)."""
    peaks = {"extract": 0, "train": 0}
    ended = threading.Event()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ)

    def sample() -> None:
        while not ended.wait(0.01):
            phase = "train" if (out / "run.json").exists() else "extract"
            peaks[phase] = max(peaks[phase], anonymous_bytes(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        stdout, _ = process.communicate()
    finally:
        ended.set()
        sampler.join()
    assert process.returncode == 0, stdout
    return json.loads(stdout.splitlines()[-1]), peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        report, peaks = run(command(folder, options), folder / "run")
    row_bytes = options.tokens * TOKEN_BYTES
    figures = {
        "tokens": options.tokens,
        "overlap": options.overlap,
        "wall_s": report["wall_s"],
        "row_bytes": row_bytes,
        "peak_bytes": peaks,
        "rows_of_the_longest": {name: round(peak / row_bytes, 2) for name, peak in peaks.items()},
        "stages": report["extract"]["stages"] | report["train"]["stages"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
