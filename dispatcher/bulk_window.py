"""Windows of bulk data: how many bytes may be under way to a client, and from it, at one time.

Who grants bytes and reads none of them, or sends bytes that no worker has granted, would have the relay keep them. So a grant or
an offer is held back while its client has `MAX_UNREAD_BULK_BYTES` granted or unread, or what is its part of what all of its
principal may have, and who sends workers more than
`MAX_SENT_BULK_BYTES` that they have not read is no client. State only: no socket, clock or thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from gt.bounds import MAX_SENT_BULK_BYTES, MAX_UNREAD_BULK_BYTES
from gt.errors import ProtocolError
from gt.wire.bulk import DATA, GET, GRANT, MAX_IN_FLIGHT_BYTES, OFFER, WROTE, Key, read_header
from gt.wire.reliable_stream import MAX_OWED_BYTES

MAX_HELD_BYTES: Final = 1 << 22
"""The most bytes of grants and offers that wait for one client to read."""
IDLE_BEATS: Final = 2
"""After so many heartbeats what was granted to a worker that sends nothing counts no more."""


@dataclass(slots=True)
class _Granted:
    """A stream to the client: the bytes that have passed, how many may, and the heartbeats since either has changed."""

    at: int
    end: int
    idle: int = 0


@dataclass(slots=True, eq=False)
class BulkWindow:
    """What one client has under way. `most`: how much it may have granted or unread."""

    most: int = MAX_UNREAD_BULK_BYTES
    streams: dict[Key, _Granted] = field(default_factory=dict)
    granted: int = 0
    """The bytes that workers may send it and have not sent."""
    sent: int = 0
    """The bytes that it has sent to workers which have not acknowledged them."""
    held: deque[list[Any]] = field(default_factory=deque)
    """Frames that wait until the client has read more, oldest first."""
    held_bytes: int = 0

    def hears(self, header: Any, nbytes: int) -> None:
        """A worker sends the client a frame with so much payload. Raises `ProtocolError`."""
        kind, key, number = read_header(header)
        if kind in (DATA, WROTE) and key[0] == GET and (stream := self.streams.get(key)) is not None:
            self._set(key, stream, stream.end if kind == WROTE else number + nbytes, stream.end)

    def says(self, frames: list[Any], unread: int) -> bool:
        """Whether a frame of the client may pass now, while it has so many bytes unread; otherwise it is held back. Raises
        `ProtocolError`."""
        if not _asks(frames[1]):
            return True
        if not self.held and self._admits(frames[1], unread):
            return True
        self.held.append(frames)
        self.held_bytes += sum(map(len, frames))
        if self.held_bytes > MAX_HELD_BYTES:
            raise ProtocolError("it asks for more and more bulk data, and reads none")
        return False

    def released(self, unread: int) -> list[Any] | None:
        """The next frame that was held back and may pass now."""
        if not self.held or not self._admits(self.held[0][1], unread):
            return None
        self.held_bytes -= sum(map(len, self.held[0]))
        return self.held.popleft()

    def beat(self) -> None:
        """A heartbeat: forget what was granted to workers that have sent nothing for a while."""
        for key, stream in list(self.streams.items()):
            stream.idle += 1
            if stream.idle > IDLE_BEATS:
                self._set(key, stream, stream.end, stream.end)

    @property
    def is_over_sent(self) -> bool:
        """Whether it has sent more than workers have read, as far as was counted."""
        return self.sent > MAX_SENT_BULK_BYTES

    def check_sent(self) -> None:
        """Raise `ProtocolError` if the client has sent more than workers can have granted."""
        if self.is_over_sent:
            raise ProtocolError(f"it has sent {MAX_SENT_BULK_BYTES} bytes of bulk data that workers did not ask for")

    def _admits(self, header: Any, unread: int) -> bool:
        """Note a grant or offer, if there is room for what a worker may send then."""
        _, key, number = read_header(header)
        stream = self.streams.get(key)
        at = stream.at if stream is not None else max(0, number - MAX_IN_FLIGHT_BYTES)
        end = max(stream.end if stream is not None else at, min(number, at + MAX_IN_FLIGHT_BYTES))
        more = end - (stream.end if stream is not None else at)
        under_way = self.granted + max(0, unread - MAX_OWED_BYTES)  # which the client need not acknowledge yet
        if under_way and under_way + more > self.most:
            return False
        if stream is None:
            stream = self.streams[key] = _Granted(at, at)
        self._set(key, stream, at, end)
        return True

    def _set(self, key: Key, stream: _Granted, at: int, end: int) -> None:
        before = stream.end - stream.at
        stream.at, stream.end, stream.idle = at, max(at, end), 0
        self.granted += stream.end - stream.at - before
        if stream.at == stream.end:
            del self.streams[key]


def _asks(header: Any) -> bool:
    """Whether a frame of a client has a worker send something. Raises `ProtocolError` if it is malformed."""
    kind, key, _ = read_header(header)
    return kind in (GRANT, OFFER) and key[0] == GET
