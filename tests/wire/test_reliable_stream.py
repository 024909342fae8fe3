"""Reliable streams: whatever becomes of their connections, each message is heard once and in order."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.wire.reliable_stream import (
    HEADER,
    HEADER_BYTES,
    MAX_OWED_BYTES,
    MAX_OWED_MESSAGES,
    UNNUMBERED,
    ReliableStream,
    parse,
)


class End:
    """One end of a session: what it has heard, and what is on its way to it."""

    def __init__(self) -> None:
        self.stream = ReliableStream()
        self.heard: list[bytes] = []
        self.wire: deque[list[Any]] = deque()

    def take(self) -> None:
        """Hear the next message."""
        frames = self.wire.popleft()
        sequence, acknowledged = parse(frames[0])
        if sequence == UNNUMBERED:
            self.stream.acknowledge(acknowledged)
        elif self.stream.accept(sequence, acknowledged, len(frames[0])):
            self.heard.append(frames[0][HEADER_BYTES:])


class Pair:
    """Two ends and the connection between them."""

    def __init__(self) -> None:
        self.ends = (End(), End())
        self.said: tuple[list[bytes], list[bytes]] = ([], [])

    def say(self, source: int) -> None:
        message = b"%d" % len(self.said[source])
        self.said[source].append(message)
        self.ends[1 - source].wire.append(self.ends[source].stream.number([message]))

    def repeat(self, target: int) -> None:
        """A message comes twice."""
        wire = self.ends[target].wire
        if wire:
            wire.append(wire[-1])

    def cut(self, kept: int) -> None:
        """The connection breaks; of what was on its way only the first `kept` messages arrive. Another one follows."""
        for end in self.ends:
            for _ in range(min(kept, len(end.wire))):
                end.take()
            end.wire.clear()
        first, second = (end.stream for end in self.ends)
        heard = first.heard, second.heard
        self.ends[1].wire.extend(first.unheard(heard[1]))
        self.ends[0].wire.extend(second.unheard(heard[0]))

    def settle(self) -> None:
        while any(end.wire for end in self.ends):
            for end in self.ends:
                if end.wire:
                    end.take()


ACTS = st.one_of(
    st.tuples(st.sampled_from(["say", "take", "repeat", "beat"]), st.integers(0, 1)),
    st.tuples(st.just("cut"), st.integers(0, 3)),
)


@settings(max_examples=cases(1000), deadline=None)
@given(st.lists(ACTS, max_size=60))
def test_each_message_is_heard_once_and_in_order(acts: list[tuple[str, int]]) -> None:
    pair = Pair()
    for act, which in acts:
        if act == "say":
            pair.say(which)
        elif act == "repeat":
            pair.repeat(which)
        elif act == "cut":
            pair.cut(which)
        elif act == "beat":
            pair.ends[1 - which].wire.append([pair.ends[which].stream.heartbeat()])
        elif pair.ends[which].wire:
            pair.ends[which].take()
        for end in pair.ends:
            assert end.stream.unread_bytes == sum(size for size, _ in end.stream.kept)
            assert len(end.stream.kept) == end.stream.sent - end.stream.acknowledged
    pair.settle()
    assert pair.ends[1].heard == pair.said[0]
    assert pair.ends[0].heard == pair.said[1]


def test_what_is_acknowledged_is_not_kept() -> None:
    stream = ReliableStream()
    for _ in range(5):
        stream.number([bytes(100), bytes(1000)])
    assert stream.unread_bytes == 5 * (HEADER_BYTES + 1100)
    stream.acknowledge(3)
    assert stream.unread_bytes == 2 * (HEADER_BYTES + 1100)
    assert [parse(frames[0])[0] for frames in stream.unheard(4)] == [5]


def message(number: int, body: bytes = b"") -> list[bytes]:
    """The frames of a message of this number, which acknowledges nothing."""
    return [HEADER.pack(number, 0) + body]


def test_who_hears_much_and_says_nothing_owes_an_acknowledgement() -> None:
    by_bytes, by_count = ReliableStream(), ReliableStream()
    assert by_bytes.take(message(1, bytes(MAX_OWED_BYTES - HEADER_BYTES - 1))) is False
    assert by_bytes.take(message(2)) is True
    for number in range(MAX_OWED_MESSAGES - 1):
        assert by_count.take(message(number + 1)) is False
    assert by_count.take(message(MAX_OWED_MESSAGES)) is True
    by_count.heartbeat()
    assert by_count.take(message(MAX_OWED_MESSAGES + 1)) is False
    assert by_count.take(message(MAX_OWED_MESSAGES + 1)) is None, "it was heard before"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes(HEADER_BYTES - 1), "begins with 16 bytes"),
        (HEADER.pack(3, 0), "message 3 where 2 was due"),
        (HEADER.pack(2, 2), "message 2 is acknowledged, and 1 were sent"),
    ],
)
def test_what_cannot_be_is_refused(frame: bytes, reason: str) -> None:
    stream = ReliableStream()
    stream.accept(1, 0, 1)
    stream.number([b""])
    with pytest.raises(ProtocolError, match=reason):
        stream.accept(*parse(frame), len(frame))
