"""Transfers to and from a GPU through a little pinned memory, so that copies run in parallel to kernels and nobody waits.

A GPU copies asynchronously only to and from pinned memory, and pinning is slow. So values pass in parts through a *ring* of
pinned memory, one for each direction: while the GPU copies one part, the host copies the next. An incoming value is a
*landing*: as much of it as has room is written to the ring at once, and the rest at later turns (`Arrivals.turn`). An outgoing
value is a *parcel*, which proceeds in the same way (`Departures.turn`), in the order of sending.

Takes the module `cupy` as an argument, in `Streams`. The order of the GPU's work is in `streams.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .cuda_streams import Lent, Streams

RING: Final = 16 << 20
"""The size of a ring in bytes."""
PART: Final = 2 << 20
"""The largest part in bytes, so that some parts are being copied while another is written or read."""
ALIGNED: Final = 256
QUEUED: Final = 256 << 20
"""The most bytes of puts that may wait for room in their ring before a further put has to wait."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ring:
    """Pinned memory that is allocated from its beginning to its end and around again; parts are returned in the same order."""

    def __init__(self, pin: Callable[[int], Bytes], nbytes: int = RING) -> None:
        self._pin = pin
        self.nbytes = nbytes
        self._buffer: Bytes | None = None
        self._given: deque[int] = deque()
        """Where each part that was not returned begins."""
        self._at = 0
        """Where the last of them ends."""

    def take(self, nbytes: int) -> Bytes | None:
        """At most `PART` bytes; None while other parts are in the way."""
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
        """Return the part that was allocated first."""
        self._given.popleft()

    def _pinned(self) -> Bytes:
        try:
            return self._pin(self.nbytes)
        except MemoryError:  # a host that has none to spare: the driver copies through some of its own, and waits
            return np.empty(self.nbytes, np.uint8)


class Landing:
    """A value on its way to the device. `event`, after its copies, exists once all of them have been started; until then
    `source` must not be written to."""

    __slots__ = ("at", "event", "flat", "lent", "source")

    def __init__(self, source: np.ndarray[Any, Any], lent: Lent) -> None:
        self.source: Any = source
        self.flat: Bytes = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self.lent = lent
        self.at = 0
        """The number of bytes whose copies have been started."""
        self.event: Any = None

    def all_told(self, event: Any) -> None:
        """Note that the last copy has been started."""
        self.event, self.source = event, None
        del self.flat, self.lent


class Arrivals:
    """Values that come to the device on one stream."""

    def __init__(self, streams: Streams, stream: Any, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = Ring(pin)
        self._events: deque[Any] = deque()
        """For each part of the ring, the event after its copy."""
        self._waiting: deque[Landing] = deque()
        """The landings whose copies have not all been started."""
        self.waiting = 0
        """Their bytes whose copies have not been started."""
        self.landed = 0
        """The number of parts of the ring that were returned."""

    def bring(self, array: np.ndarray[Any, Any]) -> tuple[Any, Landing | None]:
        """Copy an array of the host to the device. Returns the value and its landing, for whose event kernels must wait before
        they read.

        The host does not wait. Raises `MemoryError`.
        """
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
        """The same for kernels that follow at once; the array may be overwritten afterwards. The host waits only while the
        ring is full. Raises `MemoryError`."""
        value, landing = self.bring(array)
        if landing is not None:
            self.finish()
            self.streams.compute.wait_event(landing.event)
        return value

    def turn(self) -> None:
        """Continue the landings, without waiting."""
        while self._events and self._events[0].done:
            self._back()
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()

    def finish(self, address: int | None = None) -> None:
        """Start all copies, or those to memory at this address. The host waits while the ring is full."""
        while self._waiting and (address is None or any(each.lent.pointer.ptr == address for each in self._waiting)):
            self._events[0].synchronize()
            self.turn()

    def _begin(self, landing: Landing) -> bool:
        """Start as many copies of a landing as have room in the ring. Returns whether these are all."""
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
    """A value on its way from the device. `array` is complete when nothing is `left`; `source` is held until all copies have
    been started."""

    __slots__ = ("array", "at", "left", "source")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.array: np.ndarray[Any, Any] = np.empty(source.shape, source.dtype)
        self.left = self.array.nbytes
        self.at = 0
        """The number of bytes whose copies have been started."""


class Departures:
    """Values that leave the device on one stream, in order."""

    def __init__(self, streams: Streams, stream: Any, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = Ring(pin)
        self._waiting: deque[Parcel] = deque()
        """The parcels whose copies have not all been started."""
        self.landed = 0
        """The number of parts that have arrived."""
        self._flying: deque[tuple[Any, Bytes, Bytes, Parcel]] = deque()
        """The copies in progress: for each the event after it, the part of the ring, and where in which parcel it belongs."""

    @property
    def under_way(self) -> bool:
        """Whether any parcel is in progress."""
        return bool(self._flying or self._waiting)

    def send(self, value: Any) -> Parcel:
        """A value on its way to the host, as the kernels launched so far leave it. Raises `MemoryError`."""
        streams = self.streams
        parcel = Parcel(streams.cupy.ascontiguousarray(value).reshape(value.shape))
        streams.follow(self.stream, streams.compute)
        if parcel.left:
            self._waiting.append(parcel)
            self.turn()
        return parcel

    def turn(self) -> None:
        """Continue the parcels, without waiting."""
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
        """Start as many copies of a parcel as have room in the ring. Returns whether these are all."""
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
    """All transfers to and from a device."""

    def __init__(self, streams: Streams, pin: Callable[[int], Bytes]) -> None:
        self.streams = streams
        self.puts = Arrivals(streams, streams.copies_in, pin)
        self.fetches = Departures(streams, streams.copies_out, pin)
        self.pieces_in = Arrivals(streams, streams.collectives, pin)
        self.pieces_out = Departures(streams, streams.collectives, pin)

    @property
    def landed(self) -> int:
        """The number of parts that have arrived so far, in both directions."""
        return self.fetches.landed + self.pieces_out.landed + self.puts.landed + self.pieces_in.landed
