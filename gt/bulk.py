"""Large data in chunks, under credits of the receiver: the protocol of the bulk socket, without the socket.

The receiver opens a stream by granting bytes to the sender; the sender sends at most what was granted; the receiver
grants more as chunks arrive. So nobody buffers more than a window, however fast the other side is. Frames are
[peer, header, payload]; the dispatcher's relay only swaps the peer for the sender.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack

from .errors import ProtocolError

INLINE: Final = 64 << 10
"""Bytes up to which data travels inside its control message."""
CHUNK: Final = 1 << 20
"""Bytes of one chunk."""
WINDOW: Final = 16 << 20
"""Bytes that a sender may have under way."""

MAX_EARLY: Final = 1024
"""Grants kept for streams that are not there yet."""

PUT: Final = 0
GET: Final = 1
Key = tuple[int, int, int, int]
"""A stream: PUT or GET, the client's number, the tensor (PUT) or the client's request (GET), the worker's number."""

_DATA: Final = 0
_GRANT: Final = 1
Frames = tuple[bytes, bytes, Any]


def _header(kind: int, key: Key, number: int) -> bytes:
    header: bytes = msgpack.packb((kind, *key, number))
    return header


class Outbox:
    """The streams that this side sends. A buffer stays alive until its last chunk is on its way or it is dropped."""

    def __init__(self) -> None:
        self.streams: dict[Key, tuple[bytes, memoryview, int]] = {}
        self.early: dict[Key, tuple[bytes, int]] = {}
        """Grants for streams that are still to be added: the bulk socket may be faster than the control socket."""

    def add(self, peer: bytes, key: Key, buffer: Any) -> Iterator[Frames]:
        """Offer a buffer (any contiguous bytes-like object, not empty) to `peer`; the chunks already granted, if any."""
        self.streams[key] = (peer, memoryview(buffer).cast("B"), 0)
        early, end = self.early.pop(key, (peer, 0))
        return self.granted(early, key, end)

    def drop_client(self, client: int) -> None:
        """Forget all streams of a client."""
        for table in (self.streams, self.early):
            for key in [key for key in table if key[1] == client]:
                del table[key]

    def granted(self, peer: bytes, key: Key, end: int) -> Iterator[Frames]:
        """The chunks that `peer` may have now that it granted everything up to byte `end`. A stranger gets nothing."""
        stream = self.streams.get(key)
        if stream is None:
            if len(self.early) < MAX_EARLY:
                self.early[key] = (peer, end)
            return
        receiver, view, at = stream
        if peer != receiver:
            return
        while at < min(end, len(view)):
            stop = min(at + CHUNK, len(view))
            yield peer, _header(_DATA, key, at), view[at:stop]
            at = stop
        if at == len(view):
            del self.streams[key]
        else:
            self.streams[key] = (receiver, view, at)


class Inbox:
    """The streams that this side receives, each into its own buffer."""

    def __init__(self) -> None:
        self.streams: dict[Key, tuple[bytes, memoryview | None, int, int]] = {}

    def open(self, peer: bytes, key: Key, buffer: Any) -> Frames:
        """Begin to receive into `buffer` (writable, contiguous, not empty); the first grant."""
        view = memoryview(buffer).cast("B")
        self.streams[key] = (peer, view, len(view), 0)
        return peer, _header(_GRANT, key, WINDOW), b""

    def ignore(self, peer: bytes, key: Key, nbytes: int) -> Frames:
        """Hear a stream of `nbytes` to its end and keep nothing, so that its sender can go on; the first grant."""
        self.streams[key] = (peer, None, nbytes, 0)
        return peer, _header(_GRANT, key, WINDOW), b""

    def close(self, key: Key) -> None:
        """Receive no more of a stream."""
        self.streams.pop(key, None)

    def chunk(self, peer: bytes, key: Key, offset: int, payload: Any) -> tuple[bool, Frames | None]:
        """(whether the stream is whole now, a further grant). Chunks come in order. Raises `ProtocolError`."""
        stream = self.streams.get(key)
        if stream is None:
            return False, None
        sender, view, nbytes, at = stream
        if peer != sender or offset != at or not 0 < len(payload) <= min(CHUNK, nbytes - at):
            raise ProtocolError(f"a chunk at {offset} of {len(payload)} bytes where {at} was due")
        end = at + len(payload)
        if view is not None:
            view[at:end] = payload
        if end == nbytes:
            del self.streams[key]
            return True, None
        self.streams[key] = (sender, view, nbytes, end)
        if at + WINDOW >= nbytes:
            return False, None  # all of it was granted: a further grant would reach a sender that is done with it
        return False, (sender, _header(_GRANT, key, end + WINDOW), b"")


def read_header(frame: Any) -> tuple[bool, Key, int]:
    """(whether it is data, the stream, offset or grant) of a header frame. Raises `ProtocolError`."""
    try:
        raw = msgpack.unpackb(frame) if len(frame) <= 64 else None
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"a bulk header is not msgpack: {type(error).__name__}") from None
    if not (isinstance(raw, list) and len(raw) == 6 and all(type(item) is int and item >= 0 for item in raw)):
        raise ProtocolError("a bulk header is six numbers")
    kind, a, b, c, d, number = raw
    if kind not in (_DATA, _GRANT):
        raise ProtocolError(f"there is no bulk message {kind}")
    return kind == _DATA, (a, b, c, d), number
