"""What one client may have under way on the bulk socket, whatever it grants and whether it reads."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from gt.bounds import MAX_UNREAD_BULK_BYTES
from gt.dispatcher.bulk_window import IDLE_BEATS, MAX_HELD_BYTES, BulkWindow
from gt.errors import ProtocolError
from gt.wire.bulk import BACK, DATA, GET, GRANT, LENT, MAX_IN_FLIGHT_BYTES, OFFER, PUT, WROTE, Key

MOST = MAX_UNREAD_BULK_BYTES // MAX_IN_FLIGHT_BYTES
"""So many streams may be granted a whole window at one time."""


def frame(kind: int, item: int, number: int = 0, direction: int = GET) -> list[Any]:
    return [b"worker", msgpack.packb([kind, direction, 1, item, 0, number]), b""]


def filled() -> BulkWindow:
    """A client that has granted as much as it may."""
    window = BulkWindow()
    for item in range(MOST):
        assert window.says(frame(GRANT, item, MAX_IN_FLIGHT_BYTES), 0)
    return window


@pytest.mark.parametrize("kind", [GRANT, OFFER])
def test_what_would_be_too_much_waits_until_workers_have_sent_and_the_client_has_read(kind: int) -> None:
    window = filled()
    late = frame(kind, 99, MAX_IN_FLIGHT_BYTES)
    assert not window.says(late, 0)
    window.hears(frame(DATA, 0, 0)[1], MAX_IN_FLIGHT_BYTES)
    assert window.released(MAX_IN_FLIGHT_BYTES) is None, "it has not read that"
    assert window.released(0) is late
    assert window.granted == MAX_UNREAD_BULK_BYTES
    assert window.held_bytes == 0


def test_a_grant_counts_no_more_than_a_window_however_much_it_says() -> None:
    """A worker sends no more for it."""
    window = BulkWindow()
    assert window.says(frame(GRANT, 1, (1 << 64) - 1), 0)
    assert window.granted == MAX_IN_FLIGHT_BYTES


def test_who_reads_is_never_held_back() -> None:
    """A stream of any length, granted as chunks come, has one window under way, and leaves nothing."""
    window, at, size = BulkWindow(), 0, 10 * MAX_IN_FLIGHT_BYTES
    key: Key = (GET, 1, 1, 0)
    assert window.says(frame(GRANT, 1, MAX_IN_FLIGHT_BYTES), 0)
    while at < size:
        window.hears(frame(DATA, 1, at)[1], 1 << 20)
        at += 1 << 20
        if at + MAX_IN_FLIGHT_BYTES < size + (1 << 20):  # else all of it was granted
            assert window.says(frame(GRANT, 1, min(size, at + MAX_IN_FLIGHT_BYTES)), 1 << 20)
        assert window.granted <= MAX_IN_FLIGHT_BYTES
    assert key not in window.streams
    assert window.granted == 0


def test_a_place_that_was_written_counts_no_more() -> None:
    window = BulkWindow()
    assert window.says(frame(OFFER, 1, MAX_IN_FLIGHT_BYTES), 0)
    window.hears(frame(WROTE, 1)[1], 0)
    assert (window.granted, window.streams) == (0, {})


def test_one_of_many_sessions_has_its_part_under_way() -> None:
    """However small that is, one window passes, so that whoever reads gets everything."""
    window = BulkWindow(most=1)
    assert window.says(frame(GRANT, 1, MAX_IN_FLIGHT_BYTES), 0)
    late = frame(GRANT, 2, 1)
    assert not window.says(late, 0)
    window.hears(frame(DATA, 1, 0)[1], MAX_IN_FLIGHT_BYTES)
    assert window.released(0) is late


def test_what_a_worker_never_sends_is_forgotten() -> None:
    """It may be gone, or have nothing more to send."""
    window = filled()
    assert not window.says(frame(GRANT, 99, 1), 0)
    for _ in range(IDLE_BEATS):
        window.beat()
    assert window.released(0) is None
    window.beat()
    assert window.released(0) is not None
    assert window.granted == 1


def test_what_has_no_worker_send_anything_always_passes() -> None:
    window = filled()
    for kind in (DATA, LENT, BACK):
        assert window.says(frame(kind, 1, direction=PUT), 1 << 40)
    assert window.says(frame(GRANT, 1, direction=PUT), 1 << 40)


def test_who_asks_for_ever_more_is_refused() -> None:
    window = filled()
    big = frame(GRANT, 1000, 1)
    big[2] = bytes(1 << 20)
    for _ in range((MAX_HELD_BYTES >> 20) - 1):
        assert not window.says(big, 0)
    with pytest.raises(ProtocolError, match="reads none"):
        window.says(big, 0)


@pytest.mark.parametrize("header", [b"", b"\xc0", b"\x96" + b"\xff" * 6, msgpack.packb([9, 0, 0, 0, 0, 0]), bytes(100)])
def test_malformed_headers_are_refused(header: bytes) -> None:
    for say in (lambda: BulkWindow().says([b"worker", header, b""], 0), lambda: BulkWindow().hears(header, 0)):
        with pytest.raises(ProtocolError):
            say()
