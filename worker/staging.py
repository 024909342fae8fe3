"""What comes to a GPU and what leaves it, through a little pinned memory: so that copies run beside kernels, and nobody waits.

A GPU copies by itself only to and from pinned memory, and to pin takes long. So values pass in parts through a *ring* of it, one
for each direction: while one part is copied by the GPU the next is copied by the host. What comes is written to the ring at
once; what leaves is a *parcel*, which moves on whenever somebody looks (`Departures.turn`), in the order of sending.

Takes the module `cupy` as an argument, in `Streams`. In which order the GPU does it is in `streams.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .streams import Streams

RING: Final = 16 << 20
"""Bytes of a ring."""
PART: Final = 2 << 20
"""Bytes of a part, at most: some are under way while another is written or read."""
ALIGNED: Final = 256
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ring:
    """Pinned memory that is given from its beginning to its end and then again: what was given first comes back first."""

    def __init__(self, pin: Callable[[int], Bytes], nbytes: int = RING) -> None:
        self._pin = pin
        self.nbytes = nbytes
        self._block: Bytes | None = None
        self._given: deque[int] = deque()
        """Where each part begins that has not come back."""
        self._at = 0
        """Where the last of them ends."""

    def take(self, nbytes: int) -> Bytes | None:
        """So many bytes, at most `PART`; None while others are in the way."""
        size = -(-nbytes // ALIGNED) * ALIGNED
        assert size <= self.nbytes, "a part is smaller than the ring"
        first = self._given[0] if self._given else None
        if first is None:
            at = 0
        elif self._at > first:
            at = self._at if self._at + size <= self.nbytes else 0
            if not at and size > first:
                return None
        else:
            at = self._at
            if at + size > first:
                return None
        if self._block is None:
            self._block = self._pinned()
        self._given.append(at)
        self._at = at + size
        return self._block[at : at + nbytes]

    def back(self) -> None:
        """Nobody needs the part that was given first any more."""
        self._given.popleft()

    def _pinned(self) -> Bytes:
        try:
            return self._pin(self.nbytes)
        except MemoryError:  # a host that has none to spare: the driver copies through some of its own, and waits
            return np.empty(self.nbytes, np.uint8)


class Arrivals:
    """Values that come to the device on one stream."""

    def __init__(self, streams: Streams, stream: Any, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = Ring(pin)
        self._events: deque[Any] = deque()
        """Behind the copy of each part of the ring."""

    def bring(self, array: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """The values of an array of the host on the device, and the event behind their copies, for which kernels are to wait
        before they read them. The array may be written to again. The host waits only while the ring is full of copies. Raises
        `MemoryError`."""
        streams, stream = self.streams, self.stream
        streams.let_go()
        nbytes = array.nbytes
        if not nbytes:
            return streams.cupy.empty(array.shape, array.dtype), None
        lent = streams.room(stream, nbytes)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for at in range(0, nbytes, PART):
            part = flat[at : at + PART]
            through = self._part(part.size)
            through[:] = part
            target = streams.cupy.cuda.MemoryPointer(lent.pointer.mem, at)
            target.copy_from_host_async(through.ctypes.data, part.size, stream)
            self._events.append(streams.mark(stream))
        return lent.look(array.shape, array.dtype), self._events[-1]

    def bring_now(self, array: np.ndarray[Any, Any]) -> Any:
        """The same for kernels that come next. Raises `MemoryError`."""
        value, event = self.bring(array)
        if event is not None:
            self.streams.compute.wait_event(event)
        return value

    def _part(self, nbytes: int) -> Bytes:
        while self._events and self._events[0].done:
            self._back()
        while (found := self.ring.take(nbytes)) is None:
            self._events[0].synchronize()
            self._back()
        return found

    def _back(self) -> None:
        self._events.popleft()
        self.ring.back()


class Parcel:
    """A value on its way from the device. `array` is there when nothing is `left`; `source` until all copies have begun."""

    __slots__ = ("array", "at", "left", "source")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.array: np.ndarray[Any, Any] = np.empty(source.shape, source.dtype)
        self.left = self.array.nbytes
        self.at = 0
        """How many bytes are being copied, or were."""


class Departures:
    """Values that leave the device on one stream, in order."""

    def __init__(self, streams: Streams, stream: Any, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = Ring(pin)
        self._waiting: deque[Parcel] = deque()
        """Those of which not all copies have begun."""
        self.landed = 0
        """Parts that have come."""
        self._flying: deque[tuple[Any, Bytes, Bytes, Parcel]] = deque()
        """Copies that have begun: the event behind each, the part of the ring, and where in which parcel it is to go."""

    @property
    def under_way(self) -> bool:
        """Whether anything is."""
        return bool(self._flying or self._waiting)

    def send(self, value: Any) -> Parcel:
        """A value on its way to the host, as kernels so far leave it. Raises `MemoryError`."""
        streams = self.streams
        parcel = Parcel(streams.cupy.ascontiguousarray(value).reshape(value.shape))
        streams.follow(self.stream, streams.compute)
        if parcel.left:
            self._waiting.append(parcel)
            self.turn()
        return parcel

    def turn(self) -> None:
        """Move on what is under way. Does not wait."""
        self._begin_all()
        while self._flying and self._flying[0][0].done:
            _, through, target, parcel = self._flying.popleft()
            target[:] = through
            self.ring.back()
            parcel.left -= target.size
            self.landed += 1
            self._begin_all()  # so that the device has something to copy while the host does

    def _begin_all(self) -> None:
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()

    def _begin(self, parcel: Parcel) -> bool:
        """Begin as many copies of a parcel as find room in the ring; whether these are all."""
        streams, source = self.streams, parcel.source
        flat: Bytes = parcel.array.reshape(-1).view(np.uint8)
        while parcel.at < flat.size:
            target = flat[parcel.at : parcel.at + PART]
            through = self.ring.take(target.size)
            if through is None:
                return False
            memory = source.data.mem
            place = streams.cupy.cuda.MemoryPointer(memory, source.data.ptr - memory.ptr + parcel.at)
            place.copy_to_host_async(through.ctypes.data, target.size, self.stream)
            event = streams.mark(self.stream)
            self._flying.append((event, through, target, parcel))
            parcel.at += target.size
        streams.hold(self.stream, source.data.mem, event)
        parcel.source = None
        return True


class Staging:
    """All ways to a device and from it."""

    def __init__(self, streams: Streams, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.puts = Arrivals(streams, streams.copies_in, pin)
        self.fetches = Departures(streams, streams.copies_out, pin)
        self.pieces_in = Arrivals(streams, streams.collectives, pin)
        self.pieces_out = Departures(streams, streams.collectives, pin)

    @property
    def landed(self) -> int:
        """Parts that have come from the device so far."""
        return self.fetches.landed + self.pieces_out.landed
