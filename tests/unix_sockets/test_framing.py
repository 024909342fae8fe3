"""How messages lie in a stream of bytes, however it is cut."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.unix_sockets.framing import GREETING, LARGE_FRAME_BYTES, MAX_FRAMES, MessageReader, opening, packed

OPENING = opening(b"DEALER", b"g-dealer")
MESSAGES: list[list[Any]] = [
    [b"one"], [b""], [b"a", b""], [b"", b"b", b"c"], [bytes(255)], [bytes(256)], [bytes(300), b"tail"],
    [b"head", memoryview(bytes(LARGE_FRAME_BYTES))], [bytes(range(8))] * MAX_FRAMES, [bytearray(b"array")],
]  # fmt: skip


def read(reader: MessageReader, *parts: bytes) -> list[list[bytes]]:
    found: deque[list[Any]] = deque()
    for part in parts:
        reader.feed(part, found)
    return [[bytes(frame) for frame in frames] for frames in found]


def opened(frame_bytes: int = 1 << 20) -> MessageReader:
    reader = MessageReader(frame_bytes)
    assert read(reader, OPENING) == []
    assert reader.facts == {b"socket-type": b"DEALER", b"identity": b"g-dealer"}
    return reader


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_out_as_they_went_in_however_they_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    messages = draw.choices(MESSAGES, k=30)
    stream = OPENING + b"".join(map(packed, messages))
    reader, parts = MessageReader(1 << 20), []
    while stream:
        size = draw.choice((1, 2, 3, 5, 30, 1000, 1 << 17))
        parts.append(stream[:size])
        stream = stream[size:]
    assert read(reader, *parts) == [[bytes(frame) for frame in frames] for frames in messages]
    assert not reader.rest


def test_a_message_that_has_not_ended_is_kept() -> None:
    reader = opened()
    whole = packed([b"first", b"second"])
    assert read(reader, whole[:-1]) == []
    assert len(reader.rest) == len(whole) - 1
    assert read(reader, whole[-1:]) == [[b"first", b"second"]]


@pytest.mark.parametrize(("size", "head"), [(101, b"\0\x65"), (300, b"\x02" + (300).to_bytes(8, "big"))])
def test_a_frame_beyond_the_bound_is_refused_by_its_length_alone(size: int, head: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"at most 100 bytes, not {size}"):
        read(opened(100), head)


def test_a_message_of_more_frames_than_any_has_is_refused() -> None:
    with pytest.raises(ProtocolError, match="at most 8 frames"):
        read(opened(), b"\x01\x00" * MAX_FRAMES)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1", "not ZeroMQ's"),
        (b"\xff" + bytes(9), "not ZeroMQ's"),
        (GREETING[:10] + b"\x02", "version 2"),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0"), "there are no keys"),
        (GREETING + b"\0\x01a", "neither a message nor a command"),
        (GREETING + b"\x04\x06\x05ERROR", "the first command is READY"),
        (GREETING + b"\x04\x00", "the first command is READY"),
        (GREETING + b"\x06" + (1 << 40).to_bytes(8, "big"), "neither a message nor a command"),
        (GREETING + b"\x04\x0a\x05READY\x09abc", "cut short"),
        (OPENING + b"\x01\x00\x04\x05\x04PING", "neither a message nor a command"),
        (OPENING + b"\x08\x00", "neither a message nor a command"),
    ],
)
def test_what_is_no_message_is_refused_as_soon_as_it_is_known(said: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        read(MessageReader(100), said)


def test_a_ping_is_answered_and_other_commands_are_ignored() -> None:
    reader = opened()
    assert read(reader, b"\x04\x0a\x04PING\x00\x64abc", b"\x04\x05\x04PONG", b"\x04\x13\x09SUBSCRIBE\x08a topic!") == []
    assert reader.answers == b"\x04\x08\x04PONGabc"
    assert read(reader, packed([b"and on"])) == [[b"and on"]]


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_do_anything_else_than_be_refused_or_read(said: bytes, greeted: bool) -> None:
    reader = opened(100) if greeted else MessageReader(100)
    found: deque[list[Any]] = deque()
    try:
        for at in range(0, len(said), 7):
            reader.feed(said[at : at + 7], found)
    except ProtocolError:
        pass
    assert len(reader.rest) <= len(said)
    assert all(len(frame) <= 100 for frames in found for frame in frames)
