"""Copies between host and GPU by way of pinned memory, so that they run in parallel to kernels and nobody waits.

A GPU copies asynchronously only to and from pinned memory, and pinning is slow. So values pass in parts through a *ring* of
pinned memory, one for each direction: while the GPU copies one part, the host copies the next. Of a value on its way to the
device, as much as has room is written to the ring at once, and the rest at later turns (`HostToDeviceCopies.turn`). A value on
its way to the host proceeds in the same way (`DeviceToHostCopies.turn`), in the order of sending.

What lies in memory that is used again and again needs no ring: that memory is registered (`registered_memory.py`), a piece at a
turn, and the GPU reads and writes it itself. Until its event is over, such a copy keeps the array, so that its owner uses the
memory for nothing else.

Takes the module `cupy` as an argument, in `CudaStreams`. The order of the GPU's work is in `cuda_streams.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .cuda_streams import CudaStreams, StreamMemory
from .registered_memory import RegisteredMemory, RegisteredRange

RING_BYTES: Final = 16 << 20
"""The size of a ring in bytes."""
PART_BYTES: Final = 2 << 20
"""The largest part in bytes, so that some parts are being copied while another is written or read."""
TURN_PARTS: Final = 4
"""Arrived parts that one turn copies at most: a card fills the ring faster than the host empties it, and waits for other work."""
PART_ALIGNMENT: Final = 256
MAX_QUEUED_PUT_BYTES: Final = 256 << 20
"""The most bytes of puts that may wait for room in their ring before a further put has to wait."""
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]


class PinnedRing:
    """Pinned memory that is allocated from its beginning to its end and around again; parts are returned in the same order."""

    def __init__(self, pin: Callable[[int], ByteArray], nbytes: int = RING_BYTES) -> None:
        self._pin = pin
        self.nbytes = nbytes
        self._buffer: ByteArray | None = None
        self._given: deque[int] = deque()
        """Where each part that was not returned begins."""
        self._at = 0
        """Where the last of them ends."""

    def take(self, nbytes: int) -> ByteArray | None:
        """At most `PART_BYTES` bytes; None while other parts are in the way."""
        size = -(-nbytes // PART_ALIGNMENT) * PART_ALIGNMENT
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

    def _pinned(self) -> ByteArray:
        try:
            return self._pin(self.nbytes)
        except MemoryError:  # a host that has none to spare: the driver copies through some of its own, and waits
            return np.empty(self.nbytes, np.uint8)


class DirectCopies:
    """Decides how copies on one stream use registered memory: a turn registers one piece at most."""

    def __init__(self, memory: RegisteredMemory | None) -> None:
        self.memory = memory
        self.nbytes = 0
        """How many bytes were copied so."""
        self._may_register = True

    def turn(self) -> None:
        """Begin a turn."""
        self._may_register = True

    def use(self, array: np.ndarray[Any, Any]) -> RegisteredRange | None:
        """The range that an array lies in, if its copy is to use it; afterwards it is `done`."""
        return None if self.memory is None else self.memory.use(array)

    def done(self, used: RegisteredRange | None) -> None:
        """A copy is over."""
        if used is not None and self.memory is not None:
            self.memory.done(used)

    def reach(self, used: RegisteredRange | None, rest: ByteArray) -> int | None:
        """How many bytes the device may copy from the beginning of `rest` on; 0: a part goes through the ring; None: ask in the
        next turn."""
        if used is None or self.memory is None:
            return 0
        address = int(rest.ctypes.data)
        found = self.memory.registered(used, address)
        if not found and not used.refused:
            if not self._may_register:
                return None
            self._may_register = False
            self.memory.register(used, address)
            found = self.memory.registered(used, address)
        reached = min(found, rest.size)
        self.nbytes += reached
        return reached


class HostToDeviceCopy:
    """A value on its way to the device. `event`, after its copies, exists once all of them have been started; until then, and if
    it is in a registered range until that is over, `source` must not be written to."""

    __slots__ = ("at", "event", "flat", "lent", "registered", "source")

    def __init__(
        self, source: np.ndarray[Any, Any], lent: StreamMemory, registered: RegisteredRange | None = None
    ) -> None:
        self.source: Any = source
        self.flat: ByteArray = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self.lent = lent
        self.registered = registered
        self.at = 0
        """The number of bytes whose copies have been started."""
        self.event: Any = None

    def finish_start(self, event: Any) -> None:
        """Note that the last copy has been started."""
        self.event, self.source = event, None
        del self.flat, self.lent


class HostToDeviceCopies:
    """Values that come to the device on one stream."""

    def __init__(
        self, streams: CudaStreams, stream: Any, pin: Callable[[int], ByteArray], memory: RegisteredMemory | None = None
    ) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = PinnedRing(pin)
        self.direct = DirectCopies(memory)
        self._reading: deque[tuple[Any, Any, RegisteredRange]] = deque()
        """The arrays that the device reads where they are: for each the event after that, and its range."""
        self._events: deque[Any] = deque()
        """For each part of the ring, the event after its copy."""
        self._waiting: deque[HostToDeviceCopy] = deque()
        """The values whose copies have not all been started."""
        self.waiting = 0
        """Their bytes whose copies have not been started."""
        self.parts_copied = 0
        """The number of parts of the ring that were returned, and of arrays that were read where they are."""

    @property
    def under_way(self) -> bool:
        """Whether any array of the host is still needed."""
        return bool(self._waiting or self._reading)

    def bring(self, array: np.ndarray[Any, Any], *, direct: bool = True) -> tuple[Any, HostToDeviceCopy | None]:
        """Copy an array of the host to the device. Returns the value and its copy, for whose event kernels must wait before
        they read. The array is never written to again, unless it is not to be read where it is (`direct`).

        The host does not wait. Raises `MemoryError`.
        """
        streams, stream = self.streams, self.stream
        streams.let_go()
        if not array.nbytes:
            return streams.cupy.empty(array.shape, array.dtype), None
        lent = streams.room(stream, array.nbytes)
        registered = self.direct.use(array) if direct and array.flags.c_contiguous else None
        incoming = HostToDeviceCopy(array, lent, registered)
        self._waiting.append(incoming)
        self.waiting += array.nbytes
        self.turn()
        return lent.look(array.shape, array.dtype), incoming

    def bring_now(self, array: np.ndarray[Any, Any]) -> Any:
        """The same for kernels that follow at once; the array may be overwritten afterwards. The host waits only while the
        ring is full. Raises `MemoryError`."""
        value, incoming = self.bring(array, direct=False)
        if incoming is not None:
            self.finish()
            self.streams.compute.wait_event(incoming.event)
        return value

    def turn(self) -> None:
        """Start further copies, without waiting."""
        self.direct.turn()
        while self._events and self._events[0].done:
            self._back()
        while self._reading and self._reading[0][0].done:
            self.direct.done(self._reading.popleft()[2])
            self.parts_copied += 1
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()

    def finish(self, address: int | None = None) -> None:
        """Start all copies, or those to memory at this address. The host waits while the ring is full."""
        while self._waiting and (address is None or any(each.lent.pointer.ptr == address for each in self._waiting)):
            if self._events:
                self._events[0].synchronize()
            self.turn()

    def _begin(self, incoming: HostToDeviceCopy) -> bool:
        """Start as many copies of a value as have room in the ring, or need none. Returns whether these are all."""
        streams, flat = self.streams, incoming.flat
        while incoming.at < flat.size:
            reached = self.direct.reach(incoming.registered, flat[incoming.at :])
            if reached is None:
                return False
            if reached:
                self._copy(incoming, flat[incoming.at : incoming.at + reached], reached)
                continue
            part = flat[incoming.at : incoming.at + PART_BYTES]
            through = self.ring.take(part.size)
            if through is None:
                return False
            through[:] = part
            self._copy(incoming, through, part.size)
            self._events.append(streams.mark(self.stream))
        event = streams.mark(self.stream)
        if incoming.registered is not None:
            self._reading.append((event, incoming.source, incoming.registered))
        incoming.finish_start(event)
        return True

    def _copy(self, incoming: HostToDeviceCopy, source: ByteArray, nbytes: int) -> None:
        target = self.streams.cupy.cuda.MemoryPointer(incoming.lent.pointer.mem, incoming.at)
        target.copy_from_host_async(source.ctypes.data, nbytes, self.stream)
        incoming.at += nbytes
        self.waiting -= nbytes

    def _back(self) -> None:
        self._events.popleft()
        self.ring.back()
        self.parts_copied += 1


class DeviceToHostCopy:
    """A value on its way from the device. `array`, in row-major order, is complete when nothing is `left`; `source` is held until
    all copies have been started."""

    __slots__ = ("array", "at", "left", "registered", "source")

    def __init__(self, source: Any, array: np.ndarray[Any, Any] | None) -> None:
        self.registered: RegisteredRange | None = None
        self.source = source
        self.array: np.ndarray[Any, Any] = np.empty(source.shape, source.dtype) if array is None else array
        self.left = self.array.nbytes
        self.at = 0
        """The number of bytes whose copies have been started."""


class DeviceToHostCopies:
    """Values that leave the device on one stream, in order."""

    def __init__(
        self, streams: CudaStreams, stream: Any, pin: Callable[[int], ByteArray], memory: RegisteredMemory | None = None
    ) -> None:
        self.streams = streams
        self.stream = stream
        self.ring = PinnedRing(pin)
        self.direct = DirectCopies(memory)
        self._waiting: deque[DeviceToHostCopy] = deque()
        """The values whose copies have not all been started."""
        self.parts_copied = 0
        """The number of parts that have arrived."""
        self._flying: deque[tuple[Any, ByteArray | None, ByteArray, DeviceToHostCopy]] = deque()
        """The copies in progress: for each the event after it, the part of the ring (None: the device writes where it belongs),
        and where in which value it belongs."""

    @property
    def under_way(self) -> bool:
        """Whether any value is on its way."""
        return bool(self._flying or self._waiting)

    def send(self, value: Any, into: np.ndarray[Any, Any] | None = None) -> DeviceToHostCopy:
        """A value on its way to the host, as the kernels launched so far leave it: to a new array, or `into` one of its shape and
        dtype in row-major order. Raises `MemoryError`."""
        streams = self.streams
        outgoing = DeviceToHostCopy(streams.cupy.ascontiguousarray(value).reshape(value.shape), into)
        streams.follow(self.stream, streams.compute)
        if outgoing.left:
            if into is not None:
                outgoing.registered = self.direct.use(into)
            self._waiting.append(outgoing)
            self._begin_all()
        return outgoing

    def turn(self) -> None:
        """Take some of what has arrived and start further copies, without waiting."""
        self.direct.turn()
        self._begin_all()
        taken = 0
        while taken < TURN_PARTS and self._flying and self._flying[0][0].done:
            _, through, target, outgoing = self._flying.popleft()
            if through is not None:
                target[:] = through
                self.ring.back()
                taken += 1
            outgoing.left -= target.size
            if not outgoing.left:
                self.direct.done(outgoing.registered)
            self.parts_copied += 1
            self._begin_all()  # so that the device has something to copy while the host does

    def _begin_all(self) -> None:
        while self._waiting and self._begin(self._waiting[0]):
            self._waiting.popleft()

    def _begin(self, outgoing: DeviceToHostCopy) -> bool:
        """Start as many copies of a value as have room in the ring, or need none. Returns whether these are all."""
        streams, source = self.streams, outgoing.source
        flat: ByteArray = outgoing.array.reshape(-1).view(np.uint8)
        while outgoing.at < flat.size:
            reached = self.direct.reach(outgoing.registered, flat[outgoing.at :])
            if reached is None:
                return False
            target = flat[outgoing.at : outgoing.at + (reached or PART_BYTES)]
            through = None if reached else self.ring.take(target.size)
            if not reached and through is None:
                return False
            memory = source.data.mem
            place = streams.cupy.cuda.MemoryPointer(memory, source.data.ptr - memory.ptr + outgoing.at)
            there = target if through is None else through
            place.copy_to_host_async(there.ctypes.data, target.size, self.stream)
            event = streams.mark(self.stream)
            self._flying.append((event, through, target, outgoing))
            outgoing.at += target.size
        streams.hold(self.stream, source.data.mem, event)
        outgoing.source = None
        return True


class Staging:
    """All transfers to and from a device. Those of clients use `registered` memory."""

    def __init__(
        self, streams: CudaStreams, pin: Callable[[int], ByteArray], registered: RegisteredMemory | None = None
    ) -> None:
        self.streams = streams
        self.registered = registered
        self.puts = HostToDeviceCopies(streams, streams.copies_in, pin, registered)
        self.fetches = DeviceToHostCopies(streams, streams.copies_out, pin, registered)
        self.pieces_in = HostToDeviceCopies(streams, streams.collectives, pin)
        self.pieces_out = DeviceToHostCopies(streams, streams.collectives, pin)

    @property
    def parts_copied(self) -> int:
        """The number of parts that have arrived so far, in both directions."""
        return (
            self.fetches.parts_copied
            + self.pieces_out.parts_copied
            + self.puts.parts_copied
            + self.pieces_in.parts_copied
        )
