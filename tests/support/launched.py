"""Commands that take several processes: under torchrun, or on a Ray cluster of this machine."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dflash_cache import demo
from dflash_cache.pipeline import descendants, ending

from .ports import free_port

PATIENCE_S = 180.0
RANKS = 2  # in all, whatever the line says
NODES = re.compile(r"--nnodes (\d+)")
# Other clusters of the machine, and a token of its user, are left alone.
RAY_ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


class Processes:
    """Of one command line; ``stop`` ends them, and what they started."""

    def __init__(self, lines: Sequence[Sequence[str]], environment: dict[str, str]) -> None:
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  as long as they live
        self._started = [
            subprocess.Popen(
                words, env=os.environ | environment, stdout=self._said, stderr=self._said
            )
            for words in lines
        ]

    def require_success(self) -> None:
        """Wait for their end."""
        try:
            codes = [process.wait(PATIENCE_S) for process in self._started]
            assert not any(codes), self.said()
        finally:
            self.stop()

    def ended(self) -> bool:
        return any(process.poll() is not None for process in self._started)

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()

    def stop(self) -> None:
        self._said.close()
        pids = {process.pid for process in self._started if process.poll() is None}
        with ending(pids.union(*map(descendants, pids))):
            pass
        for process in self._started:
            process.wait()


def run_torchrun(line: str) -> None:
    """Run a line that begins with ``torchrun`` once a node; all nodes are this machine."""
    nodes = int(found[1]) if (found := NODES.search(line)) else 1
    line = re.sub(r"--nproc-per-node \d+", f"--nproc-per-node {RANKS // nodes}", line)
    line = re.sub(r"node-0:\d+", f"127.0.0.1:{free_port()}", line)
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:]]
    Processes([words] * nodes, {}).require_success()


class RayCluster:
    """Four CPUs on this machine; commands of ``run`` find it as ``--address auto`` does."""

    def __init__(self) -> None:
        port = free_port()
        self._environment = RAY_ENVIRONMENT | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
        self._program = str(Path(sys.executable).with_name("ray"))
        words = ["start", "--head", f"--port={port}", "--num-cpus=4", "--block"]
        words += ["--include-dashboard=false", f"--object-store-memory={100 << 20}"]
        self._head = Processes([[self._program, *words]], self._environment)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_up():
            if self._head.ended() or time.monotonic() > deadline:
                said = self._head.said()
                self.stop()
                raise TimeoutError(f"the cluster did not start: {said}")

    def _is_up(self) -> bool:
        asked = subprocess.run(
            [self._program, "status"],
            env=os.environ | self._environment, capture_output=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip
        return asked.returncode == 0

    def run(self, command: str) -> None:
        arguments = shlex.split(command.replace("TARGET", str(demo.TARGET)))
        words = [sys.executable, "-m", "dflash_cache.cli", *arguments]
        Processes([words], self._environment).require_success()

    def stop(self) -> None:
        self._head.stop()
