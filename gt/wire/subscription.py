"""A worker's end of what the dispatcher publishes for large groups. The other end, `dispatcher/state/multicast.py`, explains why
every message arrives once and in order. No clock or thread is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol

from gt.errors import ProtocolError

from . import messages as m
from .reliable_stream import MAX_OWED_BYTES, Frames

_NUMBER: Final = Struct(">Q")
_PREFIX_BYTES: Final = m.TOPIC_BYTES + _NUMBER.size
ACKNOWLEDGE_SECONDS: Final = 1.0
"""The least time between two acknowledgements, unless much has come."""


class Subscriber(Protocol):
    """A connection to a publishing socket: `transport.SubscriberSocket`."""

    @property
    def socket(self) -> Any: ...
    @property
    def broken(self) -> bool: ...
    @property
    def receive(self) -> Callable[[], Frames | None]: ...
    def subscribe(self, ticket: bytes, wanted: bool = True) -> None: ...
    def close(self) -> None: ...


class Subscription:
    """What a worker has subscribed to.

    `connect` opens a connection to a publishing socket. `say` sends a message on the worker's reliable stream. `reopened` is
    called whenever `socket` is another one.
    """

    def __init__(
        self,
        connect: Callable[[str], Subscriber],
        say: Callable[[m.Message], object],
        reopened: Callable[[], object] = lambda: None,
    ) -> None:
        self.connect = connect
        self.say = say
        self.reopened = reopened
        self.socket: Any = None
        """The socket to listen to; None where all messages come on the stream."""
        self.heard = 0
        """The number of the last published message that was heard."""
        self.lapsed = False
        """Whether the dispatcher is asked to go on with the stream, and has not answered."""
        self._connection: Subscriber | None = None
        self._said = 0
        """The last number that the dispatcher was told."""
        self._owed_bytes = 0
        self._say_at = 0.0

    def subscribe(self, message: m.Subscribe | m.Unsubscribe) -> None:
        """Send a ticket to the publishing socket, or withdraw it."""
        if self.lapsed:
            return  # it belongs to the connection that has ended
        if self._connection is None:
            if not isinstance(message, m.Subscribe):
                raise ProtocolError("a ticket is asked back that was never sent")
            self._connection = self.connect(message.address)
        self._connection.subscribe(message.ticket, wanted=isinstance(message, m.Subscribe))

    def switch(self, _message: m.Switch) -> None:
        """Listen to published messages from now on; not earlier, because they are later than all that came on the stream."""
        if self.lapsed:
            return
        if self._connection is None:
            raise ProtocolError("Switch before Subscribe")
        self.socket = self._connection.socket
        self.reopened()

    def lapse(self, _message: m.Lapse | None = None) -> None:
        """The connection has ended: have the dispatcher go on with the stream, after the last message that was heard."""
        if self._connection is None:
            return  # it was noticed here too
        self._connection.close()
        self._connection = self.socket = None
        self.lapsed = True
        self._said, self._owed_bytes = self.heard, 0
        self.say(m.Lapsed(self.heard))
        self.reopened()

    def resume(self, _message: m.Unswitch) -> None:
        """The dispatcher goes on with the stream, and may ask to subscribe again."""
        if not self.lapsed:
            raise ProtocolError("Unswitch answers Lapsed")
        self.lapsed = False

    def receive(self) -> Frames | None:
        """The frames of the next published message; None if there is none. Raises `ProtocolError`."""
        if self.socket is None or self._connection is None or (frames := self._connection.receive()) is None:
            return None
        first = frames[0]
        if len(first) < _PREFIX_BYTES:
            raise ProtocolError(f"a published message begins with {_PREFIX_BYTES} bytes of topic and number")
        (number,) = _NUMBER.unpack_from(first, m.TOPIC_BYTES)
        if number <= self.heard:
            raise ProtocolError(f"published message {number} comes after {self.heard}")
        self.heard = number
        frames[0] = first[_PREFIX_BYTES:]
        self._owed_bytes += len(first) if len(frames) == 1 else sum(map(len, frames))
        if self._owed_bytes >= MAX_OWED_BYTES:
            self._acknowledge()
        return frames

    def _acknowledge(self) -> None:
        self._said, self._owed_bytes = self.heard, 0
        self.say(m.Heard(self.heard))

    def look(self, now: float) -> None:
        """Notice that the connection is broken, and acknowledge what was heard; to be called several times a second."""
        if self._connection is None:
            return
        if self._connection.broken:
            self.lapse()
        elif self.heard != self._said and now >= self._say_at:
            self._say_at = now + ACKNOWLEDGE_SECONDS
            self._acknowledge()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self.socket = None
