"""The file of an instruction log. A thread of its own writes it, so that programs do not wait for the disk.

A log is a chain of parts: `run.log` is the newest, `run.log.1` the one before. Next to each, `run.log.data` has the values
that were kept, as NumPy's .npy records, one after the other. Values are written before the lines that name them, and lines
whole, so that the file of a killed process can be read up to its end. If the disk is full or gone, the log ends with one
warning, and the program goes on. `text.py` says what the lines mean.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gt.errors import GTError
from gt.ir.spec import Spec, unpack_spec
from gt.wire import messages as m

from .text import HEAD_TEXT, FetchResult, LoggedPut, LogWriter, SessionBegan

log: Final = logging.getLogger("gt")
DEFAULT_PART_BYTES: Final = 256 << 20
"""The bytes after which a log continues in another part, including its data."""
MAX_PARTS: Final = 8
"""How many of the newest parts are kept."""
POLL_SECONDS: Final = 0.05
"""The seconds after which the writer looks for new records."""
MAX_QUEUED_BYTES: Final = 256 << 20
"""The most bytes of values that may wait to be written; beyond that, the program waits for the disk."""
MAX_QUEUED_RECORDS: Final = 1 << 14
"""The most records that may wait."""
MAX_WAIT_SECONDS: Final = 5.0
"""The most seconds that anybody waits for the disk; then the log is given up."""


class FetchedArray(NamedTuple):
    """The result of a fetch, before its digest is computed."""

    request: int
    spec: Spec


class InstructionFile:
    """The log at `path`. Any thread may add to it. Raises `OSError` or `GTError` if it cannot be started."""

    def __init__(self, path: str | Path, *, data: bool = False, size: float = DEFAULT_PART_BYTES) -> None:
        self.path = Path(path)
        self.keeps = data
        self.size = size
        self.pid = os.getpid()
        self.failed = False
        self.queue: deque[tuple[int, Any, Any]] = deque()
        self.bytes = 0
        """The bytes of the values in the queue."""
        self.sessions = 0
        self.writer = LogWriter(os.urandom(4).hex(), data=data)
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.idle = True
        """Whether the writer has no batch in progress; records may still wait in the queue."""
        self.hurry = False
        self.written = 0
        self.placed = 0
        self.text = self._take()
        self.values: int | None = None
        try:
            self._begin()
        except OSError:
            os.close(self.text)
            raise
        threading.Thread(target=self._run, name="gt-instruction-log", daemon=True).start()

    # whoever is logged

    def session(self, where: str, workers: int, config: dict[str, Any] | None = None) -> int:
        """The number of a new session; `config` is that of its service, if known."""
        with self.lock:
            self.sessions += 1
            number = self.sessions
        self.add(number, SessionBegan(where, workers, config))
        return number

    def add(self, session: int, record: Any, values: Any = None) -> None:
        """Log a record. `values` (an array that nobody changes, or bytes) are what was put or fetched."""
        if self.failed:
            return
        if values is not None:
            self.bytes += values.nbytes if isinstance(values, np.ndarray) else len(values)
        if self.bytes > MAX_QUEUED_BYTES or len(self.queue) > MAX_QUEUED_RECORDS:
            self._wait(lambda: self.bytes <= MAX_QUEUED_BYTES and len(self.queue) <= MAX_QUEUED_RECORDS)
        self.queue.append((session, record, values))
        if self.idle:
            self.wake.set()

    def drain(self) -> None:
        """Wait until everything is written, or the log is given up."""
        self.hurry = True
        self._wait(lambda: not self.queue and self.idle)
        self.hurry = False

    def _wait(self, ready: Any) -> None:
        """Wait for the writer; give the log up if it makes no progress."""
        until, before = time.monotonic() + MAX_WAIT_SECONDS, self.written
        while not (ready() or self.failed or os.getpid() != self.pid):
            time.sleep(0.001)
            if self.written != before:
                until, before = time.monotonic() + MAX_WAIT_SECONDS, self.written
            elif time.monotonic() > until:
                self._give_up(f"nothing could be written for {MAX_WAIT_SECONDS:g} s")

    # the writer's thread

    def _run(self) -> None:
        while not self.failed:
            if not self.queue:
                self.idle = True
                if not self.queue:
                    self.wake.wait()
                self.wake.clear()
            self.idle = False
            try:
                self._write()
            except (OSError, ValueError, GTError, LookupError) as error:
                self._give_up(str(error))
            if not self.hurry and len(self.queue) < MAX_QUEUED_RECORDS:
                time.sleep(POLL_SECONDS)  # so the thread takes what comes in the meantime at once

    def _write(self) -> None:
        """Write a batch of waiting records."""
        lines: list[str] = []
        length = 0
        while self.queue and length < 1 << 20:
            session, record, values = self.queue.popleft()
            if isinstance(record, m.Put):
                known = unpack_spec(record.spec)
                at = None if values is None or not self.keeps else self._keep(known, values)
                record = LoggedPut(record.tensor, known, tuple(record.signal), at)
            elif isinstance(record, FetchedArray):
                record = self._fetched(record, values)
            if values is not None:
                self.bytes -= values.nbytes if isinstance(values, np.ndarray) else len(values)
            lines.append(self.writer.line(session, record))
            length += len(lines[-1])
            if self.placed + self.written + length > self.size:
                break
        self._put(self.text, "".join(lines).encode())
        if self.placed + self.written > self.size:
            self._rotate()

    def _put(self, file: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            count = os.write(file, view)
            view = view[count:]
            self.written += count

    def _keep(self, known: Spec, values: Any) -> int:
        """Append an array to the data file. Returns its offset there."""
        array = np.frombuffer(values, known.dtype.numpy) if not isinstance(values, np.ndarray) else values
        array = np.ascontiguousarray(array).reshape(known.shape)
        if array.dtype.kind == "V":  # bfloat16, which .npy files have no name for
            array = array.view(np.uint16)
        if self.values is None:
            self.values = os.open(self._data(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        at = self.placed
        with open(self.values, "wb", buffering=0, closefd=False) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
            self.placed = file.tell()
        self.written += 1
        return at

    def _fetched(self, got: FetchedArray, array: np.ndarray[Any, Any]) -> FetchResult:
        array = np.ascontiguousarray(array)
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        number = array.astype(_wide_dtype(got.spec), copy=False).item() if array.size == 1 else None
        return FetchResult(got.request, got.spec, digest, number, self._keep(got.spec, array) if self.keeps else None)

    def _give_up(self, why: str) -> None:
        with self.lock:
            if not self.failed:
                log.warning("the instruction log %s ends here, the program goes on without it: %s", self.path, why)
                self.failed = True
        self.queue.clear()

    # files

    def _data(self) -> Path:
        return self.path.with_name(self.path.name + ".data")

    def _take(self) -> int:
        """The descriptor of a new, locked file at `path`. Only logs are ever overwritten. If another process is logging there,
        it keeps its file, and this one writes to `run.PID.log`."""
        for path in (self.path, self.path.with_name(f"{self.path.stem}.{self.pid}{self.path.suffix}")):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            if os.read(file, len(HEAD_TEXT)) not in (b"", HEAD_TEXT.encode()):
                os.close(file)
                raise GTError(f"{path} is there and is no instruction log: name another file")
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            self.path = path
            return file
        raise GTError(f"{self.path} is being written by another process")

    def _begin(self) -> None:
        """Write the head of a part."""
        self.written = self.placed = 0
        self.values = None
        self._data().unlink(missing_ok=True)
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        about = (
            f"protocol {m.VERSION}, Python {platform.python_version()}, NumPy {np.__version__}, process {self.pid} on "
        )
        self._put(self.text, self.writer.head(f"{about}{platform.node()}, {now}").encode())

    def _rotate(self) -> None:
        """Continue in another part."""
        os.close(self.text)
        if self.values is not None:
            os.close(self.values)
        for number in range(MAX_PARTS - 1, 0, -1):
            for suffix in ("", ".data"):
                older = self.path.with_name(f"{self.path.name}{f'.{number - 1}' if number > 1 else ''}{suffix}")
                newer = self.path.with_name(f"{self.path.name}.{number}{suffix}")
                if older.exists():
                    older.replace(newer)
                else:
                    newer.unlink(missing_ok=True)
        self.text = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self.text, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._begin()


def _wide_dtype(known: Spec) -> Any:
    """A dtype that Python's numbers can represent."""
    return np.float32 if known.dtype.short == "bf16" else known.dtype.numpy
