"""Messages of sessions that a listening socket does not know."""

from __future__ import annotations

from pathlib import Path

from gt.wire import transport
from gt.wire.connection import MAX_REFUSED, SessionRouter


def test_whoever_listens_is_not_kept_from_other_work_by_them(tmp_path: Path) -> None:
    """However many come: none is left unanswered, and none is read in one go with too many others."""
    address, many = f"ipc://{tmp_path}/control", 3 * MAX_REFUSED
    router, stranger = SessionRouter(address, 1 << 16), transport.Dealer(address, b"stranger")
    try:
        for _ in range(many):
            assert transport.send(stranger.socket, [b"\x80" * 20])
        before = 0
        while router.refused < many:
            assert router.socket.poll(10_000)
            assert router.receive() is None
            assert router.refused - before <= MAX_REFUSED
            before = router.refused
    finally:
        stranger.close()
        router.socket.close()
