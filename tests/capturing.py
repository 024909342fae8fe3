"""What a stream of the card that is none (`card.py`) does while it captures: nothing, but it remembers what it was told.

What would be computed is noted, to be done at the same addresses whenever the graph is launched; results are `GARBAGE` until
then. It is as strict as CUDA and CuPy are: what has to wait, takes memory from the device or reads memory of the host that is
not pinned is refused, and so is a product by CuPy, which calls nothing of cuBLAS then; and what was refused voids the capture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

GARBAGE: Final = 0xA5
"""What every byte is of memory that was taken and not written to."""


class CaptureError(RuntimeError):
    """As CuPy says what CUDA refuses."""


class Capture(threading.local):
    """Of all streams of a thread: at most one captures, and what other threads do is nothing to it."""

    def __init__(self) -> None:
        self.noted: list[Callable[[], object]] | None = None
        """What a graph under way has so far; None while no stream captures."""
        self.broken = False
        """Whether something was refused meanwhile."""
        self.allocator: Callable[[int], Any] | None = None
        """Who gives memory instead of the pool."""
        self.unpooled = False
        """Whether memory is the device's, and none of the pool's."""
        self.graphs = 0
        """How many were made, and how often one was launched."""
        self.launches = 0

    def waits(self, what: str) -> None:
        """Raises while a stream captures: this would have to wait for the device, or could not be done again."""
        if self.noted is not None:
            self.broken = True
            raise CaptureError(f"cudaErrorStreamCaptureUnsupported: {what} while a stream is capturing")

    def refuses_products(self, *operands: Any) -> None:
        """CuPy's products of integers and booleans are kernels of its own, all others cuBLAS's."""
        if self.noted is not None and any(each.dtype.kind not in "iub" for each in operands):
            self.broken = True
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")

    def note(self, work: Callable[[], object]) -> None:
        """This is done at every launch of the graph that is captured, if one is."""
        if self.noted is not None:
            self.noted.append(work)

    @contextlib.contextmanager
    def using(self, allocator: Callable[[int], Any] | None = None) -> Iterator[None]:
        """While this lasts arrays get their memory from there; None: from the device, not from its pool."""
        before = self.allocator, self.unpooled
        self.allocator, self.unpooled = allocator, allocator is None
        try:
            yield
        finally:
            self.allocator, self.unpooled = before


CAPTURE: Final = Capture()


class Capturing:
    """A stream, as far as it captures."""

    ptr = 0
    non_blocking = False
    captures = False

    def begin_capture(self, mode: Any = None) -> None:
        """From now on what it is told is noted. Raises on the default stream, as CuPy does."""
        if not self.ptr:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert self.non_blocking, "one that waits for the default stream cannot go on beside it"
        assert CAPTURE.noted is None, "one stream captures at a time"
        CAPTURE.noted, CAPTURE.broken, self.captures = [], False, True

    def end_capture(self) -> Graph:
        """The graph of what was noted. Raises where something was refused."""
        assert CAPTURE.noted is not None, "it captures"
        found, CAPTURE.noted, self.captures = CAPTURE.noted, None, False
        if CAPTURE.broken:
            raise CaptureError("cudaErrorStreamCaptureInvalidated: the capture was invalidated by an earlier error")
        CAPTURE.graphs += 1
        return Graph(found)

    def is_capturing(self) -> bool:
        return self.captures


class Graph:
    """Work that is done in one launch."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self.calls = calls

    def launch(self, stream: Any = None) -> None:
        CAPTURE.waits("the launch of a graph")
        CAPTURE.launches += 1
        for call in self.calls:
            call()
