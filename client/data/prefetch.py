"""`gt.data.prefetch`: batches are put on the workers before the program asks for them.

A thread takes batches from an iterable, puts what is in them on the workers that need them, and stays a few ahead. It holds
nothing of the iterator that the program has, so that one can be dropped at any time; then the thread ends with the batch that
it is at. The first batch is taken in the program's own thread, and what the others draw are random numbers apart: so a program
draws the same with and without.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from gt.client.ops import random
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.client.tensor import signal_context
from gt.client.tensor.operands import put
from gt.client.tensor.tensor import Tensor
from gt.client.tensor_api import interop
from gt.errors import DTypeError, SessionError
from gt.ir.dtypes import as_dtype

__all__ = ["prefetch"]

_log: Final = logging.getLogger("gt")
_POLL_SECONDS: Final = 0.5
"""Seconds between two checks, during a wait, that the other side still exists."""
_JOIN_SECONDS: Final = 2.0
"""Seconds that a thread may take to end: it may be deep in the program's own code."""


def prefetch(iterable: Iterable[Any], signal: str | None = None, depth: int = 2) -> Prefetched:
    """Iterate over the batches of `iterable`, of which a thread prepares and sends up to `depth` ahead of time.

    NumPy arrays and PyTorch tensors in a batch, also inside tuples, lists and mappings, become tensors, sharded by
    the rule of `signal`; other objects are passed through. An array may be reused once the next batch is requested.
    Batches arrive in order, followed by the error that ended the iterable, if any. Iterating again iterates over
    `iterable` again. Raises `ValueError` for a depth below 1.
    """
    if type(depth) is not int or depth < 1:
        raise ValueError(f"prefetch: depth is a number of batches from 1, not {depth!r}")
    return Prefetched(iterable, signal, depth)


class Prefetched:
    """An iterable whose batches come ahead of time."""

    def __init__(self, iterable: Iterable[Any], signal: str | None, depth: int) -> None:
        self.iterable = iterable
        self.signal = signal
        self.depth = depth
        self._around()

    def _around(self) -> Any:
        return nullcontext() if self.signal is None else signal_context.context(self.signal)

    def __iter__(self) -> Feed:
        with self._around():
            return Feed(iter(self.iterable), self._around, self.depth)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # as its own error says, when it has none


class Feed(Iterator[Any]):
    """One pass through the batches. It can be left at any time: `close()`, `with`, or by nobody having it any more."""

    def __init__(self, source: Iterator[Any], around: Callable[[], Any], depth: int) -> None:
        self._feeder = _Feeder(source, around, depth)

    def __next__(self) -> Any:
        return self._feeder.next()

    def close(self) -> None:
        """Make no more batches. Those that are ahead are freed."""
        self._feeder.stop()
        self._feeder.join()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        feeder = getattr(self, "_feeder", None)  # an interrupted constructor leaves none
        if feeder is not None:
            feeder.stop()


class _Feeder:
    """The state that program and thread share."""

    def __init__(self, source: Iterator[Any], around: Callable[[], Any], depth: int) -> None:
        self.source = source
        self.around = around
        self.depth = depth
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.ready: deque[Any] = deque()
        self.error: BaseException | None = None
        self.ended = False
        """Nothing comes behind what is ready."""
        self.stopped = False
        self.session: Session | None = None
        self.thread: threading.Thread | None = None

    # in the program's thread

    def next(self) -> Any:
        if self.pid != os.getpid():
            raise SessionError("this process was forked: prefetching does not survive that; iterate anew in the child")
        if self.thread is None and not self.ended:
            return self._first()
        with self.changed:
            if not (self.ready or self.ended):
                self._flush()
            while not (self.ready or self.ended):
                self.changed.wait(_POLL_SECONDS)
                if self.thread is not None and not self.thread.is_alive() and not (self.ready or self.ended):
                    self.ended = True  # interrupted at its very end
            if self.ready:
                batch = self.ready.popleft()
                self.changed.notify_all()
                return batch
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def _first(self) -> Any:
        """The first batch; from then on the thread goes ahead."""
        with self.around():
            try:
                batch = put_batch(next(self.source))
            except BaseException:
                self.ended = True
                raise
        self.session = sessions.active()
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._run,), name="gt-prefetch", daemon=True)
        _running.add(self)
        self.thread.start()
        return batch

    @staticmethod
    def _flush() -> None:
        """Before it waits the program lets the workers have what it has gathered."""
        if sessions.active() is not None:
            sessions.builder().flush()

    def stop(self) -> None:
        """Have the thread end. Waits for nothing, for it is called wherever objects die."""
        self.stopped = self.ended = True
        self.ready.clear()
        if self.changed.acquire(blocking=False):
            try:
                self.changed.notify_all()
            finally:
                self.changed.release()

    def join(self) -> None:
        """Wait for the thread, which is to end, but not long."""
        if self.thread is not None and self.thread is not threading.current_thread() and self.pid == os.getpid():
            self.thread.join(_JOIN_SECONDS)
        self.ready.clear()

    # in the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            sessions.MAY_START.set(False)
            with self.around(), random.noting(random.Apart()):
                while self._wanted():
                    batch = next(self.source)
                    self._same_session()
                    batch = put_batch(batch)
                    self._flush()  # what made it, if it was computed
                    with self.changed:
                        if not self.stopped:
                            self.ready.append(batch)
                            self.changed.notify_all()
                    del batch
        except StopIteration:
            pass
        except BaseException as caught:  # noqa: BLE001  # it is the program's: raised where it asks for the next batch
            error = caught
        with self.changed:
            self.error, self.ended = error, True
            self.changed.notify_all()
        self._close_source()
        _running.discard(self)

    def _wanted(self) -> bool:
        """Wait until there is room for a batch; False when nobody wants any more."""
        with self.changed:
            while not self.stopped and len(self.ready) >= self.depth:
                self.changed.wait(_POLL_SECONDS)
            return not self.stopped

    def _same_session(self) -> None:
        """A batch is put into the session in which the first was: else this would start another one, unasked."""
        if self.session is not None and sessions.active() is not self.session:
            raise SessionError("the session ended while batches were prefetched: iterate anew in the next one")

    def _close_source(self) -> None:
        """Let a generator that was left clean up."""
        close = getattr(self.source, "close", None)
        if self.stopped and close is not None:
            try:
                close()
            except Exception:  # noqa: BLE001  # nobody is there any more to raise it to
                _log.exception("closing what batches were prefetched from failed")


_running: Final[WeakSet[_Feeder]] = WeakSet()


def _stop_all() -> None:
    """The program ends: no thread puts anything into a session that is being closed."""
    feeders = list(_running)
    for feeder in feeders:
        feeder.stop()
    for feeder in feeders:
        feeder.join()


atexit.register(_stop_all)  # after the session's own handler, so before it


def put_batch(batch: Any) -> Any:
    """A batch with tensors in place of arrays, on their way to the workers."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, np.ndarray):
        return put(batch) if _numbers(batch) else batch
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(batch, torch.Tensor):
        return interop.from_torch(batch)
    if isinstance(batch, Mapping):
        return {key: put_batch(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        parts = [put_batch(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [put_batch(part) for part in batch]
    return batch


def _numbers(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array can be a tensor: one of strings or objects cannot."""
    try:
        as_dtype(array.dtype)
    except (DTypeError, TypeError):
        return False
    return True
