"""The files that a dispatcher keeps of what was ordered and used, in a folder of an operator's choice (`--accounts`).

Lines are only appended, each whole and with one call, so that whoever reads beside it sees no half line; what a crash has left of
one is cut off at the next start. A file that has become large is moved to `NAME.1`, that to `NAME.2`, and so on, and the oldest
is removed. One dispatcher has the folder at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from gt.errors import GTError

from .operators.audit import AuditRecord

log = logging.getLogger("gt.dispatcher")
AUDIT_FILE: Final = "audit.jsonl"
"""Who has ordered what: a JSON object on each line."""
LOCK_FILE: Final = "lock"
MAX_FILE_BYTES: Final = 16 << 20
"""A file that has so many bytes is moved."""
KEPT_FILES: Final = 8
"""How many that were moved are kept of each."""


class WriteAudit(NamedTuple):
    """Records for the audit log, of this time in seconds since 1970."""

    wall: float
    records: list[AuditRecord]


class Flush(NamedTuple):
    """Says when all that came before it is written."""

    done: Event


AccountWork = WriteAudit | Flush


class AccountsInUse(GTError):
    """Another dispatcher has the folder."""


class AppendedFile:
    """A file of lines. `header` is the first line of each such file, if there is one."""

    def __init__(self, path: Path, header: str = "", most: int = MAX_FILE_BYTES, kept: int = KEPT_FILES) -> None:
        self.path = path
        self.header = header
        self.most = most
        self.kept = kept
        _cut_torn_line(path)

    def append(self, lines: list[str]) -> None:
        """Write whole lines, and have them on the disk. Raises `OSError`."""
        text = "".join(f"{line}\n" for line in lines).encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(text) > self.most:
                self._move()
                os.close(descriptor)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                size = 0
            if not size and self.header:
                text = f"{self.header}\n".encode() + text
            while text:
                text = text[os.write(descriptor, text) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _move(self) -> None:
        """Give this file and all before it the next higher number."""
        for number in range(self.kept, 0, -1):
            before = self.path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                before.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class AccountFiles:
    """The files in a folder, as the work of a thread (`gt/daemon/file_thread.py`). Raises `AccountsInUse` or `OSError`."""

    def __init__(self, folder: Path) -> None:
        self.lock = _lock(folder)
        """Held until this process ends."""
        self.audit = AppendedFile(folder / AUDIT_FILE)
        self.failed = False
        """Whether the last write has failed, which was logged."""

    def do(self, work: AccountWork) -> None:
        """Write what there is. An error is logged, once until it works again."""
        if isinstance(work, Flush):
            work.done.set()
            return
        try:
            self.audit.append([audit_line(each, work.wall) for each in work.records])
            self.failed = False
        except OSError as error:
            if not self.failed:
                log.error("cannot write %s: %s", self.audit.path, error)
            self.failed = True

    def close(self) -> None:
        """Nothing stays open."""


def audit_line(record: AuditRecord, wall: float) -> str:
    """A record as a line of the audit log: `time` in UTC, `who` and `process`, `action`, `subject` and `value`, `outcome`, and
    `text` and `untold` where there is something to say."""
    told: dict[str, Any] = {"time": moment(wall), **record._asdict()}
    for name in ("value", "text", "untold"):
        if not told[name]:
            del told[name]
    return json.dumps(told, ensure_ascii=True)


def moment(wall: float) -> str:
    """A time as ISO 8601 says it, in UTC, to the millisecond."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lock(folder: Path) -> int:
    """Take a folder for this process, which makes it if it is not there. Returns a descriptor, which holds the lock."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AccountsInUse(
            f"another dispatcher keeps its accounts in {folder}: give this one a folder of its own"
        ) from None
    return descriptor


def _cut_torn_line(path: Path) -> None:
    """Cut off what a crash has left of a line at the end of a file."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            end = size
            while end:
                start = max(0, end - 4096)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
            if end < size:
                file.truncate(end)
    except FileNotFoundError:
        return
