"""The files that a dispatcher keeps of what was ordered and used, in a folder of an operator's choice (`--accounts`).

Lines are only appended, each whole and with one call, so that whoever reads beside it sees no half line; what a crash has left of
one is cut off at the next start. A file that has become large is moved to `NAME.1`, that to `NAME.2`, and so on, and the oldest
is removed. One dispatcher has the folder at a time.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

from gt.errors import GTError

from .operators.audit import AuditRecord
from .telemetry.usage_reports import UsageLine

log = logging.getLogger("gt.dispatcher")
USAGE_FILE: Final = "usage.csv"
"""What each session has used, a line for each and about each minute: `USAGE_COLUMNS`."""
USAGE_COLUMNS: Final = (
    "start", "end", "service", "epoch", "principal", "program", "session", "device_seconds", "predicted_device_seconds", "runs",
    "instructions", "moved_bytes", "put_bytes", "fetched_bytes", "held_byte_seconds", "joules",
)  # fmt: skip
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


class WriteUsage(NamedTuple):
    """Lines for the usage file. `offset` is what to add to their times to get seconds since 1970; `service` and `epoch` say whose
    sessions they number."""

    offset: float
    service: int
    epoch: int
    lines: list[UsageLine]


class Flush(NamedTuple):
    """Says when all that came before it is written."""

    done: Event


AccountWork = WriteAudit | WriteUsage | Flush


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
        self.usage = AppendedFile(folder / USAGE_FILE, ",".join(USAGE_COLUMNS))
        self.failed = False
        """Whether the last write has failed, which was logged."""

    def do(self, work: AccountWork) -> None:
        """Write what there is. An error is logged, once until it works again."""
        if isinstance(work, Flush):
            work.done.set()
            return
        file = self.audit if isinstance(work, WriteAudit) else self.usage
        try:
            if isinstance(work, WriteAudit):
                file.append([audit_line(each, work.wall) for each in work.records])
            else:
                file.append([usage_line(each, work) for each in work.lines])
            self.failed = False
        except OSError as error:
            if not self.failed:
                log.error("cannot write %s: %s", file.path, error)
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


def usage_line(line: UsageLine, about: WriteUsage) -> str:
    """A line of the usage file, as a spreadsheet reads it: no text is a formula or has a line break. The joules are empty where
    no device tells its power."""
    device, predicted, *counts, energy = line.values
    start, end = (moment(at + about.offset) for at in (line.since, line.until))
    joules = "" if energy < 0 else f"{energy // 1000}.{energy % 1000:03}"
    told = io.StringIO()
    csv.writer(told, lineterminator="").writerow(
        [
            start, end, about.service, about.epoch, _plain(line.principal), _plain(line.program), line.session, _seconds(device),
            _seconds(predicted), *counts, joules,
        ]
    )  # fmt: skip
    return told.getvalue()


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09}"


def _plain(text: str) -> str:
    """A text without characters that end lines, or that make a formula of it."""
    text = "".join(each if each.isprintable() else " " for each in text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


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
