"""Watchers of a simulated service: each reads what a monitor reads, at any level, slowly at times, and comes again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from gt.errors import ConnectionFailed, ProtocolError
from gt.monitor.reducer import Reducer
from gt.monitor.snapshot import Snapshot
from gt.monitor.stream import Stream
from gt.wire import telemetry as t

from .service import ADDRESS, Service

LEVELS: Final = (t.SUMMARY, t.SUMMARY, t.TRACE, t.OFF)
CONNECT_SECONDS: Final = 5.0


class Watcher:
    """One watcher, which goes on until it `ends`. It draws of what `levels` it asks for."""

    def __init__(self, service: Service, name: str, levels: Sequence[int]) -> None:
        self.service = service
        self.name = name
        self.levels = levels
        self.random = random.Random(f"{service.scheduler.seed} {name}")
        self.ends = self.done = False
        self.events = 0
        """How many it has read."""
        self.seen: Snapshot | None = None
        """What it knew last."""

    def run(self) -> None:
        """The watcher's program."""
        while not self.ends:
            try:
                stream = Stream(ADDRESS, level=self.random.choice(self.levels), timeout=CONNECT_SECONDS)
            except (ConnectionFailed, ProtocolError):
                self._wait(1.0)
                continue
            with stream:
                self._read(stream, self.random.randint(1, 60))
            self._wait(self.random.random())
        self.done = True

    def _read(self, stream: Stream, times: int) -> None:
        reducer = Reducer()
        for _ in range(times):
            if self.ends:
                return
            events = stream.read(0.5)
            self.events += len(events)
            reducer.feed(events)
            self.seen = reducer.snapshot(stream.status)
            drawn = self.random.random()
            if drawn < 0.05:
                stream.set_level(self.random.choice(self.levels))
            elif drawn < 0.1:  # batches wait for it, and some may be dropped
                self._wait(8 * self.random.random())

    def _wait(self, seconds: float) -> None:
        self.service.scheduler.wait([], seconds)
