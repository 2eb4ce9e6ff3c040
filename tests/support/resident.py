"""How much memory of its own this process holds, while something goes on."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self


def anonymous_bytes(process: int | str = "self") -> int:
    """RssAnon: resident memory that no file stands behind, so neither page cache nor libraries.

    0 of a process that has ended.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    return 0


class Growth:
    """Samples the process on a thread; ``peak_bytes`` is the most above what it held at first."""

    def __init__(self, every_s: float = 0.005) -> None:
        self.peak_bytes = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="growth")

    def _sample(self) -> None:
        while not self._stop.wait(self._every_s):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes() - self._before)

    def __enter__(self) -> Self:
        self._before = anonymous_bytes()
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
