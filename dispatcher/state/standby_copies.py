"""The standby of a service: another dispatcher that would take its place, and the files that it has copies of.

It gets all files of sessions when it joins, and then each that is written or removed, one after the other: the next is read when
the standby has the last one, so what waits is names and no data. Until it has been sent all that there was, it is not `complete`.
State only: the shell reads the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gt.errors import ProtocolError
from gt.wire import messages as m

from .events import DropSession, FileRead, FilesListed, ListFiles, ReadFile, WriteSession

SUFFIX: Final = "-session"
BEGIN: Final = "begin-"
NUMBERS: Final = "numbers"
"""The name of the file that keeps what numbers were given (`dispatcher/number_file.py`)."""
END: Final = ""
"""In place of a name: the standby has been sent all that there was."""
PIECE_BYTES: Final = 1 << 20
STANDBY_SECONDS: Final = 5.0
"""The seconds of silence after which marks go on without the standby. Until then none is durable that it does not have."""


def file_of(key: bytes, mark: int) -> str:
    """The name of the file of a mark, or (0) of a session without one."""
    return f"{mark}{SUFFIX}" if mark else f"{BEGIN}{key.hex()}"


def mark_of(name: str) -> int:
    """The number of the mark whose file that is; 0 for another file."""
    number, dash, rest = name.partition("-")
    return int(number) if f"{dash}{rest}" == SUFFIX and number.isascii() and number.isdecimal() else 0


def is_copied(name: str) -> bool:
    """Whether a file of this name is one that standbys copy."""
    key = name.removeprefix(BEGIN)
    return (
        name == NUMBERS
        or mark_of(name) > 0
        or (key != name and 0 < len(key) <= 64 and set(key) <= {*"0123456789abcdef"})
    )


class Replacement(NamedTuple):
    """Another dispatcher has taken the place of this one: its epoch, and (unless a worker has said so) its connection."""

    epoch: int
    peer: bytes = b""


class StandbyCopies:
    """The standby, if there is one (`peer`), where it listens, and what it has yet to be sent."""

    def __init__(self) -> None:
        self.peer = b""
        self.address = ""
        """Where clients and workers are told to look; it stays when the standby is out of reach."""
        self.heard = 0.0
        self.complete = False
        self.listed = False
        self.stale: dict[str, None] = {}
        """The files of which it has no copy, or an older one, in the order in which they changed."""
        self.copying: str | None = None
        """The file that is being read or sent."""

    def join(self, peer: bytes, address: str, now: float) -> ListFiles:
        """A standby that listens at `address` joins, and has nothing. Returns what the shell is to do."""
        self.leave()
        self.peer, self.address, self.heard = peer, address, now
        return ListFiles(peer)

    def leave(self) -> None:
        """The standby is gone."""
        self.peer = b""
        self.complete = self.listed = False
        self.stale.clear()
        self.copying = None

    def note(self, work: object) -> None:
        """Note what the shell is asked to do with files, before what it is asked next."""
        if self.peer and isinstance(work, (WriteSession, DropSession)):
            key, mark = (work.card.key, work.card.mark) if isinstance(work, WriteSession) else (work.key, work.mark)
            self.changed(file_of(key, mark))

    def changed(self, name: str) -> None:
        """A file has changed, or will have when the shell has done what it was asked to do."""
        if self.peer:
            self.stale.pop(name, None)
            self.stale[name] = None

    def see_listed(self, event: FilesListed) -> None:
        """These files are there: they are sent before what has changed since."""
        if event.peer == self.peer and not self.listed:
            self.listed = True
            self.stale = dict.fromkeys(
                [NUMBERS, *(name for name in event.names if name not in self.stale), *self.stale]
            )
            self.stale[END] = None

    def next(self) -> ReadFile | m.CopyFile | None:
        """What is to be read or said next; None: nothing, or not yet."""
        if not self.listed or self.copying is not None or not self.stale:
            return None
        name = next((name for name in self.stale if name != END), END)
        del self.stale[name]
        self.copying = name
        return ReadFile(self.peer, name) if name != END else m.CopyFile(END, 0, b"")

    def pieces(self, event: FileRead) -> Iterator[m.CopyFile]:
        """The messages that carry a file which was read."""
        if event.peer != self.peer or event.name != self.copying:
            return
        data = event.data
        if data is None:
            yield m.CopyFile(event.name, -1, b"")
            return
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            yield m.CopyFile(event.name, len(data), data[start : start + PIECE_BYTES])

    def copied(self, name: str) -> bool:
        """The standby has a file. Returns whether it has become complete by that. Raises `ProtocolError` if it was not sent."""
        if name != self.copying:
            raise ProtocolError("the standby was not sent this file")
        self.copying = None
        if name != END:
            return False
        self.complete = True
        return True
