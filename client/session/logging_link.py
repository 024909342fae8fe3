"""A link that logs what goes through it, when `GT_INSTRUCTION_LOG` names a file. Without that nothing here is ever loaded.

All of a process' sessions share one log; a forked child begins one of its own. Nothing here waits for a disk, and no error
of the log reaches the program.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any, Final

import numpy as np

from gt.daemon.host import environment_number
from gt.errors import GTError
from gt.instruction_log.file import DEFAULT_PART_BYTES, FetchedArray, InstructionFile
from gt.instruction_log.text import LOGGED_MESSAGES, FetchFault, SessionEnded, fetch_of
from gt.wire import messages as m
from gt.wire.reliable_stream import Frames

from .future import Future
from .session import Session

log: Final = logging.getLogger("gt")
_open: Final[dict[str, InstructionFile]] = {}
"""By the path that was asked for."""


class LoggingLink:
    """A link that logs to `file` all that is sent through `link`; everything else is the inner link's own."""

    def __init__(self, link: Any, file: InstructionFile) -> None:
        self._link = link
        self._file = file
        self._session: Session | None = None
        self._number = 0
        self._copies: dict[int, np.ndarray[Any, Any]] = {}
        for name in ("receive", "wait", "offer_fetch", "settle", "local_values", "under_way", "sending"):
            setattr(self, name, getattr(link, name))  # found at once

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, message: m.Message) -> Frames:
        """Log and send one message, and return its frames."""
        self._log(message)
        frames: Frames = self._link.send(message)
        return frames

    def encode(self, message: m.Message) -> Frames:
        """Log a message that is sent later, and return its frames."""
        self._log(message)
        frames: Frames = self._link.encode(message)
        return frames

    def _log(self, message: m.Message) -> None:
        session = self._session
        if session is not None:
            fetch = message if isinstance(message, m.Fetch) else None
            if isinstance(message, m.Run):
                fetch = fetch_of(message)
            if fetch is not None:
                number = fetch.request
                session.requests[number].add_done_callback(lambda future: self._log_result(number, future))
            if isinstance(message, LOGGED_MESSAGES):
                self._file.add(self._number, message)
                if fetch is not None and fetch is not message:
                    self._file.add(self._number, fetch)
            elif isinstance(message, m.Put):
                data = self._copies.pop(message.tensor, None) if message.bulk else message.data
                self._file.add(self._number, message._replace(data=b""), data if self._file.keeps else None)
            elif isinstance(message, m.Restore):  # whose values this process does not see
                self._file.add(self._number, m.Put(message.tensor, message.spec, message.signal, False, b""), None)

    def prepare(self, array: np.ndarray[Any, Any], kind: Any) -> Any:
        """What goes by the bulk socket, with a copy of it when values are kept."""
        put = self._link.prepare(array, kind)
        return put if put is None or not self._file.keeps else (put, array.copy())

    def has_memory(self, nbytes: int, count: int) -> bool:
        """Pass on the question."""
        return bool(self._link.has_memory(nbytes, count))

    def put_bulk(self, tensor: int, put: Any, *, later: bool = False) -> Any:
        """Pass on what was prepared."""
        if self._file.keeps:
            put, self._copies[tensor] = put
        return self._link.put_bulk(tensor, put, later=later)

    def close(self) -> None:
        """End the connection, and see the log written."""
        self._link.close()
        if self._session is not None:
            self._file.add(self._number, SessionEnded())
            self._session = None
            self._file.drain()

    def begin(self, session: Session) -> None:
        """Log from now on."""
        self._number = self._file.session(session.name, int(session.facts.get("workers", 0)))
        self._session = session

    def _log_result(self, request: int, future: Future) -> None:
        error = future._error
        if error is not None:
            self._file.add(self._number, FetchFault(request, type(error).__name__, str(error)))
        elif isinstance(future._array, np.ndarray) and future._spec is not None:
            self._file.add(self._number, FetchedArray(request, future._spec), future._array.copy())


def with_logging(link: Any) -> Any:
    """The link, logged if the environment says so. Call `begin` once the session is open."""
    path = os.environ.get("GT_INSTRUCTION_LOG", "")
    if not path:
        return link
    file = _open.get(path)
    if file is None or file.pid != os.getpid():
        size = environment_number("GT_INSTRUCTION_LOG_SIZE", DEFAULT_PART_BYTES)
        data = os.environ.get("GT_INSTRUCTION_LOG_DATA", "") not in ("", "0")
        try:
            file = _open[path] = InstructionFile(path, data=data, size=size)
        except (OSError, GTError) as error:
            log.warning("no instruction log is written: %s", error)
            return link
        if str(file.path) != path:
            log.warning("another process writes the instruction log %s; this one's is %s", path, file.path)
    return LoggingLink(link, file)


def _drain() -> None:
    for file in _open.values():
        if file.pid == os.getpid():
            file.drain()


atexit.register(_drain)
