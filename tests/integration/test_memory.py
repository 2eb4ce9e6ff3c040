"""What writing and reading hold in memory does not grow with what is written and read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "memory.py"
WRITTEN = 256 << 20
OTHER_BYTES = 24 << 20  # stacks of threads, the allocator's arenas, records and token ids


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's own memory")
def test_memory_is_bounded_by_buffers_windows_and_ready_batches(tmp_path):
    words = f"--bytes {WRITTEN} --segment-tokens 1024 --batch-tokens 1024".split()
    done = subprocess.run(
        [sys.executable, BENCHMARK, *words, "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=True,
        cwd=BENCHMARK.parents[2],
        env=os.environ | {"PYTHONPATH": "."},
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["write"]["bytes"] == report["read"]["bytes"] >= WRITTEN
    for way in report.values():
        bound = way["buffer_bytes"] + way["chunk_bytes"] + OTHER_BYTES
        assert way["growth_bytes"] <= bound < way["bytes"]
