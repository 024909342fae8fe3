"""How messages lie in a stream of bytes, however it is cut."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from gt.errors import ProtocolError
from gt.unix_sockets.framing import LARGE_FRAME_BYTES, MAX_FRAMES, WORD, MessageReader, packed

MESSAGES: list[list[Any]] = [
    [b"one"], [b""], [b"a", b""], [b"", b"b", b"c"], [bytes(300)], [b"head", memoryview(bytes(LARGE_FRAME_BYTES))],
    [bytes(range(8))] * MAX_FRAMES, [bytearray(b"array")],
]  # fmt: skip


def read(reader: MessageReader, *parts: bytes) -> list[list[bytes]]:
    found: deque[list[Any]] = deque()
    for part in parts:
        reader.feed(part, found)
    return [[bytes(frame) for frame in frames] for frames in found]


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_out_as_they_went_in_however_they_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    messages = draw.choices(MESSAGES, k=30)
    stream = b"".join(map(packed, messages))
    reader, parts = MessageReader(1 << 20), []
    while stream:
        size = draw.choice((1, 2, 3, 5, 30, 1000, 1 << 17))
        parts.append(stream[:size])
        stream = stream[size:]
    assert read(reader, *parts) == [[bytes(frame) for frame in frames] for frames in messages]
    assert not reader.rest


def test_a_message_that_has_not_ended_is_kept() -> None:
    reader = MessageReader(100)
    whole = packed([b"first", b"second"])
    assert read(reader, whole[:-1]) == []
    assert len(reader.rest) == len(whole) - 1
    assert read(reader, whole[-1:]) == [[b"first", b"second"]]


def test_a_frame_beyond_the_bound_is_refused_by_its_length_alone() -> None:
    with pytest.raises(ProtocolError, match="at most 100 bytes, not 101"):
        read(MessageReader(100), WORD.pack(202))


def test_a_message_of_more_frames_than_any_has_is_refused() -> None:
    with pytest.raises(ProtocolError, match="at most 8 frames"):
        read(MessageReader(100), WORD.pack(1) * MAX_FRAMES)
