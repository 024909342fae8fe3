"""Large data between a client and its workers: the protocol of the bulk socket, without the socket.

The receiver opens a stream by granting bytes to the sender; the sender sends at most what was granted; the receiver
grants more as chunks arrive. So nobody buffers more than a window, however fast the other side is. Frames are
[peer, header, payload]; the dispatcher's relay only swaps the peer for the sender.

On one machine no bytes travel: the client's memory (`pool.py`) is where both sides read and write. The receiver of a put says
by its grant on which machine it can read memory. If that is the client's own, the client *lends* it the whole: it says where
that lies, and gets it *back* when nobody reads it any more; to a worker that has borrowed before it says so at once. The
receiver of a fetch is the client, which *offers* a place; a worker that can write there does, and says that it *wrote*. Who
cannot open the memory says so by a grant that names no machine, or sends chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, Final

import msgpack
import numpy as np

from .errors import ProtocolError
from .lending import Borrower
from .pool import SMALL

INLINE: Final = SMALL
"""Bytes up to which data travels inside its control message."""
CHUNK: Final = 1 << 20
"""Bytes of one chunk that travels in a frame."""
WINDOW: Final = 16 << 20
"""Bytes that a sender may have under way."""

MAX_EARLY: Final = 1024
"""Grants and loans kept for streams that are not there yet."""
MAX_PLACE: Final = 4096
"""Bytes of what says where something lies."""

PUT: Final = 0
GET: Final = 1
Key = tuple[int, int, int, int]
"""A stream: PUT or GET, the client's number, the tensor (PUT) or the client's request (GET), the worker's number."""
Arrived = tuple[Key, "Array | None"]
"""A stream that is whole, and its array, if it was not written where it was offered to be, or not kept."""

DATA: Final = 0
GRANT: Final = 1
LENT: Final = 2
BACK: Final = 3
OFFER: Final = 4
WROTE: Final = 5
Frames = tuple[bytes, bytes, Any]
Array = np.ndarray[Any, Any]
Box = Sequence[Sequence[int]]
Place = tuple[str, int]
"""By what a memory is found, and where in it something begins."""
Offer = tuple[str, int, Sequence[int], Box]
"""A place, the shape of the array that lies there, and the box of it that is to be written."""


def _header(kind: int, key: Key, number: int = 0) -> bytes:
    header: bytes = msgpack.packb((kind, *key, number))
    return header


class _Outgoing:
    """A stream on its way: `at` is what was sent of `array`, which is this box of its tensor; `end` what was granted; `place`:
    where it can be read."""

    __slots__ = ("array", "at", "box", "end", "nbytes", "peer", "place")

    def __init__(self, peer: bytes, array: Array, box: Box, place: Place | None) -> None:
        self.peer = peer
        self.array = array
        self.box = box
        self.nbytes = array.nbytes
        self.place = place
        self.at = self.end = 0

    def chunk(self, upto: int) -> Any:
        """The next bytes, in row-major order; those of an array that lies otherwise are gathered as they leave."""
        at, self.at, array = self.at, upto, self.array
        if array.flags.c_contiguous:
            return array.reshape(-1).view(np.uint8).data[at:upto]
        return array.flat[at // array.itemsize : upto // array.itemsize].tobytes()


class Outbox:
    """The streams that this side sends. An array stays alive until its last chunk is on its way, or until it is given back.

    `machine`: where what is lent from here can be read. `borrower`: what writes to where others offer.
    """

    def __init__(self, machine: str = "", borrower: Borrower | None = None) -> None:
        self.machine = machine.encode()
        self.borrower = borrower
        self.streams: dict[Key, _Outgoing] = {}
        self.lent: dict[Key, _Outgoing] = {}
        self.near: set[int] = set()
        """Workers that have borrowed."""
        self.early: dict[Key, tuple[bytes, int, bytes]] = {}
        """Grants for streams that are still to be added: the bulk socket may be faster than the control socket."""
        self.offers: dict[Key, tuple[bytes, int, bytes]] = {}
        """Places for streams that may never be added. When there are too many the first is forgotten; it comes again."""

    def add(self, peer: bytes, key: Key, array: Array, box: Box = (), place: Place | None = None) -> Iterator[Frames]:
        """Offer an array (not empty), a box of its tensor, to `peer`, which may find it at `place`; what may leave already."""
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
        """Send no more of a stream that its receiver will never open."""
        self.streams.pop(key, None)
        self.lent.pop(key, None)

    def cancel(self, tensor: int) -> None:
        """Send no more of a tensor. What is lent of it comes back when nobody reads it."""
        for key in [key for key in self.streams if key[2] == tensor]:
            del self.streams[key]

    def drop_client(self, client: int) -> None:
        """Forget all streams of a client, which is gone."""
        for table in (self.streams, self.early, self.offers):
            for key in [key for key in table if key[1] == client]:
                del table[key]

    def clear(self) -> None:
        """Forget all streams: nobody listens any more."""
        self.streams.clear()
        self.lent.clear()
        self.near.clear()

    def granted(self, peer: bytes, key: Key, end: int, machine: bytes = b"") -> Iterator[Frames]:
        """What `peer`, which can read memory on `machine`, may have now that it granted everything up to `end`.

        A stranger gets nothing.
        """
        stream = self.streams.get(key) or self.lent.get(key)
        if stream is None:
            if len(self.early) < MAX_EARLY:
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
        upto = min(stream.end, stream.nbytes)
        while stream.at < upto and self.streams.get(key) is stream:
            at = stream.at
            chunk = stream.chunk(min(at + CHUNK, upto))
            if stream.at == stream.nbytes:
                del self.streams[key]
            yield peer, _header(DATA, key, at), chunk

    def back(self, peer: bytes, key: Key) -> None:
        """Nobody reads any more what was lent."""
        stream = self.lent.get(key)
        if stream is not None and stream.peer == peer:
            del self.lent[key]

    def offered(self, peer: bytes, key: Key, end: int, payload: Any) -> Iterator[Frames]:
        """`peer` has a place for a stream: write there and say so, or else send chunks up to `end`. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            if len(self.offers) >= MAX_EARLY:
                del self.offers[next(iter(self.offers))]
            if len(payload) <= MAX_PLACE:
                self.offers[key] = peer, end, bytes(payload)
            return
        if peer != stream.peer:
            return
        where, offset, shape, box = _read_offer(payload)
        extents = tuple(stop - start for start, stop in box)
        if extents != stream.array.shape or any(stop > size for (_, stop), size in zip(box, shape, strict=True)):
            return  # the receiver thought that it was another: it will offer the right place
        target = None
        if self.borrower is not None and not stream.at:
            try:
                target = self.borrower.write(key[1], where, offset, shape, stream.array.dtype)
            except (OSError, ValueError):
                pass  # it cannot be opened
        if target is None:
            yield from self.granted(peer, key, end)
            return
        target[tuple(slice(start, stop) for start, stop in box)] = stream.array
        del self.streams[key]
        yield peer, _header(WROTE, key), b""


class _Incoming:
    """A box of a tensor on its way here: `at` of its `nbytes` have come, into `array`, which is made when the first do."""

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

    def begin(self) -> None:
        """Have memory for it, if there is any."""
        try:
            self.array = self.make()
        except MemoryError:
            return
        if self.array is not None:
            self.view = self.array.reshape(-1).view(np.uint8).data


class Inbox:
    """The streams that this side receives. `borrower`: what reads others' memory."""

    def __init__(self, borrower: Borrower | None = None) -> None:
        self.borrower = borrower
        self.machine = borrower.machine.encode() if borrower is not None else b""
        self.streams: dict[Key, _Incoming] = {}
        self.early: dict[Key, tuple[bytes, int, bytes]] = {}
        """What was lent for streams that are still to be opened. When there is too much the first is forgotten; the grant for its
        stream brings it again."""

    def open(
        self, peer: bytes, key: Key, box: Box, dtype: np.dtype[Any], make: Callable[[], Array | None],
        offer: Offer | None = None,
    ) -> Frames:  # fmt: skip
        """Begin to receive a box of a tensor (not empty); the first grant.

        It may be found in the sender's memory; or be written where `offer` says; or come in chunks, into what `make` gives: an
        array of that shape in row-major order, or None (or `MemoryError`), when it is heard to its end and not kept.
        """
        self.streams[key] = _Incoming(peer, box, dtype, make)
        if offer is not None:
            return peer, _header(OFFER, key, WINDOW), msgpack.packb(offer)
        return peer, _header(GRANT, key, WINDOW), self.machine

    def close(self, key: Key) -> None:
        """Receive no more of a stream."""
        self.streams.pop(key, None)

    def drop_client(self, client: int) -> None:
        """Forget what a client lent that is gone."""
        for key in [key for key in self.early if key[1] == client]:
            del self.early[key]

    def chunk(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """(whether the stream is whole now, a further grant if it is due). Chunks come in order. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            return False, []
        if peer != stream.peer or offset != stream.at or not 0 < len(payload) <= min(CHUNK, stream.nbytes - offset):
            raise ProtocolError(f"a chunk at {offset} of {len(payload)} bytes where {stream.at} was due")
        if offset == 0:
            stream.begin()
        if stream.view is not None:
            stream.view[offset : offset + len(payload)] = payload
        stream.at += len(payload)
        if stream.at == stream.nbytes:
            return True, []
        if offset + WINDOW >= stream.nbytes:
            return False, []  # all of it was granted: a further grant would reach a sender that is done with it
        return False, [(stream.peer, _header(GRANT, key, stream.at + WINDOW), b"")]

    def lent(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """(whether the stream is whole now, what to answer) when it lies in the sender's memory. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            if len(self.early) >= MAX_EARLY:
                del self.early[next(iter(self.early))]
            if len(payload) <= MAX_PLACE:
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
            return False, [(peer, _header(GRANT, key, WINDOW), b"")]
        return True, []

    def wrote(self, peer: bytes, key: Key) -> tuple[bool, list[Frames]]:
        """(whether the stream is whole now, nothing to answer) when its sender has written it where it was to be."""
        stream = self.streams.get(key)
        if stream is not None and (peer != stream.peer or stream.at):
            raise ProtocolError("written where nothing was due")
        return stream is not None, []


class Bulk:
    """Both directions of one bulk socket. `machine`: where what is lent from here can be read; `borrower`: what uses others'
    memory."""

    def __init__(self, machine: str = "", borrower: Borrower | None = None) -> None:
        self.outbox = Outbox(machine, borrower)
        self.inbox = Inbox(borrower)
        self.borrower = borrower

    def drop_client(self, client: int) -> None:
        """A client is gone, and the memory that it showed."""
        self.outbox.drop_client(client)
        self.inbox.drop_client(client)
        if self.borrower is not None:
            self.borrower.forget(client)

    def under_way(self) -> tuple[int, int]:
        """(bytes sent and received, bytes in all) of the streams under way. In shared memory one is not there, then whole."""
        streams: list[_Outgoing | _Incoming] = [*self.outbox.streams.values(), *self.inbox.streams.values()]
        return sum(stream.at for stream in streams), sum(stream.nbytes for stream in streams)

    def returned(self) -> Iterator[Frames]:
        """The word that what was borrowed is read no more."""
        while self.borrower is not None and self.borrower.returned:
            peer, key = self.borrower.returned.popleft()
            yield peer, _header(BACK, key), b""

    def heard(self, frames: list[Any]) -> tuple[Arrived | None, Iterator[Frames]]:
        """(the stream that is whole now, if one is; what to send) for what has arrived. Raises `ProtocolError`."""
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
        """As `heard`, for what was lent before its stream was opened. Raises `ProtocolError`."""
        early = self.inbox.early.pop(key, None)
        if early is None:
            return None, iter(())
        whole, answers = self.inbox.lent(early[0], key, *early[1:])
        return self._whole(key, whole), iter(answers)

    def _whole(self, key: Key, whole: bool) -> Arrived | None:
        return (key, self.inbox.streams.pop(key).array) if whole else None


def read_header(frame: Any) -> tuple[int, Key, int]:
    """(kind, stream, number) of a header frame; the number is an offset or a grant. Raises `ProtocolError`."""
    raw = _unpacked(frame, 64)
    if not (_numbers(raw) and len(raw) == 6):
        raise ProtocolError("a bulk header is six numbers")
    kind, a, b, c, d, number = raw
    if kind not in (DATA, GRANT, LENT, BACK, OFFER, WROTE):
        raise ProtocolError(f"there is no bulk message {kind}")
    return kind, (a, b, c, d), number


def _read_offer(frame: Any) -> Offer:
    raw = _unpacked(frame, MAX_PLACE)
    if isinstance(raw, list) and len(raw) == 4:
        where, offset, shape, box = raw
        if type(where) is str and _numbers([offset]) and _numbers(shape) and _is_box(box) and len(box) == len(shape):
            return where, offset, shape, box
    raise ProtocolError("an offer is where, offset, shape and box")


def _read_loan(frame: Any) -> tuple[str, Box]:
    raw = _unpacked(frame, MAX_PLACE)
    if isinstance(raw, list) and len(raw) == 2 and type(raw[0]) is str and _is_box(raw[1]):
        return raw[0], raw[1]
    raise ProtocolError("a loan is where and box")


def _is_box(raw: Any) -> bool:
    return isinstance(raw, list) and all(_numbers(pair) and len(pair) == 2 and pair[0] <= pair[1] for pair in raw)


def _numbers(raw: Any) -> bool:
    return isinstance(raw, list) and all(type(item) is int and item >= 0 for item in raw)


def _unpacked(frame: Any, limit: int) -> Any:
    try:
        return msgpack.unpackb(frame) if len(frame) <= limit else None
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"a bulk header is not msgpack: {type(error).__name__}") from None
