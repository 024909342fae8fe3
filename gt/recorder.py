"""Where events wait to be sent: bounded in number, whatever happens.

A token bucket says how many go by themselves. What comes beyond that is added up with what is alike (`telemetry.ALIKE`), so
a flood becomes a few aggregates and no duration, count or byte is lost. Of samples only the last is kept. Pure state: the
clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final

from .telemetry import ALIKE, SAMPLES, SUMMED, Event

MAX_AGGREGATES: Final = 1024
"""Different aggregates between two batches; what is beyond is added up by kind alone."""
MAX_OTHERS: Final = 4096
"""Events that cannot be added up (a client joined) between two batches; what is beyond is dropped and counted."""

_KEYS: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in ALIKE.items()}
_SAMPLES: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in SAMPLES.items()}
_SUMMED: Final = {kind: tuple(at for at, name in enumerate(kind._fields) if name in SUMMED) for kind in ALIKE}
_UNNAMED: Final[dict[str, Any]] = {
    "client": -1,
    "plan": -1,
    "order": -1,
    "kind": "",
    "signal": "",
    "site": "",
    "op": "",
    "text": "",
}
"""What stands in an aggregate of events that have nothing in common but their kind."""


class Bucket:
    """Tokens that come at `rate` a second, at most a second's worth. `clock` gives nanoseconds."""

    __slots__ = ("clock", "filled", "rate", "tokens")

    def __init__(self, clock: Callable[[], int], rate: int) -> None:
        self.clock = clock
        self.rate = rate
        self.tokens = float(rate)
        self.filled = clock()

    def take(self, wanted: int = 1) -> bool:
        """Take so many, if they are there; more than the bucket holds are taken when it is full."""
        if self.tokens < wanted:
            now = self.clock()
            self.tokens = min(float(self.rate), self.tokens + (now - self.filled) * self.rate / 1e9)
            self.filled = now
            if not self.rate or self.tokens < min(wanted, self.rate):
                return False
        self.tokens -= wanted
        return True


class Recorder:
    """The events of one source, `rate` of them a second by themselves. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int], rate: int) -> None:
        self.bucket = Bucket(clock, rate)
        self.events: list[Event] = []
        """Those that go by themselves."""
        self.aggregates: dict[tuple[type[Any], Hashable], list[Any]] = {}
        self.samples: dict[Hashable, Event] = {}
        self.others = 0
        self.dropped = 0
        """Since the last batch: what could be neither kept nor added up."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        kind = type(event)
        if kind in _SAMPLES:
            self.samples[kind, _SAMPLES[kind](event)] = event
        elif kind not in _KEYS:
            if self.others >= MAX_OTHERS:
                self.dropped += 1
                return
            self.others += 1
            self.events.append(event)
        elif self.bucket.take():
            self.events.append(event)
        else:
            self._aggregate(kind, event)

    def keep(self, event: Event) -> None:
        """Take in an event that its source bounds itself; it goes by itself."""
        self.events.append(event)

    def _aggregate(self, kind: type[Any], event: Any) -> None:
        key = (kind, _KEYS[kind](event))
        found = self.aggregates.get(key)
        if found is None and len(self.aggregates) >= MAX_AGGREGATES:
            key = (kind, None)
            found = self.aggregates.get(key)
            event = event._replace(**{name: value for name, value in _UNNAMED.items() if name in event._fields})
        if found is None:
            self.aggregates[key] = list(event)
            return
        for at in _SUMMED[kind]:
            found[at] += event[at]

    def take(self) -> tuple[list[Event], int]:
        """All that was recorded since the last time, and how many events were dropped."""
        out = self.events
        for key, fields in self.aggregates.items():
            out.append(key[0]._make(fields))
        out += self.samples.values()
        dropped = self.dropped
        self.events, self.aggregates, self.samples = [], {}, {}
        self.others = self.dropped = 0
        return out, dropped
