"""Watches the dispatcher of a service on Ray for its actor: whether it lives, which workers have joined, how busy they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gt.errors import GTError
from gt.monitor.reducer import Reducer
from gt.monitor.snapshot import LIVE
from gt.monitor.stream import Stream
from gt.wire import telemetry as t
from gt.wire.transport import CurveKeys

from .scaling import ServiceLoad, WorkerUse

CONNECT_SECONDS: Final = 2.0
"""The seconds of one attempt to reach a dispatcher that is starting."""


class JoinedWorker(NamedTuple):
    """A worker that has joined: its number at the dispatcher, and the share of the last second that it was in use."""

    number: int
    used: float
    leaving: bool


class LoadWatch:
    """The dispatcher at `address`, seen as an operator. Watching costs workers a little, so events come only while somebody
    wants them."""

    def __init__(self, address: str, keys: CurveKeys) -> None:
        self.address = address
        self.keys = keys
        self.stream: Stream | None = None
        self.reducer = Reducer()
        self.heard_at = time.monotonic()

    def connect(self, seconds: float, alive: Callable[[], bool]) -> bool:
        """Wait until the dispatcher lets this watcher in; False when `alive` says no, or after so many seconds."""
        deadline = time.monotonic() + seconds
        while alive() and time.monotonic() < deadline:
            try:
                self.stream = Stream(self.address, level=t.OFF, timeout=CONNECT_SECONDS, keys=self.keys)
            except GTError:
                continue  # it is not there yet
            return True
        return False

    def want(self, level: int) -> None:
        """Ask for events from now on (`t.SUMMARY`), or for no more (`t.OFF`)."""
        if self.stream is not None and self.stream.level != level:
            self.reducer = Reducer()  # the first events describe what there is
            self.stream.set_level(level)

    def read(self, seconds: float) -> None:
        """Take what comes within so many seconds."""
        assert self.stream is not None, "it is connected"
        self.reducer.feed(self.stream.read(seconds))
        if self.stream.status.state == LIVE:
            self.heard_at = time.monotonic()

    def joined(self) -> dict[tuple[str, int], JoinedWorker]:
        """The workers that have joined, by machine and process."""
        assert self.stream is not None, "it is connected"
        shown = self.reducer.snapshot(self.stream.status)
        return {
            (each.host, each.pid): JoinedWorker(each.number, each.split.used, each.duty == "leaving")
            for each in shown.workers
            if each.state != "lost"
        }

    def waiting(self) -> int:
        """How many sessions wait for their share of workers' time."""
        assert self.stream is not None, "it is connected"
        shown = self.reducer.snapshot(self.stream.status)
        return sum(each.waiting is not None and each.waiting.what == "share" for each in shown.clients)

    def close(self) -> None:
        """End the connection."""
        if self.stream is not None:
            self.stream.close()


def load_of(
    statuses: Mapping[str, Mapping[str, Any]],
    joined: Mapping[tuple[str, int], JoinedWorker],
    waiting: int,
    least: int,
    prefix: str,
) -> ServiceLoad:
    """The load of a service, from what its workers' actors and its dispatcher say. Workers from number `least` on were added."""
    serving, starting = [], 0
    for name, status in statuses.items():
        worker = joined.get((status.get("host", ""), status.get("pid", 0)))
        if worker is None:
            starting += not status.get("ended")
        elif not worker.leaving:
            serving.append(WorkerUse(name, int(name.removeprefix(prefix)) >= least, worker.used))
    return ServiceLoad(tuple(serving), starting, waiting)
