"""A terminal for tests: a program runs in a real pseudo-terminal, and what it writes is put on a screen of characters.

It knows as much of the language of terminals as full-screen programs speak that place their text themselves: moves of the
cursor, erasing, and text. Colours are left out.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from rich.cells import cell_len

TOKEN = re.compile(
    r"\x1b\[([?<>=]?)([\d;]*)[ $]?([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP[^\x1b]*\x1b\\|\x1b[()].|\x1b[=>78cDMHN]"
)
UNFINISHED = re.compile(r"\x1b(\[[?<>=]?[\d;]*[ $]?|\][^\x07]*|P[^\x1b]*\x1b?|[()])?$")


class Screen:
    """Rows of characters and a cursor; a character two cells wide leaves the second one empty."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]
        self.x = self.y = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Take in what a program wrote; a sequence that is cut goes on with the next."""
        text, place = self._rest + text, 0
        cut = UNFINISHED.search(text)
        self._rest = cut.group() if cut else ""
        text = text[: len(text) - len(self._rest)]
        for token in TOKEN.finditer(text):
            self._write(text[place : token.start()])
            place = token.end()
            if token[3] and not token[1]:
                self._control(token[3], [int(number or 0) for number in token[2].split(";")])
        self._write(text[place:])

    def _write(self, text: str) -> None:
        for sign in text:
            if sign == "\r":
                self.x = 0
            elif sign == "\n":
                self.y = min(self.height - 1, self.y + 1)
            elif sign == "\b":
                self.x = max(0, self.x - 1)
            elif sign >= " ":
                if self.x < self.width and self.y < self.height:
                    self.cells[self.y][self.x] = sign
                for spare in range(self.x + 1, min(self.width, self.x + cell_len(sign))):
                    self.cells[self.y][spare] = ""
                self.x += cell_len(sign)

    def _control(self, final: str, numbers: list[int]) -> None:
        first = max(1, numbers[0])
        if final in "Hf":
            self.y, self.x = first - 1, max(1, numbers[1] if len(numbers) > 1 else 1) - 1
        elif final == "A":
            self.y = max(0, self.y - first)
        elif final == "B":
            self.y = min(self.height - 1, self.y + first)
        elif final == "C":
            self.x = min(self.width - 1, self.x + first)
        elif final == "D":
            self.x = max(0, self.x - first)
        elif final == "G":
            self.x = first - 1
        elif final == "J" and numbers[0] in (2, 3):
            self.cells = [[" "] * self.width for _ in range(self.height)]
        elif final == "K":
            self.cells[self.y][self.x :] = [" "] * (self.width - self.x)

    @property
    def lines(self) -> list[str]:
        """What is seen."""
        return ["".join(row).rstrip() for row in self.cells]


class Terminal:
    """A program in a pseudo-terminal of a size."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], size: tuple[int, int], term: str = "xterm-256color"
    ) -> None:
        self.screen = Screen(*size)
        given = {**environment, "TERM": term, "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        for name in ("COLUMNS", "LINES"):  # of the terminal that the tests run in, which would be believed
            given.pop(name, None)
        rows_and_columns = struct.pack("HHHH", size[1], size[0], 0, 0)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # the child: its terminal's size, and exec
            fcntl.ioctl(0, termios.TIOCSWINSZ, rows_and_columns)
            os.execvpe(arguments[0], arguments, given)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._status: int | None = None

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.screen.lines)

    def read(self, timeout: float) -> bool:
        """Take in what comes within so many seconds; False at the end."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if poll.poll(1000 * timeout):
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return False
            self.screen.feed(self._decoder.decode(data))
            return bool(data)
        return True

    def until(self, pattern: str, timeout: float) -> re.Match[str]:
        """Wait until the screen matches a pattern."""
        found = self.shows(pattern, timeout)
        assert found, f"{pattern!r} was not seen in {timeout:g} s, or before the end, but\n{self.text}"
        return found

    def shows(self, pattern: str, timeout: float) -> re.Match[str] | None:
        """What of the screen matches a pattern within so many seconds, if anything does."""
        deadline, goes_on = time.monotonic() + timeout, True
        while not (found := re.search(pattern, self.text, re.MULTILINE)) and goes_on:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            goes_on = self.read(min(left, 1.0))
        return found

    def press(self, keys: str) -> None:
        """As if somebody typed."""
        os.write(self.fd, keys.encode())

    def wait(self, timeout: float) -> int:
        """Its exit status; what it still writes is read."""
        deadline = time.monotonic() + timeout
        while self.read(0.2):
            assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
        return self._reap()

    def _reap(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        os.close(self.fd)
