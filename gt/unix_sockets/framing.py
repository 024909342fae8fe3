"""How messages lie in a stream of bytes: as ZeroMQ's own peers send them. No socket is used here.

This is ZMTP 3.1 (rfc.zeromq.org/spec/37) with the mechanism NULL. Each end sends a `GREETING` and a READY command, which has the
type of its socket and its identity, and then messages.
"""

from __future__ import annotations

from collections import deque
from struct import Struct, error
from typing import Any, Final

from gt.errors import ProtocolError

GREETING: Final = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version, mechanism; not the server of a mechanism; and filler."""
MAX_IDENTITY_BYTES: Final = 255
MAX_COMMAND_BYTES: Final = 1024
MAX_PING_CONTEXT_BYTES: Final = 16
MAX_FRAMES: Final = 8
"""The most frames of a message, more than any message of GT has."""
LARGE_FRAME_BYTES: Final = 65536
"""From here on a frame is not copied out of the memory into which it was received."""

_MORE_FLAG: Final = 1
"""The flag of a frame that is not the last of its message."""
_LONG_FLAG: Final = 2
"""That of one whose length has eight bytes, and not one."""
_COMMAND_FLAG: Final = 4
_MAX_SHORT_BYTES: Final = 255
_HEADER: Final = Struct(">BQ")
_LAST_HEADS: Final = tuple(bytes((0, size)) for size in range(_MAX_SHORT_BYTES + 1))
_OTHER_HEADS: Final = tuple(bytes((_MORE_FLAG, size)) for size in range(_MAX_SHORT_BYTES + 1))
_pack: Final = _HEADER.pack
_unpack: Final = _HEADER.unpack_from
_VALUE: Final = Struct(">I")


def packed(frames: list[Any]) -> bytes:
    """The bytes of a message."""
    if len(frames) == 1 and type(frames[0]) is bytes and len(frames[0]) <= _MAX_SHORT_BYTES:
        return _LAST_HEADS[len(frames[0])] + frames[0]
    parts: list[Any] = []
    last = len(frames) - 1
    for at, frame in enumerate(frames):
        size = memoryview(frame).nbytes
        if size > _MAX_SHORT_BYTES:
            parts += (_pack(_LONG_FLAG if at == last else _LONG_FLAG | _MORE_FLAG, size), frame)
        else:
            parts += ((_LAST_HEADS if at == last else _OTHER_HEADS)[size], frame)
    return b"".join(parts)


def opening(kind: bytes, identity: bytes = b"") -> bytes:
    """What an end sends first: it is a socket of this kind, DEALER or ROUTER."""
    body = b"\x05READY"
    for name, value in ((b"Socket-Type", kind), (b"Identity", identity)):
        body += bytes((len(name),)) + name + _VALUE.pack(len(value)) + value
    return GREETING + _command(body)


def _command(body: bytes) -> bytes:
    if len(body) <= _MAX_SHORT_BYTES:
        return bytes((_COMMAND_FLAG, len(body))) + body
    return _pack(_COMMAND_FLAG | _LONG_FLAG, len(body)) + body


class MessageReader:
    """Takes messages out of a stream of bytes, as they come. A frame has at most `frame_bytes`."""

    __slots__ = ("answers", "facts", "frame_bytes", "greeted", "rest", "wanted")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.greeted = False
        self.facts: dict[bytes, bytes] | None = None
        """What the other end has said of itself, by names in lower case; None until it has. No message comes before that."""
        self.answers = b""
        """What is to be sent in answer to commands."""
        self.rest = bytearray()
        """The beginning of a message that has not ended."""
        self.wanted = 0
        """The length of that from which on there is more to read."""

    def feed(self, data: bytes, found: deque[list[Any]]) -> None:
        """Read what has come, and append each whole message, a list of its frames, to `found`. Raises `ProtocolError` for what
        can be no message."""
        source: bytes | bytearray = data
        size = len(data) - 2
        if (
            0 <= size <= _MAX_SHORT_BYTES
            and data[0] == 0
            and data[1] == size <= self.frame_bytes
            and self.facts is not None
            and not self.rest
        ):  # the usual case: one message of one short frame
            found.append([data[2:]])
            return
        if self.rest:
            self.rest += data
            if len(self.rest) < self.wanted:
                return
            source, self.rest = self.rest, bytearray()
        start = 0
        if not self.greeted:
            _check_greeting(source)
            if len(source) < len(GREETING):
                self.rest, self.wanted = bytearray(source), len(source) + 1
                return
            self.greeted, start = True, len(GREETING)
        end, at = len(source), start
        frames: list[Any] = []
        while at < end:
            flags = source[at]
            if flags & _LONG_FLAG:
                first = at + 9
                size = _unpack(source, at)[1] if first <= end else 0
            else:
                first = at + 2
                size = source[at + 1] if first <= end else 0
            if flags >= _COMMAND_FLAG or size > self.frame_bytes or self.facts is None:
                self._check(flags, size, begun=bool(frames))
            at = first + size
            if at > end:
                break
            if flags & _COMMAND_FLAG:
                self._obey(bytes(memoryview(source)[first:at]))
                start = at
                continue
            frames.append(_frame(source, first, at))
            if flags & _MORE_FLAG:
                if len(frames) == MAX_FRAMES:
                    raise ProtocolError(f"a message has at most {MAX_FRAMES} frames")
            else:
                found.append(frames)
                frames, start = [], at
        if start < end:
            self.rest = bytearray(memoryview(source)[start:])
            self.wanted = at + 1 - start if at == end else at - start

    def _check(self, flags: int, size: int, *, begun: bool) -> None:
        """Raise `ProtocolError` unless this is a command, or a frame within the bound; `begun`: a message has begun."""
        if flags < _COMMAND_FLAG and self.facts is not None:
            raise ProtocolError(f"a frame has at most {self.frame_bytes} bytes, not {size}")
        if flags & ~_LONG_FLAG != _COMMAND_FLAG or begun or size > MAX_COMMAND_BYTES:
            raise ProtocolError("what came is neither a message nor a command")

    def _obey(self, body: bytes) -> None:
        """Do what a command says; those that mean nothing here are ignored."""
        name, rest = body[1 : 1 + body[0]] if body else b"", body[1 + body[0] :] if body else b""
        if self.facts is None:
            if name != b"READY":
                raise ProtocolError("the first command is READY")
            self.facts = _facts(rest)
        elif name == b"PING" and len(rest) <= 2 + MAX_PING_CONTEXT_BYTES:  # a time to live, and a context
            self.answers += _command(b"\x04PONG" + rest[2:])


def _check_greeting(source: bytes | bytearray) -> None:
    """Raise `ProtocolError` unless this is the beginning of a greeting. The bytes between the signature's ends mean nothing."""
    if source[0] != 0xFF or (len(source) > 9 and source[9] != 0x7F):
        raise ProtocolError("what came is not ZeroMQ's")
    if len(source) > 10 and source[10] < 3:
        raise ProtocolError(f"the other end speaks version {source[10]} of ZeroMQ's protocol, not 3")
    if len(source) >= 32 and bytes(source[12:32]) != GREETING[12:32]:
        raise ProtocolError("on a Unix socket there are no keys: the kernel says who connects")


def _facts(rest: bytes) -> dict[bytes, bytes]:
    """The properties of a READY."""
    found: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(rest):
            to = at + 1 + rest[at]
            (size,) = _VALUE.unpack_from(rest, to)
            name, at = rest[at + 1 : to].lower(), to + 4 + size
            found[name] = rest[to + 4 : at]
    except error:
        at = -1
    if at != len(rest):
        raise ProtocolError("a READY is cut short")
    return found


def _frame(source: bytes | bytearray, start: int, stop: int) -> Any:
    if stop - start >= LARGE_FRAME_BYTES:
        return memoryview(source)[start:stop]
    return source[start:stop] if type(source) is bytes else bytes(memoryview(source)[start:stop])
