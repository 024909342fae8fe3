"""A worker's pulse, over a real socket."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from gt.wire import messages as m
from gt.wire.connection import SessionRouter
from gt.wire.messages import codec
from gt.worker import pulse


def test_progress_with_files_is_told_whenever_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the signs of life, and once; the thread of the worker that computes has no part in it."""
    for name in ("HEARTBEAT_SECONDS", "UNSETTLED_SECONDS"):
        monkeypatch.setattr(pulse, name, 0.001)
    address = f"ipc://{tmp_path}/control"
    router, steps, over = SessionRouter(address, 1 << 16), [0], threading.Event()

    def progress() -> m.FileProgress:
        if over.is_set():
            raise SystemExit
        return m.FileProgress(steps[0], idle=steps[0] % 2 == 0)

    def pulses() -> None:
        with contextlib.suppress(SystemExit):
            pulse.send_pulses(lambda: address, None, "ipc://w0", None, None, lambda: True, progress)

    thread = threading.Thread(target=pulses)
    thread.start()
    told: list[m.FileProgress] = []
    pings = 0
    try:
        while len(told) < 3 or pings < 20:
            assert router.socket.poll(10_000)
            heard = router.receive()
            message = codec.decode(heard[1]) if heard is not None and heard[1][0] else None
            pings += type(message) is m.Ping
            if isinstance(message, m.FileProgress):
                told.append(message)
            steps[0] = min(3, 1 + len(told))
    finally:
        over.set()
        thread.join(10)
        router.socket.close()
    assert not thread.is_alive()
    assert told == [m.FileProgress(1, idle=False), m.FileProgress(2, idle=True), m.FileProgress(3, idle=False)]
