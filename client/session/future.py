"""Futures: values that were asked for and are on their way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.errors import GTError
from gt.ir.spec import Spec, unpack_spec
from gt.wire import messages as m

if TYPE_CHECKING:
    from .link_protocol import DispatcherLink
    from .session import Session

log: Final = logging.getLogger("gt")


class Future:
    """A value on its way to the client. `result()` waits; the stream never does."""

    __slots__ = ("_array", "_callbacks", "_error", "_missing", "_session", "_spec", "what")

    def __init__(self, session: Session, what: str) -> None:
        self._session = session
        self._array: Any = None
        self._error: GTError | None = None
        self._missing: int | None = None
        self._spec: Spec | None = None
        self._callbacks: list[Callable[[Future], Any]] = []
        self.what = what

    def done(self) -> bool:
        """Whether the value, or an error, is there."""
        if not self._ready():
            self._session.pump()
        return self._ready()

    def _ready(self) -> bool:
        return self._error is not None or self._missing == 0

    def result(self, timeout: float | None = None) -> Any:
        """The value, a NumPy array that the caller owns. Raises its error, or `TimeoutError` after `timeout` seconds."""
        self._session.wait_for(self._ready, self.what, timeout)
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return self._array

    def exception(self, timeout: float | None = None) -> GTError | None:
        """The error, or None when there is a value."""
        self._session.wait_for(self._ready, self.what, timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call `callback(self)` once the value or an error is there, in the thread that notices."""
        if self._ready():
            callback(self)
        else:
            self._callbacks.append(callback)

    # what the session does

    def _part(self, message: m.Value, link: DispatcherLink) -> None:
        if self._missing is None:
            self._spec = unpack_spec(message.spec)
            self._missing = message.parts
            if self._array is None:
                self._array = link.memory.empty(self._spec.shape, self._spec.dtype.numpy)
        assert self._spec is not None
        if message.box == [["silent"]]:
            self._arrived()
        elif message.bulk:
            link.fetch_bulk(message, self._array, self._arrived)
        else:
            window = tuple(slice(start, stop) for start, stop in message.box)
            part = np.frombuffer(message.data, self._spec.dtype.numpy)
            self._array[window] = part.reshape(self._array[window].shape)
            self._arrived()

    def _arrived(self) -> None:
        assert self._missing is not None
        self._missing -= 1
        if self._missing == 0:
            self._finish()

    def _answer(self, value: Any) -> None:
        self._array, self._missing = value, 0
        self._finish()

    def _fail(self, error: GTError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # a callback's own error must not stop the stream, nor another's callback
                log.exception("a callback of a fetched value failed")
