"""A reliable stream: one end of a session, which outlives the connections that carry it.

Each end numbers what it sends and keeps it until the other end acknowledges it. When a connection breaks, a new one is opened
under the same identity, both ends say what they heard last, and what is missing is sent again. What comes twice has no effect.
This is the sequence numbers, acknowledgements and retransmission of TCP (RFC 9293), one level above connections. No socket, clock
or thread is used here.

On the wire, the first frame of every message begins with `HEADER`: its sequence number and the last number that its sender has
heard. Four numbers mean something else:

| number | meaning |
| --- | --- |
| `UNNUMBERED` | heartbeat: it only acknowledges, and may be lost; a message may follow that may be lost too |
| `OPEN_NEW` | the first words of a connection whose session is new |
| `OPEN_AGAIN` | the first words of a connection that continues a session |
| `ACCEPTED` | the answer to both |
| `UNKNOWN` | the answer to everything else of a session that the receiver does not know, or no longer: begin afresh |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from gt.errors import ProtocolError

LEASE_SECONDS: Final = 300.0
"""Seconds for which a session outlives its connection, unless GT_LEASE says otherwise."""
HEADER: Final = Struct("<QQ")
HEADER_BYTES: Final = HEADER.size
UNNUMBERED: Final = 0
OPEN_NEW: Final = (1 << 64) - 1
OPEN_AGAIN: Final = (1 << 64) - 2
ACCEPTED: Final = (1 << 64) - 3
UNKNOWN: Final = (1 << 64) - 4
MAX_OWED_BYTES: Final = 1 << 20
"""Bytes that are heard before they are acknowledged at once, rather than with the next message or heartbeat."""
MAX_OWED_MESSAGES: Final = 256
"""The same in messages."""

_pack: Final = HEADER.pack
_unpack: Final = HEADER.unpack_from

Frames = list[Any]


def parse(frame: Any) -> tuple[int, int]:
    """(sequence number, acknowledged number) of a first frame. Raises `ProtocolError` if it is too short for that."""
    if len(frame) < HEADER_BYTES:
        raise ProtocolError(f"a message begins with {HEADER_BYTES} bytes of sequence and acknowledgement")
    sequence, acknowledged = _unpack(frame)
    return sequence, acknowledged


class ReliableStream:
    """One end of a session. What `number` returns is sent; what arrives goes through `accept`."""

    __slots__ = (
        "acknowledged",
        "heard",
        "kept",
        "max_owed_bytes",
        "owed_bytes",
        "owed_messages",
        "sent",
        "unread_bytes",
    )

    def __init__(self, max_owed_bytes: int = MAX_OWED_BYTES) -> None:
        self.sent = 0
        """The number of the last message that was sent."""
        self.heard = 0
        """The number of the last message that was heard."""
        self.acknowledged = 0
        """The number of the last message that the other end has said to have heard."""
        self.kept: deque[tuple[int, Frames]] = deque()
        """(bytes, frames) of each message that is not acknowledged."""
        self.unread_bytes = 0
        """The bytes of all these."""
        self.owed_bytes = self.owed_messages = 0
        """What was heard since this end last acknowledged."""
        self.max_owed_bytes = max_owed_bytes

    def number(self, frames: Frames) -> Frames:
        """The frames to send for a message; they are kept until they are acknowledged."""
        self.sent = sent = self.sent + 1
        self.owed_bytes = self.owed_messages = 0
        first = _pack(sent, self.heard) + frames[0]
        numbered, size = [first], len(first)
        if len(frames) > 1:
            numbered += frames[1:]
            size = sum(map(len, numbered))
        self.kept.append((size, numbered))
        self.unread_bytes += size
        return numbered

    def heartbeat(self, sequence: int = UNNUMBERED) -> bytes:
        """A first frame without a number of its own."""
        self.owed_bytes = self.owed_messages = 0
        return _pack(sequence, self.heard)

    def take(self, frames: Frames) -> bool | None:
        """The usual case in one call: cuts off the header of the next message, and returns whether so much was heard that it
        must be acknowledged now. None for all other frames, of which the caller asks `parse` and `accept`."""
        first = frames[0]
        if len(first) < HEADER_BYTES:
            return None
        sequence, acknowledged = _unpack(first)
        if sequence != self.heard + 1:
            return None
        if acknowledged > self.acknowledged:
            self.acknowledge(acknowledged)
        self.heard = sequence
        self.owed_bytes += len(first) if len(frames) == 1 else sum(map(len, frames))
        self.owed_messages += 1
        frames[0] = first[HEADER_BYTES:]
        return self.owed_bytes >= self.max_owed_bytes or self.owed_messages >= MAX_OWED_MESSAGES

    def accept(self, sequence: int, acknowledged: int, size: int) -> bool:
        """Whether a numbered message of `size` bytes is the next one; if not, it was heard before. Raises `ProtocolError` if
        one before it is missing."""
        if acknowledged > self.acknowledged:
            self.acknowledge(acknowledged)
        due = self.heard + 1
        if sequence != due:
            if sequence < due:
                return False
            raise ProtocolError(f"message {sequence} where {due} was due")
        self.heard = due
        self.owed_bytes += size
        self.owed_messages += 1
        return True

    def acknowledge(self, number: int) -> None:
        """The other end has heard everything up to `number`. Raises `ProtocolError` if so much was never sent."""
        if number > self.sent:
            raise ProtocolError(f"message {number} is acknowledged, and {self.sent} were sent")
        while self.acknowledged < number:
            self.acknowledged += 1
            self.unread_bytes -= self.kept.popleft()[0]

    def unheard(self, acknowledged: int) -> Iterator[Frames]:
        """The frames to send again on a new connection, whose other end has heard everything up to `acknowledged`."""
        self.acknowledge(acknowledged)
        return iter([frames for _, frames in self.kept])
