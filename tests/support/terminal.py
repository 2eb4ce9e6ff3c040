"""A command on a pseudo-terminal, and what its screen shows."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Sequence

_PIECES = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]+")


class Screen:
    """Lines as a terminal shows them, all of which scrolled away included."""

    def __init__(self, written: str) -> None:
        self.cursor_shown = True
        self._lines = [""]
        self._row = self._column = 0
        for piece in _PIECES.finditer(written):
            if piece[2]:
                self._control(piece[1], piece[2])
            elif piece[0] == "\r":
                self._column = 0
            elif piece[0] == "\n":
                self._row += 1
                self._lines += [""] * (self._row + 1 - len(self._lines))
            elif not piece[0].startswith("\x1b"):
                line = self._lines[self._row].ljust(self._column)
                end = self._column + len(piece[0])
                self._lines[self._row] = line[: self._column] + piece[0] + line[end:]
                self._column = end

    def _control(self, number: str, letter: str) -> None:
        if number == "?25":
            self.cursor_shown = letter == "h"
        elif letter == "A":
            self._row = max(0, self._row - int(number or 1))
        elif letter == "K":
            self._lines[self._row] = ""
        else:
            assert letter in "mhl", f"a control that this screen does not know: {number}{letter}"

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._lines).rstrip()


def run_on_terminal(
    words: Sequence[str], *, columns: int, interrupt_at: str | None = None
) -> tuple[int, str]:
    """(exit code, all that was written); with a Ctrl-C once ``interrupt_at`` was."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=inherited | {"TERM": "xterm"}
    )
    os.close(theirs)
    written, sent = b"", interrupt_at is None
    try:
        while chunk := _read(ours):
            written += chunk
            if interrupt_at is not None and not sent and interrupt_at.encode() in written:
                process.send_signal(signal.SIGINT)
                sent = True
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert sent, f"{interrupt_at!r} was never shown:\n{written.decode()}"
    return code, written.decode()


def _read(terminal: int) -> bytes:
    """Empty at the end, which Linux tells by an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
