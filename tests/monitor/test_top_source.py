"""What the source of `gt top` does with an order: the service is asked by the thread that reads, and a failure is kept."""

from __future__ import annotations

import threading
import time

import pytest

from gt.errors import ConfigError
from gt.monitor.snapshot import LIVE, Status
from gt.monitor.top import source
from gt.wire import telemetry as t

SECONDS = 20.0


class Refusing:
    """A stream without events, whose service does nothing that it is asked."""

    def __init__(self, address: str | None, timeout: float) -> None:
        self.status = Status(LIVE, "here", 0.0, 0, "", ())
        self.waits = threading.Event()

    def read(self, timeout: float) -> list[t.Event]:
        self.waits.wait(min(timeout, 0.01))
        return []

    def act(self, action: str, number: int, value: str) -> None:
        raise ConfigError(f"{action} {number} {value}: no")

    def close(self) -> None:
        pass


def test_an_order_that_fails_is_told_once_and_is_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app hears of it at its next frame; the log keeps it."""
    monkeypatch.setattr(source, "Stream", Refusing)
    live = source.LiveSource("here")
    try:
        live.act("weight", 3, "2")
        end = time.monotonic() + SECONDS
        while not (found := live.failed()):
            assert time.monotonic() < end
            live._stream.read(0.001)
        assert found == ["weight 3 2: no"]
        assert live.failed() == []
        assert live.settled(0.0).status.state == LIVE
        while not (said := [(line.level, line.text) for line in live.snapshot().log]):
            assert time.monotonic() < end
        assert said == [("warning", "weight 3 2: no")]
    finally:
        live.close()
