"""A lock that puts off Ctrl-C: what a session does to its state under it is done whole."""

from __future__ import annotations

import importlib
import signal
import threading
from typing import Any, Final

_signals: Final[Any] = importlib.import_module("_signal")
"""The module under `signal`, which adds conversions to enumerations that take ten times as long as the rest."""


class Exclusive:
    """A session's lock, and in the main thread Ctrl-C put off until the lock is free again. Re-entrant."""

    __slots__ = ("depth", "handler", "lock", "pressed")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0
        self.handler: Any = None
        self.pressed: list[Any] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1 and threading.current_thread() is threading.main_thread():
            # None: installed by other means than Python's, which could not set it again
            self.handler = _signals.getsignal(signal.SIGINT)
            if self.handler is not None:
                _signals.signal(signal.SIGINT, self._put_off)

    def _put_off(self, *details: Any) -> None:
        self.pressed.append(details)

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        handler, pressed = None, []
        if self.depth == 0 and self.handler is not None:
            handler, self.handler = self.handler, None
            _signals.signal(signal.SIGINT, handler)
            pressed, self.pressed = self.pressed, []
        self.lock.release()
        if pressed and callable(handler):
            handler(*pressed[0])
