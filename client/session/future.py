"""Futures: values that were asked for and are on their way.

A value comes in parts, one from each worker that holds one. Its array may lie in memory that was used before, so it is handed
out only when the parts that came cover all of it: each worker's part counts once, however often it arrives.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.errors import GTError, ProtocolError, SessionError
from gt.ir.spec import Spec, pack_spec, unpack_spec
from gt.sharding.partition import covers
from gt.wire import messages as m

if TYPE_CHECKING:
    from .link_protocol import DispatcherLink
    from .session import Session

log: Final = logging.getLogger("gt")
Box = tuple[tuple[int, int], ...]
SILENT_BOX: Final = [["silent"]]
"""In place of the box of a part: workers have sound copies of other parts."""
SILENT_WORKERS: Final = -1
"""In place of the number of a worker: all those together."""
EMPTY_BOX: Final[Box] = ()
MAX_VALUE_PARTS: Final = 1 << 16
"""The most parts of a value."""
MAX_SHOWN_BOXES: Final = 8
"""The most boxes that an error names."""


class Future:
    """A value on its way to the client. `result()` waits; the stream never does."""

    __slots__ = ("_array", "_boxes", "_callbacks", "_error", "_missing", "_session", "_spec", "what")

    def __init__(self, session: Session, what: str, known: Spec | None = None) -> None:
        self._session = session
        self._array: Any = None
        self._error: GTError | None = None
        self._missing: int | None = None
        self._spec = known
        """The dtype and shape of the tensor that was asked for; None for answers of other kinds."""
        self._boxes: dict[int, Box] = {}
        """By worker, the box of the part that it announced; by `SILENT_WORKERS`, whether those with copies have spoken."""
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
        """Take a part. One that came before has no effect; one that cannot be of this value fails it."""
        if self._ready():
            return
        if self._is_whole(message):
            self._take_whole(message, link)
            return
        silent = message.box == SILENT_BOX
        whose = SILENT_WORKERS if silent else message.worker
        if whose in self._boxes:
            return
        try:
            known = unpack_spec(message.spec)
            box = EMPTY_BOX if silent else _box_in(known.shape, message.box)
            if known is not (self._spec or known) or not 0 < message.parts <= MAX_VALUE_PARTS:
                raise ProtocolError(f"{message.parts} parts of {known}")
            if not silent and not message.bulk and len(message.data) != _volume(box) * known.dtype.itemsize:
                raise ProtocolError(f"{len(message.data)} bytes for the box {list(box)} of {known}")
        except ProtocolError as error:
            self._fail(_wrong(self.what, str(error)))
            return
        self._spec = known
        if self._missing is None:
            self._missing = message.parts
            if self._array is None:
                self._array = link.memory.empty(known.shape, known.dtype.numpy)
        self._boxes[whose] = box
        if silent:
            self._arrived()
        elif message.bulk:
            link.fetch_bulk(message, self._array, self._arrived)
        else:
            window = tuple(slice(start, stop) for start, stop in box)
            part = np.frombuffer(message.data, known.dtype.numpy)
            self._array[window] = part.reshape(self._array[window].shape)
            self._arrived()

    def _is_whole(self, message: m.Value) -> bool:
        """Whether a part is all of the value, and comes with its message: the usual case of a small one."""
        known = self._spec
        return (
            message.parts == 1
            and known is not None
            and not message.bulk
            and len(message.data) == known.nbytes
            and message.spec == pack_spec(known)
            and message.box == [[0, size] for size in known.shape]
            and self._missing is None
        )

    def _take_whole(self, message: m.Value, link: DispatcherLink) -> None:
        """Take a part that is all of the value."""
        assert self._spec is not None
        shape, dtype = self._spec.shape, self._spec.dtype.numpy
        if self._array is None:
            self._array = link.memory.empty(shape, dtype)
        self._array[...] = np.frombuffer(message.data, dtype).reshape(shape)
        self._missing = 0
        self._finish()

    def _arrived(self) -> None:
        """One more of the parts is there."""
        if self._error is not None:
            return
        assert self._missing is not None
        self._missing -= 1
        if self._missing == 0:
            assert self._spec is not None
            boxes = [box for whose, box in self._boxes.items() if whose != SILENT_WORKERS]
            if not covers(self._spec.shape, boxes):
                self._fail(
                    _wrong(self.what, f"its parts {[list(box) for box in boxes[:MAX_SHOWN_BOXES]]} are not all of it")
                )
                return
            self._finish()

    def _start_afresh(self) -> None:
        """Forget the parts that came: all of them come again."""
        if not self._ready():
            self._missing = self._array = None
            self._boxes = {}

    def _answer(self, value: Any) -> None:
        self._array, self._missing = value, 0
        self._finish()

    def _fail(self, error: GTError) -> None:
        self._error, self._array = error, None
        self._finish()

    def _finish(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # a callback's own error must not stop the stream, nor another's callback
                log.exception("a callback of a fetched value failed")


def _wrong(what: str, why: str) -> SessionError:
    return SessionError(f"the service answered wrongly to the fetch of {what}: {why}; fetch it again, and report this")


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _box_in(shape: tuple[int, ...], raw: list[Any]) -> Box:
    """A box from the wire, which lies within a shape. Raises `ProtocolError`."""
    pairs = [
        pair for pair in raw if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int
    ]
    if not len(pairs) == len(raw) == len(shape) or not all(
        0 <= start <= stop <= size for (start, stop), size in zip(pairs, shape, strict=True)
    ):
        raise ProtocolError(f"{str(raw)[:200]} is no box of the shape {list(shape)}")
    return tuple((start, stop) for start, stop in pairs)
