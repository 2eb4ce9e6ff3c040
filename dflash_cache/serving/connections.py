"""The open sockets of a client, so that a stop can end what threads wait for in them."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dflash_cache.pipeline import Monitor

_OPENED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class Connections:
    """Filled by ``trace``, which the client calls; ``shut_down`` wakes all who read or write."""

    def __init__(self) -> None:
        self._lock = Monitor("connections")
        self._sockets: list[socket.socket] = []
        self.is_shut_down = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """What httpx2 calls with each event of a request, as its extension ``trace``."""
        if event not in _OPENED:
            return
        opened = info["return_value"].get_extra_info("socket")
        with self._lock:
            # One that is closed, or that TLS was laid over, has no descriptor any more.
            self._sockets = [each for each in self._sockets if each.fileno() >= 0] + [opened]
            if self.is_shut_down:
                _shut_down(opened)

    def shut_down(self) -> None:
        with self._lock:
            self.is_shut_down = True
            for each in self._sockets:
                _shut_down(each)


def _shut_down(opened: socket.socket) -> None:
    """Closing would not wake a thread that waits in it. TLS is passed over: nothing is said."""
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
