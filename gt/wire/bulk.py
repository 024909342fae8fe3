"""Large data between a client and its workers: the protocol of the bulk socket, without the socket.

The receiver opens a stream by granting bytes to the sender; the sender sends at most what was granted; the receiver grants
more as chunks arrive. So nobody buffers more than a window, however fast the other side is. Frames are [peer, header,
payload]; the dispatcher's relay only replaces the receiver by the sender.

Within one machine no bytes travel, because both sides read and write the client's memory (`shared_memory/pool.py`). For a put,
the worker's grant names the machine whose memory it can read. If that is the client's machine, the client *lends* it the whole
array: it says where the array lies, and gets it *back* when nobody reads it any more. A worker that has borrowed before is told
at once. For a fetch, the client *offers* a place; a worker that can write there does so, and answers that it *wrote*. A side
that cannot open the memory grants without naming a machine, or sends chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Final

import msgpack
import numpy as np

from gt.bounds import MAX_BULK_BYTES
from gt.errors import ProtocolError

from .shared_memory.lending import Borrower

CHUNK_BYTES: Final = MAX_BULK_BYTES
"""The size of a chunk in bytes."""
MAX_IN_FLIGHT_BYTES: Final = 16 << 20
"""The most bytes that a sender may have in flight."""

MAX_EARLY_GRANTS: Final = 1024
"""The most grants and loans that are kept for streams that do not exist yet."""
MAX_PLACE_BYTES: Final = 4096
"""The most bytes of the description of a place."""

PUT: Final = 0
GET: Final = 1
Key = tuple[int, int, int, int]
"""A stream: PUT or GET, the client's number, the tensor's id (PUT) or the client's request (GET), and the worker's number."""
Arrived = tuple[Key, "Array | None"]
"""A complete stream and its array; None if the array was written to the offered place, or not kept."""

DATA: Final = 0
GRANT: Final = 1
LENT: Final = 2
BACK: Final = 3
OFFER: Final = 4
WROTE: Final = 5
Frames = tuple[bytes, bytes, Any]
Array = np.ndarray[Any, Any]
Box = Sequence[Sequence[int]]
Shape = tuple[int, ...]
Place = tuple[str, int]
"""The name of a memory, and an offset in it."""
Offer = tuple[str, int, Sequence[int], Box]
"""A place, the shape of the array there, and the box of it that is to be written."""


def _header(kind: int, key: Key, number: int = 0) -> bytes:
    header: bytes = msgpack.packb((kind, *key, number))
    return header


class _Outgoing:
    """A stream being sent. `at` bytes of `array`, which is this box of its tensor, were sent, and `end` were granted; `place`
    is where the array can be read."""

    __slots__ = ("array", "at", "box", "end", "nbytes", "peer", "place")

    def __init__(self, peer: bytes, array: Array, box: Box, place: Place | None) -> None:
        self.peer = peer
        self.array = array
        self.box = box
        self.nbytes = array.nbytes
        self.place = place
        self.at = self.end = 0

    def chunk(self, upto: int) -> Any:
        """The next bytes, in row-major order; an array with another memory layout is gathered chunk by chunk."""
        at, self.at, array = self.at, upto, self.array
        if array.flags.c_contiguous:
            return array.reshape(-1).view(np.uint8).data[at:upto]
        return array.flat[at // array.itemsize : upto // array.itemsize].tobytes()


ALL_WORKERS: Final = -2
"""In place of the number of a worker that is lost: all of a session's are."""


class Outbox:
    """The streams that this side sends. An array stays alive until its last chunk was sent, or until a loan of it is returned.

    `machine` names where arrays lent from here can be read; `borrower` writes to places that others offer.
    """

    def __init__(self, machine: str = "", borrower: Borrower | None = None) -> None:
        self.machine = machine.encode()
        self.borrower = borrower
        self.streams: dict[Key, _Outgoing] = {}
        self.lent: dict[Key, _Outgoing] = {}
        self.returning: dict[Key, _Outgoing] = {}
        """Loans of streams that were broken off, which their workers still read until they give them back."""
        self.lost: set[int] = set()
        """Workers that give nothing back, because they are lost."""
        self.near: set[int] = set()
        """Workers that have borrowed before."""
        self.early: dict[Key, tuple[bytes, int, bytes]] = {}
        """Grants for streams that were not added yet, because the bulk socket may be faster than the control socket."""
        self.offers: dict[Key, tuple[bytes, int, bytes]] = {}
        """Places for streams that may never be added. When there are too many, the oldest is forgotten; it will be offered
        again."""

    def add(self, peer: bytes, key: Key, array: Array, box: Box = (), place: Place | None = None) -> Iterator[Frames]:
        """Add a stream of an array (not empty), a box of its tensor, for `peer`, which may read it at `place`. Returns what
        can be sent at once."""
        stream = self.streams[key] = _Outgoing(peer, array, box, place)
        early, offer = self.early.pop(key, None), self.offers.pop(key, None)
        if place is not None and key[3] in self.near:
            return self._lend(key, stream, place)
        if offer is not None:
            try:
                return iter(list(self.offered(offer[0], key, *offer[1:])))
            except ProtocolError:
                return iter(())  # it offers nonsense, and waits for nothing
        return iter(()) if early is None else self.granted(early[0], key, *early[1:])

    def _lend(self, key: Key, stream: _Outgoing, place: Place) -> Iterator[Frames]:
        self.lent[key] = stream
        self.streams.pop(key, None)
        return iter([(stream.peer, _header(LENT, key, place[1]), msgpack.packb((place[0], stream.box)))])

    def retract(self, key: Key) -> None:
        """Drop a stream that its receiver will never open."""
        self.streams.pop(key, None)
        self.lent.pop(key, None)

    def cancel(self, tensor: int) -> None:
        """Stop sending a tensor. Loans of it are returned when nobody reads them."""
        for key in [key for key in self.streams if key[2] == tensor]:
            del self.streams[key]

    def drop_client(self, client: int) -> None:
        """Forget all streams of a client that has left."""
        for table in (self.streams, self.early, self.offers):
            for key in [key for key in table if key[1] == client]:
                del table[key]

    def break_off(self, lost: int, *, renumbered: bool) -> None:
        """Forget all streams, because their receivers do not want them any more. What was lent stays as it is until it is given
        back; worker `lost` (-1: none, -2: all) will give nothing back (`give_up_lost`). Grants that have come for streams to be
        added are those of the same session, unless it has another number now."""
        self.returning |= self.lent
        if lost == ALL_WORKERS:
            self.lost.update(key[3] for key in self.returning)
        else:
            self.lost.add(lost)
        for table in (self.streams, self.lent):
            table.clear()
        self.early = {} if renumbered else {key: grant for key, grant in self.early.items() if key[3] != lost}
        self.near.clear()

    def give_up_lost(self) -> None:
        """Have back what was lent to workers that are lost: nothing refers to it any more."""
        if self.lost:
            self.returning = {key: stream for key, stream in self.returning.items() if key[3] not in self.lost}
            self.lost.clear()

    def granted(self, peer: bytes, key: Key, end: int, machine: bytes = b"") -> Iterator[Frames]:
        """`peer`, which can read memory on `machine`, has granted everything up to `end`. Returns what to send.

        A grant from a peer that is not the receiver gives nothing.
        """
        stream = self.streams.get(key) or self.lent.get(key)
        if stream is None:
            if len(self.early) < MAX_EARLY_GRANTS:
                self.early[key] = (peer, end, machine)
            return
        if peer != stream.peer:
            return
        stream.end = max(stream.end, end)
        if stream.place is not None and machine and machine == self.machine:
            self.near.add(key[3])
            yield from self._lend(
                key, stream, stream.place
            )  # perhaps again: what came before its stream may be forgotten
            return
        if key in self.lent:  # it could not open the memory
            self.streams[key] = self.lent.pop(key)
            stream.place = None
        self.near.discard(key[3])
        upto = min(stream.end, stream.at + MAX_IN_FLIGHT_BYTES, stream.nbytes)  # whoever grants more has read less
        while stream.at < upto and self.streams.get(key) is stream:
            at = stream.at
            chunk = stream.chunk(min(at + CHUNK_BYTES, upto))
            if stream.at == stream.nbytes:
                del self.streams[key]
            yield peer, _header(DATA, key, at), chunk

    def back(self, peer: bytes, key: Key) -> None:
        """A loan was returned."""
        for loans in (self.lent, self.returning):
            stream = loans.get(key)
            if stream is not None and stream.peer == peer:
                del loans[key]

    def offered(self, peer: bytes, key: Key, end: int, payload: Any) -> Iterator[Frames]:
        """`peer` offers a place for a stream: write there and say so, or else send chunks up to `end`. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            if len(self.offers) >= MAX_EARLY_GRANTS:
                del self.offers[next(iter(self.offers))]
            if len(payload) <= MAX_PLACE_BYTES:
                self.offers[key] = peer, end, bytes(payload)
            return
        if peer != stream.peer:
            return
        where, offset, shape, box = _read_offer(payload)
        if not _fits(stream.array.shape, shape, box):
            return  # the receiver thought that it was another: it will offer the right place
        target = None
        if not stream.at:
            target = self._target(key, (where, offset, shape, box), stream.array.dtype)
        if target is None:
            yield from self.granted(peer, key, end)
            return
        target[...] = stream.array
        del self.streams[key]
        yield self.wrote(peer, key)

    def place_for(self, peer: bytes, key: Key, shape: Shape, dtype: np.dtype[Any]) -> Array | None:
        """Where a stream that is not added yet may be written, which takes the place of adding it: a place that `peer` has
        offered for a part of this shape, if it lies in one piece there. Afterwards it is `wrote`."""
        offer = self.offers.get(key)
        if offer is None or offer[0] != peer:
            return None
        try:
            known = _read_offer(offer[2])
            target = self._target(key, known, dtype) if _fits(shape, *known[2:]) else None
        except ProtocolError:  # it offers nonsense: it will hear that when there is something to write
            return None
        if target is None or not target.flags.c_contiguous:
            return None
        del self.offers[key]
        return target

    def wrote(self, peer: bytes, key: Key) -> Frames:
        """What says that a stream is where `peer` has offered a place for it."""
        return peer, _header(WROTE, key), b""

    def _target(self, key: Key, offer: Offer, dtype: np.dtype[Any]) -> Array | None:
        """The box of an offered place, or None if it cannot be opened."""
        where, offset, shape, box = offer
        if self.borrower is None:
            return None
        try:
            whole = self.borrower.write(key[1], where, offset, shape, dtype)
        except (OSError, ValueError):
            return None
        return whole[tuple(slice(start, stop) for start, stop in box)]


def _fits(extents: Shape, shape: Sequence[int], box: Box) -> bool:
    """Whether a part of these extents is this box of an array of this shape."""
    return tuple(stop - start for start, stop in box) == extents and all(
        stop <= size for (_, stop), size in zip(box, shape, strict=True)
    )


class _Incoming:
    """A box of a tensor being received: `at` of its `nbytes` bytes are in `array`, which is allocated when the first ones
    come."""

    __slots__ = ("array", "at", "box", "dtype", "make", "nbytes", "peer", "shape", "view")

    def __init__(self, peer: bytes, box: Box, dtype: np.dtype[Any], make: Callable[[], Array | None]) -> None:
        self.peer = peer
        self.box = [list(pair) for pair in box]
        self.shape = shape = tuple(stop - start for start, stop in box)
        self.dtype = dtype
        self.make = make
        self.nbytes = prod(shape) * dtype.itemsize
        self.array: Array | None = None
        self.view: memoryview | None = None
        self.at = 0

    @property
    def window(self) -> int:
        """Up to where its sender may send now: no further than to the end, since the relay counts what was granted."""
        return min(self.at + MAX_IN_FLIGHT_BYTES, self.nbytes)

    def begin(self) -> None:
        """Allocate the array, if there is memory."""
        try:
            self.array = self.make()
        except MemoryError:
            return
        if self.array is not None:
            self.view = self.array.reshape(-1).view(np.uint8).data


class Inbox:
    """The streams that this side receives. `borrower` reads the memory of others."""

    def __init__(self, borrower: Borrower | None = None) -> None:
        self.borrower = borrower
        self.machine = borrower.machine.encode() if borrower is not None else b""
        self.streams: dict[Key, _Incoming] = {}
        self.early: dict[Key, tuple[bytes, int, bytes]] = {}
        """Loans for streams that were not opened yet. When there are too many, the oldest is forgotten; the grant for its
        stream brings it again."""

    def open(
        self, peer: bytes, key: Key, box: Box, dtype: np.dtype[Any], make: Callable[[], Array | None],
        offer: Offer | None = None,
    ) -> Frames:  # fmt: skip
        """Begin to receive a box of a tensor (not empty). Returns the first grant.

        The data may be read from the sender's memory, be written where `offer` says, or come in chunks into what `make`
        returns: an array of that shape in row-major order. If `make` returns None or raises `MemoryError`, the stream is
        received and dropped.
        """
        stream = self.streams[key] = _Incoming(peer, box, dtype, make)
        if offer is not None:
            return peer, _header(OFFER, key, stream.window), msgpack.packb(offer)
        return peer, _header(GRANT, key, stream.window), self.machine

    def close(self, key: Key) -> None:
        """Stop receiving a stream."""
        self.streams.pop(key, None)

    def drop_client(self, client: int) -> None:
        """Forget the loans of a client that has left."""
        for key in [key for key in self.early if key[1] == client]:
            del self.early[key]

    def chunk(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """Take a chunk; chunks come in order. Returns whether the stream is complete, and a further grant if it is due.

        Raises `ProtocolError`.
        """
        stream = self.streams.get(key)
        if stream is None:
            return False, []
        if (
            peer != stream.peer
            or offset != stream.at
            or not 0 < len(payload) <= min(CHUNK_BYTES, stream.nbytes - offset)
        ):
            raise ProtocolError(f"a chunk at {offset} of {len(payload)} bytes where {stream.at} was due")
        if offset == 0:
            stream.begin()
        if stream.view is not None:
            stream.view[offset : offset + len(payload)] = payload
        stream.at += len(payload)
        if stream.at == stream.nbytes:
            return True, []
        if offset + MAX_IN_FLIGHT_BYTES >= stream.nbytes:
            return False, []  # all of it was granted: a further grant would reach a sender that is done with it
        return False, [(stream.peer, _header(GRANT, key, stream.window), b"")]

    def lent(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """Take a loan of the sender's memory. Returns whether the stream is complete, and what to answer. Raises
        `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            if len(self.early) >= MAX_EARLY_GRANTS:
                del self.early[next(iter(self.early))]
            if len(payload) <= MAX_PLACE_BYTES:
                self.early[key] = (peer, offset, bytes(payload))
            return False, []
        if peer != stream.peer or stream.at:
            raise ProtocolError(f"a loan where a chunk at {stream.at} was due")
        where, box = _read_loan(payload)
        if box != stream.box:
            return False, []  # the sender did not know yet how its tensor would be cut; another follows
        try:
            if self.borrower is None:
                raise ValueError("no memory is shared")
            stream.array = self.borrower.read(key[1], where, offset, stream.shape, stream.dtype, (peer, key))
        except (OSError, ValueError):
            return False, [(peer, _header(GRANT, key, stream.window), b"")]
        return True, []

    def wrote(self, peer: bytes, key: Key) -> tuple[bool, list[Frames]]:
        """The sender has written a stream to the offered place. Returns whether it is complete, and nothing to answer."""
        stream = self.streams.get(key)
        if stream is not None and (peer != stream.peer or stream.at):
            raise ProtocolError("written where nothing was due")
        return stream is not None, []


class Bulk:
    """Both directions of one bulk socket. `machine` names where arrays lent from here can be read; `borrower` uses the memory
    of others."""

    def __init__(self, machine: str = "", borrower: Borrower | None = None) -> None:
        self.outbox = Outbox(machine, borrower)
        self.inbox = Inbox(borrower)
        self.borrower = borrower

    def drop_client(self, client: int) -> None:
        """Forget a client that has left, and its memory. Loans of it that were never taken are given back."""
        if self.borrower is not None:
            unread = {(loan[0], key) for key, loan in self.inbox.early.items() if key[1] == client}
            self.borrower.returned += unread - self.borrower.taken
        self.outbox.drop_client(client)
        self.inbox.drop_client(client)
        if self.borrower is not None:
            self.borrower.forget(client)

    def under_way(self) -> tuple[int, int]:
        """For the streams in progress: bytes sent and received, and bytes in all. In shared memory a stream has either none or
        all."""
        streams: list[_Outgoing | _Incoming] = [*self.outbox.streams.values(), *self.inbox.streams.values()]
        return sum(stream.at for stream in streams), sum(stream.nbytes for stream in streams)

    def returned(self) -> Iterator[Frames]:
        """The frames that return loans."""
        while self.borrower is not None and self.borrower.returned:
            peer, key = self.borrower.returned.popleft()
            self.borrower.taken.discard((peer, key))
            yield peer, _header(BACK, key), b""

    def heard(self, frames: list[Any]) -> tuple[Arrived | None, Iterator[Frames]]:
        """Process a frame. Returns the stream that is complete now, if any, and what to send. Raises `ProtocolError`."""
        if len(frames) != 3:
            raise ProtocolError("a bulk message is three frames")
        peer, header, payload = frames
        kind, key, number = read_header(header)
        if kind == GRANT:
            return None, self.outbox.granted(peer, key, number, bytes(payload))
        if kind == OFFER:
            return None, self.outbox.offered(peer, key, number, payload)
        if kind == BACK:
            self.outbox.back(peer, key)
            return None, iter(())
        if kind == WROTE:
            whole, answers = self.inbox.wrote(peer, key)
        else:
            whole, answers = (self.inbox.lent if kind == LENT else self.inbox.chunk)(peer, key, number, payload)
        return self._whole(key, whole), iter(answers)

    def opened(self, key: Key) -> tuple[Arrived | None, Iterator[Frames]]:
        """As `heard`, for a loan that came before its stream was opened. Raises `ProtocolError`."""
        early = self.inbox.early.pop(key, None)
        if early is None:
            return None, iter(())
        whole, answers = self.inbox.lent(early[0], key, *early[1:])
        return self._whole(key, whole), iter(answers)

    def _whole(self, key: Key, whole: bool) -> Arrived | None:
        return (key, self.inbox.streams.pop(key).array) if whole else None


def read_header(frame: Any) -> tuple[int, Key, int]:
    """The (kind, stream, number) of a header frame; the number is an offset or a grant. Raises `ProtocolError`."""
    raw = _unpack(frame, 64)
    if not (_numbers(raw) and len(raw) == 6):
        raise ProtocolError("a bulk header is six numbers")
    kind, a, b, c, d, number = raw
    if kind not in (DATA, GRANT, LENT, BACK, OFFER, WROTE):
        raise ProtocolError(f"there is no bulk message {kind}")
    return kind, (a, b, c, d), number


def _read_offer(frame: Any) -> Offer:
    raw = _unpack(frame, MAX_PLACE_BYTES)
    if isinstance(raw, list) and len(raw) == 4:
        where, offset, shape, box = raw
        if type(where) is str and _numbers([offset]) and _numbers(shape) and _is_box(box) and len(box) == len(shape):
            return where, offset, shape, box
    raise ProtocolError("an offer is where, offset, shape and box")


def _read_loan(frame: Any) -> tuple[str, Box]:
    raw = _unpack(frame, MAX_PLACE_BYTES)
    if isinstance(raw, list) and len(raw) == 2 and type(raw[0]) is str and _is_box(raw[1]):
        return raw[0], raw[1]
    raise ProtocolError("a loan is where and box")


def _is_box(raw: Any) -> bool:
    return isinstance(raw, list) and all(_numbers(pair) and len(pair) == 2 and pair[0] <= pair[1] for pair in raw)


def _numbers(raw: Any) -> bool:
    return isinstance(raw, list) and all(type(item) is int and item >= 0 for item in raw)


def _unpack(frame: Any, limit: int) -> Any:
    try:
        return msgpack.unpackb(frame) if len(frame) <= limit else None
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"a bulk header is not msgpack: {type(error).__name__}") from None
