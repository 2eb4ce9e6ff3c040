"""Commands that take several processes: under torchrun, or on a Ray cluster of this machine."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from dflash_cache import demo
from dflash_cache.pipeline import descendants, ending

PATIENCE_S = 180.0
RANKS = 2  # in all, whatever the line says
NODES = re.compile(r"--nnodes (\d+)")
# Other clusters of the machine, and a token of its user, are left alone.
RAY_ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_torchrun(line: str) -> None:
    """Run a line that begins with ``torchrun`` once a node; all nodes are this machine."""
    nodes = int(found[1]) if (found := NODES.search(line)) else 1
    line = re.sub(r"--nproc-per-node \d+", f"--nproc-per-node {RANKS // nodes}", line)
    line = re.sub(r"node-0:\d+", f"127.0.0.1:{free_port()}", line)
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:]]
    started = [_start(words) for _ in range(nodes)]
    for process in started:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, f"{line}: {errors}"


class RayCluster:
    """Four CPUs on this machine; commands of ``run`` find it as ``--address auto`` does."""

    def __init__(self) -> None:
        port = free_port()
        self._environment = RAY_ENVIRONMENT | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
        program = Path(sys.executable).with_name("ray")
        words = ["start", "--head", f"--port={port}", "--num-cpus=4", "--block"]
        words += ["--include-dashboard=false", f"--object-store-memory={100 << 20}"]
        self._head = _start([str(program), *words], self._environment, output=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(port):
            assert self._head.poll() is None, "the cluster ended"
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.1)

    def run(self, command: str) -> None:
        arguments = shlex.split(command.replace("TARGET", str(demo.TARGET)))
        words = [sys.executable, "-m", "dflash_cache.cli", *arguments]
        process = _start(words, self._environment)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, f"dflash-cache {command}: {errors}"

    def stop(self) -> None:
        with ending({self._head.pid, *descendants(self._head.pid)}):
            pass
        self._head.wait()


def _start(
    words: list[str], environment: dict[str, str] | None = None, output: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, env=os.environ | (environment or {}), stdout=output, stderr=output, text=True
    )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
