"""How messages lie in a stream of bytes: `docs/protocol.md`, section "Sockets". No socket is used here.

Before each frame stands `WORD`: twice its length, plus 1 if another frame of the same message follows. The first message on a
connection is that of the end that has connected: `MAGIC` and its identity.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Any, Final

from gt.errors import ProtocolError

WORD: Final = Struct("<I")
MAGIC: Final = b"GT unix 1"
MAX_IDENTITY_BYTES: Final = 255
MAX_FRAMES: Final = 8
"""The most frames of a message, more than any message of GT has."""
LARGE_FRAME_BYTES: Final = 65536
"""From here on a frame is not copied out of the memory into which it was received."""

_pack: Final = WORD.pack
_unpack: Final = WORD.unpack_from


def packed(frames: list[Any]) -> bytes:
    """The bytes of a message."""
    if len(frames) == 1 and type(frames[0]) is bytes:
        frame = frames[0]
        return _pack(len(frame) << 1) + frame
    parts: list[Any] = []
    for frame in frames:
        parts += (_pack((memoryview(frame).nbytes << 1) | 1), frame)
    parts[-2] = _pack(memoryview(frames[-1]).nbytes << 1)
    return b"".join(parts)


class MessageReader:
    """Takes messages out of a stream of bytes, as they come. A frame has at most `frame_bytes`."""

    __slots__ = ("frame_bytes", "rest", "wanted")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.rest = bytearray()
        """The beginning of a message that has not ended."""
        self.wanted = 0
        """The length of that from which on there is more to read."""

    def feed(self, data: bytes, found: deque[list[Any]]) -> None:
        """Read what has come, and append each whole message, a list of its frames, to `found`. Raises `ProtocolError` for what
        can be no message."""
        source: bytes | bytearray = data
        if self.rest:
            self.rest += data
            if len(self.rest) < self.wanted:
                return
            source, self.rest = self.rest, bytearray()
        end, at, start = len(source), 0, 0
        frames: list[Any] = []
        while at < end:
            if at + 4 > end:
                at += 4
                break
            (word,) = _unpack(source, at)
            size = word >> 1
            if size > self.frame_bytes:
                raise ProtocolError(f"a frame has at most {self.frame_bytes} bytes, not {size}")
            at += 4 + size
            if at > end:
                break
            frames.append(_frame(source, at - size, at))
            if word & 1:
                if len(frames) == MAX_FRAMES:
                    raise ProtocolError(f"a message has at most {MAX_FRAMES} frames")
            else:
                found.append(frames)
                frames, start = [], at
        if start < end:
            self.rest = bytearray(memoryview(source)[start:])
            self.wanted = at + 1 - start if at == end else at - start


def _frame(source: bytes | bytearray, start: int, stop: int) -> Any:
    if stop - start >= LARGE_FRAME_BYTES:
        return memoryview(source)[start:stop]
    return source[start:stop] if type(source) is bytes else bytes(memoryview(source)[start:stop])
