"""Writes, reads and removes the files of sessions, by which a dispatcher that is started again finds them as they were.

They lie in the folder of marks, beside what workers write there. The file of a mark is `7-session`, so it goes with the mark's
other files when those are removed; what holds without a mark (how its meshes are shaped) is in `begin-` and its key.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from gt.errors import SnapshotError
from gt.snapshot_files.whole_file import whole_file
from gt.wire.faults import fault_of

from .state.events import (
    DropSession,
    FileRead,
    FilesListed,
    ListFiles,
    ReadFile,
    ReadSession,
    SessionRead,
    SessionWritten,
    WriteSession,
)
from .state.mark_bytes import PackedParts, SessionCard, pack_session, read_card, read_mark
from .state.standby_copies import BEGIN, SUFFIX, file_of

log = logging.getLogger("gt.dispatcher")
FileWork = WriteSession | ReadSession | DropSession | ListFiles | ReadFile
FileAnswer = SessionWritten | SessionRead | FilesListed | FileRead


class SessionFiles:
    """The files of sessions in a folder. `clock` counts nanoseconds."""

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        self.folder = folder
        self.clock = clock
        self.parts: dict[bytes, PackedParts] = {}
        """By the key of each session: what was packed for its last file."""
        self.warned = False
        """Whether the last card without a mark could not be written: nobody waits for these, so it is logged, once."""

    def cards(self) -> list[SessionCard]:
        """The cards of all sessions that an earlier dispatcher has left. What it left besides, and files that are damaged, are
        removed."""
        found: list[SessionCard] = []
        for path in self._paths():
            try:
                found.append(read_card(path.read_bytes()))
            except (OSError, SnapshotError) as error:
                log.warning("a session cannot be had from %s: %s", path, error)
                _remove(path)
        marks = {str(card.mark) for card in found if card.mark}
        for path in self.folder.glob("*"):
            first, dash, _ = path.name.removeprefix(".").partition("-")
            draft = path.name.startswith(f".{BEGIN}")
            if draft or (dash and first.isdecimal() and first not in marks):
                _remove(path)
        return found

    def do(self, work: FileWork) -> FileAnswer | None:
        """Do some work. Raises nothing: an error is part of the answer."""
        if isinstance(work, WriteSession):
            began, path = self.clock(), self._path(work.card.key, work.card.mark)
            try:
                self._write(work, path)
                fault = None
            except Exception as error:  # noqa: BLE001 — whatever it is, the core waits for the answer
                fault = fault_of(SnapshotError(f"a session's file cannot be written: {path}: {_said(error)}"))
            if work.card.mark:
                return SessionWritten(work.card.mark, fault, self.clock() - began)
            if fault is not None and not self.warned:
                log.warning(
                    "the next dispatcher would not know how meshes are shaped, nor what operators have ordered: %s",
                    fault[1],
                )
            self.warned = fault is not None
            return None
        if isinstance(work, ListFiles):
            return FilesListed(work.peer, tuple(path.name for path in self._paths()))
        if isinstance(work, ReadFile):
            try:
                return FileRead(work.peer, work.name, (self.folder / work.name).read_bytes())
            except OSError:
                return FileRead(work.peer, work.name, None)
        path = self._path(work.key, work.mark)
        if isinstance(work, DropSession):
            _remove(path)
            if work.last:
                self.parts.pop(work.key, None)
            return None
        try:
            return SessionRead(work.client, read_mark(path.read_bytes()), None)
        except Exception as error:  # noqa: BLE001 — as above
            return SessionRead(work.client, None, fault_of(SnapshotError(f"{path}: {_said(error)}")))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: bytes, mark: int) -> Path:
        return self.folder / file_of(key, mark)

    def _paths(self) -> list[Path]:
        return sorted((*self.folder.glob(f"*{SUFFIX}"), *self.folder.glob(f"{BEGIN}*")))

    def _write(self, work: WriteSession, path: Path) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        parts = self.parts.setdefault(work.card.key, PackedParts())
        with whole_file(path, sync=False) as file:
            for piece in pack_session(work.card, work.state, parts):
                file.write(piece)


def _remove(path: Path) -> None:
    """Remove a file, if it is there and can be: a worker may be faster."""
    with contextlib.suppress(OSError):
        path.unlink()


def _said(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
