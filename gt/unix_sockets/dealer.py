"""The end of a connection that has connected to a `router`.

What it sends may leave before the router has said that it is one, which saves a round trip, and whoever has sent something need
not listen for it to leave. ZeroMQ's protocol does not provide for that, and its own ROUTER would not go on: so this end is for
routers of this package alone.
"""

from __future__ import annotations

import socket as sockets
from typing import Any

from .framing import opening, packed
from .stream_socket import StreamSocket, readable


class UnixDealer:
    """A connection to the router at `path`, which is made at once, or is broken at once if nobody listens there."""

    def __init__(self, path: str, identity: bytes, frame_bytes: int) -> None:
        socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self._stream = StreamSocket(socket, frame_bytes)
        self._empty = False
        """Whether nothing was left when it was last read."""
        self._held: list[bytes] | None = None
        """What was sent since `hold`; None if nothing is held."""
        try:
            socket.connect(path)
        except OSError:  # a full queue of those who wait to be accepted among them
            self._stream.mute()
        else:
            self._stream.send_bytes(opening(b"DEALER", identity))

    @property
    def broken(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        return self._stream.ended

    def fileno(self) -> int:
        """A descriptor that is readable when something has come, also the end of the connection; after that it never is."""
        return self._stream.socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether messages have been read that nobody has taken: they do not make the descriptor readable."""
        return bool(self._stream.messages)

    def poll(self, timeout: float) -> bool:
        """Wait for a message, at most so many milliseconds."""
        return self.has_more or readable(self.fileno(), timeout)

    def send(self, frames: list[Any]) -> bool:
        """Send a message. Never waits. Returns False if the connection has ended."""
        if self._held is not None:
            self._held.append(packed(frames))
            return not self._stream.unheard
        return self._stream.send(frames)

    @property
    def holds(self) -> bool:
        """Whether what is sent is kept."""
        return self._held is not None

    def hold(self) -> None:
        """Keep what is sent from now on, until `let_go`: each time that something leaves, the kernel wakes who waits for it."""
        self._held = []

    def let_go(self) -> None:
        """Send what was kept, at once."""
        held, self._held = self._held, None
        if held:
            self._stream.send_bytes(held[0] if len(held) == 1 else b"".join(held))

    def receive(self, *, polled: bool = False) -> list[Any] | None:
        """The frames of the next message; None if there is none. `polled`: a poll has just found one."""
        stream = self._stream
        if polled:
            self._empty = False
        while not stream.messages:
            if self._empty:
                self._empty = False
                return None
            if stream.ended:
                return None
            self._empty = not stream.read()
            if self.broken:
                stream.mute()
        return stream.messages.popleft()

    def close(self, linger: int = 0) -> None:
        """Close it; what was sent may leave within `linger` milliseconds."""
        self._stream.messages.clear()
        self._stream.close(linger)
