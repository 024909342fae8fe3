"""What comes to a GPU and what leaves it, through a little pinned memory: so that copies run beside kernels, and nobody waits.

A GPU copies by itself only to and from pinned memory, and to pin takes long. So values pass in parts through a *ring* of it, one
for each direction: while one part is copied by the GPU the next is copied by the host. What comes is a *landing*: as much of
it as there is room for is written to the ring at once, and the rest whenever somebody looks (`Arrivals.turn`). What leaves is a
*parcel*, which moves on in the same way (`Departures.turn`), in the order of sending.

Takes the module `cupy` as an argument, in `Streams`. In which order the GPU does it is in `streams.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .streams import Lent, Streams

RING: Final = 16 << 20
"""Bytes of a ring."""
PART: Final = 2 << 20
"""Bytes of a part, at most: some are under way while another is written or read."""
ALIGNED: Final = 256
QUEUED: Final = 256 << 20
"""Bytes of the host that may wait for room in the ring of puts before the next put does."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ring:
    """Pinned memory that is given from its beginning to its end and then again: what was given first comes back first."""

    def __init__(self, pin: Callable[[int], Bytes], nbytes: int = RING) -> None:
        self._pin = pin
        self.nbytes = nbytes
        self._buffer: Bytes | None = None
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
        if self._buffer is None:
            self._buffer = self._pinned()
        self._given.append(at)
        self._at = at + size
        return self._buffer[at : at + nbytes]

    def back(self) -> None:
        """Nobody needs the part that was given first any more."""
        self._given.popleft()

    def _pinned(self) -> Bytes:
        try:
            return self._pin(self.nbytes)
        except MemoryError:  # a host that has none to spare: the driver copies through some of its own, and waits
            return np.empty(self.nbytes, np.uint8)


class Landing:
    """A value on its way to the device. `event`, behind its copies, is there when all of them have begun, and until then
    `source`, which must not be written to."""

    __slots__ = ("at", "event", "flat", "lent", "source")

    def __init__(self, source: np.ndarray[Any, Any], lent: Lent) -> None:
        self.source: Any = source
        self.flat: Bytes = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self.lent = lent
        self.at = 0
        """How many bytes are being copied, or were."""
        self.event: Any = None

    def all_told(self, event: Any) -> None:
        """The device was told to copy the last of it."""
        self.event, self.source = event, None
        del self.flat, self.lent


class Arrivals:
    """Values that come to the device on one stream."""

    def __init__(self, streams: Streams, stream: Any, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = Ring(pin)
        self._events: deque[Any] = deque()
        """Behind the copy of each part of the ring."""
        self._waiting: deque[Landing] = deque()
        """Those of which not all copies have begun."""
        self.waiting = 0
        """Bytes of them whose copies have not."""
        self.landed = 0
        """Parts of the ring that came back."""

    def bring(self, array: np.ndarray[Any, Any]) -> tuple[Any, Landing | None]:
        """The values of an array of the host on the device, and how they come there: kernels are to wait for the event of the
        landing before they read them. The host does not wait. Raises `MemoryError`."""
        streams, stream = self.streams, self.stream
        streams.let_go()
        if not array.nbytes:
            return streams.cupy.empty(array.shape, array.dtype), None
        lent = streams.room(stream, array.nbytes)
        landing = Landing(array, lent)
        self._waiting.append(landing)
        self.waiting += array.nbytes
        self.turn()
        return lent.look(array.shape, array.dtype), landing

    def bring_now(self, array: np.ndarray[Any, Any]) -> Any:
        """The same for kernels that come next. The array may be written to again. The host waits only while the ring is full of
        copies. Raises `MemoryError`."""
        value, landing = self.bring(array)
        if landing is not None:
            self.finish()
            self.streams.compute.wait_event(landing.event)
        return value

    def turn(self) -> None:
        """Move on what is under way. Does not wait."""
        while self._events and self._events[0].done:
            self._back()
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()

    def finish(self, address: int | None = None) -> None:
        """Have all copies begun, or those to memory at this address. The host waits while the ring is full of them."""
        while self._waiting and (address is None or any(each.lent.pointer.ptr == address for each in self._waiting)):
            self._events[0].synchronize()
            self.turn()

    def _begin(self, landing: Landing) -> bool:
        """Begin as many copies of it as find room in the ring; whether these are all."""
        streams, flat = self.streams, landing.flat
        while landing.at < flat.size:
            part = flat[landing.at : landing.at + PART]
            through = self.ring.take(part.size)
            if through is None:
                return False
            through[:] = part
            target = streams.cupy.cuda.MemoryPointer(landing.lent.pointer.mem, landing.at)
            target.copy_from_host_async(through.ctypes.data, part.size, self.stream)
            self._events.append(streams.mark(self.stream))
            landing.at += part.size
            self.waiting -= part.size
        landing.all_told(self._events[-1])
        return True

    def _back(self) -> None:
        self._events.popleft()
        self.ring.back()
        self.landed += 1


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
        """Parts that have come from the device so far, or that it has taken of what comes."""
        return self.fetches.landed + self.pieces_out.landed + self.puts.landed + self.pieces_in.landed
