"""Large data in chunks, under credits of the receiver: the protocol of the bulk socket, without the socket.

The receiver opens a stream by granting bytes to the sender; the sender sends at most what was granted; the receiver
grants more as chunks arrive. So nobody buffers more than a window, however fast the other side is. Frames are
[peer, header, payload]; the dispatcher's relay only swaps the peer for the sender.

A grant says on which machine the receiver can read memory. To a receiver on its own the sender *lends* a chunk: it copies
it to a slot of shared memory (`lending.py`) and sends where that is; the receiver copies it out and gives the slot back.
A receiver that cannot open the memory says so by a grant that names no machine, and gets the bytes from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack

from .errors import ProtocolError
from .lending import SLOT, Borrower, Lender

INLINE: Final = 64 << 10
"""Bytes up to which data travels inside its control message."""
CHUNK: Final = 1 << 20
"""Bytes of one chunk that travels in a frame."""
WINDOW: Final = 16 << 20
"""Bytes that a sender may have under way."""

MAX_EARLY: Final = 1024
"""Grants kept for streams that are not there yet."""

PUT: Final = 0
GET: Final = 1
Key = tuple[int, int, int, int]
"""A stream: PUT or GET, the client's number, the tensor (PUT) or the client's request (GET), the worker's number."""

DATA: Final = 0
GRANT: Final = 1
LENT: Final = 2
BACK: Final = 3
Frames = tuple[bytes, bytes, Any]


def _header(kind: int, key: Key, number: int) -> bytes:
    header: bytes = msgpack.packb((kind, *key, number))
    return header


class _Outgoing:
    """A stream on its way: `at` is what was sent of `view`, `end` what was granted; `near` says that chunks are lent."""

    __slots__ = ("at", "end", "near", "peer", "view")

    def __init__(self, peer: bytes, view: memoryview) -> None:
        self.peer = peer
        self.view = view
        self.at = self.end = 0
        self.near = False


class Outbox:
    """The streams that this side sends. A buffer stays alive until its last chunk is on its way, or read when it was lent."""

    def __init__(self, lender: Lender | None = None) -> None:
        self.lender = lender
        self.streams: dict[Key, _Outgoing] = {}
        self.early: dict[Key, tuple[bytes, int, bytes]] = {}
        """Grants for streams that are still to be added: the bulk socket may be faster than the control socket."""

    def add(self, peer: bytes, key: Key, buffer: Any) -> Iterator[Frames]:
        """Offer a buffer (any contiguous bytes-like object, not empty) to `peer`; the chunks already granted, if any."""
        self.streams[key] = _Outgoing(peer, memoryview(buffer).cast("B"))
        early = self.early.pop(key, None)
        return iter(()) if early is None else self.granted(early[0], key, *early[1:])

    def sends(self, tensor: int) -> bool:
        """Whether some stream of this tensor has not left whole."""
        return any(key[2] == tensor for key in self.streams)

    def cancel(self, tensor: int) -> None:
        """Send no more of a tensor. What is lent for it comes back when it was read."""
        for key in [key for key in self.streams if key[2] == tensor]:
            del self.streams[key]

    def drop_client(self, client: int) -> None:
        """Forget all streams of a client, which is gone."""
        for table in (self.streams, self.early):
            for key in [key for key in table if key[1] == client]:
                del table[key]
        if self.lender is not None:
            self.lender.drop(lambda key: key[1] == client)

    def clear(self) -> None:
        """Forget all streams: nobody listens any more."""
        self.streams.clear()
        if self.lender is not None:
            self.lender.drop(lambda key: True)

    def granted(self, peer: bytes, key: Key, end: int, machine: bytes = b"") -> Iterator[Frames]:
        """The chunks that `peer`, which can read memory on `machine`, may have now that it granted everything up to `end`.

        A stranger gets nothing.
        """
        stream = self.streams.get(key)
        if stream is None:
            if len(self.early) < MAX_EARLY:
                self.early[key] = (peer, end, machine)
            return
        if peer != stream.peer:
            return
        near = self.lender is not None and bool(machine) and machine == self.lender.machine.encode()
        if stream.near and not near:  # it could not open the memory, and has what came before its window
            stream.at, stream.end = max(0, min(stream.at, end - WINDOW)), 0
        stream.near, stream.end = near, max(stream.end, end)
        yield from self._due(key, stream)

    def back(self, peer: bytes, key: Key, loan: int) -> Iterator[Frames]:
        """A slot comes back; the chunks that waited for it."""
        if self.lender is None or self.lender.users.get(loan) != key:
            return
        self.lender.back(loan)
        whole = self.streams.get(key)
        if whole is not None and whole.at == len(whole.view) and key not in self.lender.users.values():
            del self.streams[key]
        for waiting, stream in list(self.streams.items()):
            if stream.near and stream.at < stream.end:
                yield from self._due(waiting, stream)

    def _due(self, key: Key, stream: _Outgoing) -> Iterator[Frames]:
        """What may leave now of a stream."""
        view, peer = stream.view, stream.peer
        upto = min(stream.end, len(view))
        while stream.at < upto and self.streams.get(key) is stream:
            at = stream.at
            if not stream.near:
                stream.at = min(at + CHUNK, upto)
                chunk = peer, _header(DATA, key, at), view[at : stream.at]
            else:
                lent = self.lender.lend(key) if self.lender is not None else None
                if lent is None:
                    return
                loan, where, offset, slot = lent
                stream.at = min(at + SLOT, upto)
                slot[: stream.at - at] = view[at : stream.at]
                chunk = peer, _header(LENT, key, at), msgpack.packb((where, offset, stream.at - at, loan))
            if stream.at == len(view) and not stream.near:
                del self.streams[key]
            yield chunk


class _Incoming:
    """A stream on its way here: `at` of `nbytes` have come; `near` says that chunks may be lent."""

    __slots__ = ("at", "nbytes", "near", "peer", "view")

    def __init__(self, peer: bytes, view: memoryview | None, nbytes: int, near: bool) -> None:
        self.peer = peer
        self.view = view
        self.nbytes = nbytes
        self.at = 0
        self.near = near


class Inbox:
    """The streams that this side receives, each into its own buffer."""

    def __init__(self, borrower: Borrower | None = None) -> None:
        self.borrower = borrower
        self.machine = borrower.machine.encode() if borrower is not None else b""
        self.streams: dict[Key, _Incoming] = {}

    def open(self, peer: bytes, key: Key, buffer: Any) -> Frames:
        """Begin to receive into `buffer` (writable, contiguous, not empty); the first grant."""
        view = memoryview(buffer).cast("B")
        return self._opened(peer, key, view, len(view))

    def ignore(self, peer: bytes, key: Key, nbytes: int) -> Frames:
        """Hear a stream of `nbytes` to its end and keep nothing, so that its sender can go on; the first grant."""
        return self._opened(peer, key, None, nbytes)

    def _opened(self, peer: bytes, key: Key, view: memoryview | None, nbytes: int) -> Frames:
        stream = self.streams[key] = _Incoming(peer, view, nbytes, bool(self.machine))
        return self._grant(key, stream)

    def _grant(self, key: Key, stream: _Incoming) -> Frames:
        if stream.near:  # all of it: what is under way is bounded by the sender's slots
            return stream.peer, _header(GRANT, key, stream.nbytes), self.machine
        return stream.peer, _header(GRANT, key, stream.at + WINDOW), b""

    def close(self, key: Key) -> None:
        """Receive no more of a stream."""
        self.streams.pop(key, None)

    def chunk(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """(whether the stream is whole now, a further grant if it is due). Chunks come in order. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            return False, []
        if peer != stream.peer or offset != stream.at or not 0 < len(payload) <= min(CHUNK, stream.nbytes - offset):
            raise ProtocolError(f"a chunk at {offset} of {len(payload)} bytes where {stream.at} was due")
        if stream.view is not None:
            stream.view[offset : offset + len(payload)] = payload
        return self._came(key, stream, len(payload))

    def lent(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, list[Frames]]:
        """(whether the stream is whole now, what to answer) for a chunk that lies in the sender's memory."""
        where, start, nbytes, loan = _read_loan(payload)
        back = peer, _header(BACK, key, loan), b""
        stream = self.streams.get(key)
        if stream is None or not stream.near:
            return False, [back]
        if peer != stream.peer or offset != stream.at or not 0 < nbytes <= min(SLOT, stream.nbytes - offset):
            raise ProtocolError(f"a loan at {offset} of {nbytes} bytes where {stream.at} was due")
        if stream.view is not None:
            assert self.borrower is not None, "who is near can borrow"
            try:
                lent = self.borrower.view(where, start, nbytes, key[1])
            except (OSError, ValueError):
                stream.near = False
                return False, [back, self._grant(key, stream)]
            stream.view[offset : offset + nbytes] = lent
        whole, answers = self._came(key, stream, nbytes)
        return whole, [back, *answers]

    def _came(self, key: Key, stream: _Incoming, nbytes: int) -> tuple[bool, list[Frames]]:
        before = stream.at
        stream.at += nbytes
        if stream.at == stream.nbytes:
            del self.streams[key]
            return True, []
        if stream.near or before + WINDOW >= stream.nbytes:
            return False, []  # all of it was granted: a further grant would reach a sender that is done with it
        return False, [self._grant(key, stream)]


class Bulk:
    """Both directions of one bulk socket. `limit`: bytes of shared memory to lend, 0 for none either way."""

    def __init__(self, limit: float) -> None:
        self.outbox = Outbox(Lender(limit))
        self.inbox = Inbox(Borrower() if limit else None)

    def drop_client(self, client: int) -> None:
        """A client is gone, and what was lent to it and by it."""
        self.outbox.drop_client(client)
        if self.inbox.borrower is not None:
            self.inbox.borrower.forget(client)

    def break_off(self) -> None:
        """Nobody sends or listens any more."""
        self.outbox.clear()
        if self.inbox.borrower is not None:
            self.inbox.borrower.forget()

    def heard(self, frames: list[Any]) -> tuple[Key | None, Iterator[Frames]]:
        """(the stream that is whole now, if one is; what to send) for what has arrived. Raises `ProtocolError`."""
        if len(frames) != 3:
            raise ProtocolError("a bulk message is three frames")
        peer, header, payload = frames
        kind, key, number = read_header(header)
        if kind == GRANT:
            return None, self.outbox.granted(peer, key, number, bytes(payload))
        if kind == BACK:
            return None, self.outbox.back(peer, key, number)
        whole, answers = (self.inbox.lent if kind == LENT else self.inbox.chunk)(peer, key, number, payload)
        return key if whole else None, iter(answers)


def read_header(frame: Any) -> tuple[int, Key, int]:
    """(kind, stream, number) of a header frame; the number is an offset, a grant or a loan. Raises `ProtocolError`."""
    raw = _unpacked(frame, 64)
    if not (isinstance(raw, list) and len(raw) == 6 and all(type(item) is int and item >= 0 for item in raw)):
        raise ProtocolError("a bulk header is six numbers")
    kind, a, b, c, d, number = raw
    if kind not in (DATA, GRANT, LENT, BACK):
        raise ProtocolError(f"there is no bulk message {kind}")
    return kind, (a, b, c, d), number


def _read_loan(frame: Any) -> tuple[str, int, int, int]:
    """(where the memory is, offset, bytes, the loan's number)."""
    raw = _unpacked(frame, 512)
    if not (
        isinstance(raw, list) and len(raw) == 4 and type(raw[0]) is str
        and all(type(item) is int and item >= 0 for item in raw[1:])
    ):  # fmt: skip
        raise ProtocolError("a loan is where, offset, bytes and number")
    return raw[0], raw[1], raw[2], raw[3]


def _unpacked(frame: Any, limit: int) -> Any:
    try:
        return msgpack.unpackb(frame) if len(frame) <= limit else None
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"a bulk header is not msgpack: {type(error).__name__}") from None
