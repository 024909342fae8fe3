"""Where events wait to be sent: bounded in number, whatever happens.

A token bucket says how many go by themselves. What comes beyond that is added up with what is alike (`telemetry.ALIKE`), so
a flood becomes a few aggregates and no duration, count or byte is lost. Of samples only the last is kept. Pure state: the
clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final

from .telemetry import ALIKE, SAMPLES, SECOND, SUMMED, Event

MAX_AGGREGATES: Final = 1024
"""Different aggregates between two batches; what is beyond is added up by kind alone."""
NEVER: Final = 1 << 62
"""Nanoseconds that nobody sees pass."""
MAX_OTHERS: Final = 4096
"""Events that cannot be added up (a client joined) between two batches; what is beyond is dropped and counted."""

_KEYS: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in ALIKE.items()}
_SAMPLES: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in SAMPLES.items()}
_SUMMED: Final = {kind: tuple(at for at, name in enumerate(kind._fields) if name in SUMMED) for kind in ALIKE}
_UNNAMED: Final[dict[str, Any]] = {
    "client": -1,
    "plan": -1,
    "order": -1,
    "owner": -1,
    "tensor": -1,
    "kind": "",
    "signal": "",
    "site": "",
    "op": "",
    "text": "",
}
"""What stands in an aggregate of events that have nothing in common but their kind."""


class Bucket:
    """Tokens that come at `rate` a second, at most `burst` of them (0: a second's worth). Times are nanoseconds.

    How many there are follows from when there were none, so to look is one comparison: `now >= bucket.until`.
    """

    __slots__ = ("burst", "interval", "rate", "until")

    def __init__(self, now: int, rate: int, burst: int = 0) -> None:
        self.rate = rate
        self.burst = min(burst or rate, rate)
        self.interval = SECOND // rate if rate else NEVER
        self.until = now - (self.burst - 1) * self.interval
        """From then on there is one."""

    def has(self, now: int, wanted: int = 1) -> bool:
        """Whether so many are there; for more than the bucket holds it must be full."""
        return now >= self.until + (min(wanted, self.burst) - 1) * self.interval and self.rate > 0

    def take(self, now: int, wanted: int = 1) -> bool:
        """Take so many, if they are there."""
        if not self.has(now, wanted):
            return False
        self.until = max(self.until, now - (self.burst - 1) * self.interval) + wanted * self.interval
        return True


class Recorder:
    """The events of one source, `rate` of them a second by themselves, `burst` at once. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int], rate: int, burst: int = 0) -> None:
        self.clock = clock
        self.bucket = Bucket(clock(), rate, burst)
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
        elif self.bucket.take(self.clock()):
            self.events.append(event)
        else:
            self.collapse(event)

    def keep(self, event: Event) -> None:
        """Take in an event that its source bounds itself; it goes by itself."""
        self.events.append(event)

    def collapse(self, event: Any) -> None:
        """Add an event up with those like it."""
        kind = type(event)
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
