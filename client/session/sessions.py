"""The sessions of this process: the default one, and each thread's builder for it. They are the only global state of the client.

The first operation starts the default session, `gt.connect` and `gt.init` another one in its place. Tensors belong to a builder,
and a builder to its session.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from gt import default_session
from gt.errors import SessionError

if TYPE_CHECKING:
    from gt.client.segment.builder import Builder

    from .session import Session


class _Threads(threading.local):
    """Each thread's builder for the default session."""

    builder: Builder


_default: list[Session] = []
every_session: Final[WeakSet[Session]] = WeakSet()
"""All that this process has, the default one among them."""
_threads = _Threads()
_start_lock = threading.Lock()


def _no_builders() -> _Threads:
    """From here on every thread gets a new builder, at its next instruction."""
    for session in list(every_session):
        for each in list(session.builders):
            each.thread = 0
    return _Threads()


def builder() -> Builder:
    """This thread's builder of the default session, which starts with the first use."""
    try:
        return _threads.builder
    except AttributeError:
        made = current().builder()
        made.thread = threading.get_ident()
        _threads.builder = made
        return made


def builder_so_far() -> Builder | None:
    """This thread's builder of the default session, if it has one. Starts no session."""
    return getattr(_threads, "builder", None)


def interrupt_capture(reason: str) -> None:
    """End this thread's capture: what comes next cannot be in a traced call."""
    mine = builder_so_far()
    if mine is not None and mine.capture is not None:
        mine.capture.interrupt(reason)


def is_capturing() -> bool:
    """Whether what this thread emits is part of a traced call. Starts no session."""
    mine = builder_so_far()
    return mine is not None and mine.capture is not None


MAY_START: Final[ContextVar[bool]] = ContextVar("gt_may_start", default=True)
"""Whether a session may start by itself here: not in a thread that GT runs beside the program."""


def current() -> Session:
    """The default session; starts local daemons when there is none."""
    if not _default:
        if not MAY_START.get():
            raise SessionError("the session has ended, and a thread beside the program starts no other")
        with _start_lock:
            if not _default:
                default_session.start()
    session = _default[0]
    if session.pid != os.getpid():
        session.usable()
    return session


def active() -> Session | None:
    """The default session if one was started, else None."""
    return _default[0] if _default else None


def adopt(session: Session) -> Session:
    """Make `session` the default one."""
    global _threads
    _default[:] = [session]
    _threads = _no_builders()
    return session


def swap(session: Session | None) -> Session | None:
    """Put another session, or none, in the place of the default one, which stays open; the one that was there."""
    global _threads
    before = active()
    if before is not None and before.pid == os.getpid():
        before.flush()
    _default[:] = [] if session is None else [session]
    _threads = _no_builders()
    return before


def disconnect() -> None:
    """End the default session; another can follow. Tensors of it cannot be used any more."""
    global _threads
    if _default:
        session = _default.pop()
        _threads = _no_builders()
        if session.pid == os.getpid():
            session.close()


def _after_fork() -> None:
    """A child has no session: what it inherited belongs to its parent."""
    global _threads, _start_lock
    _threads = _no_builders()
    _start_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(disconnect)
