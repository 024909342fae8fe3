"""The buffer in which events wait to be sent, which bounds their number.

A token bucket limits how many are kept individually. Further events are added up with similar ones (`telemetry.ALIKE`), so
that a flood becomes a few aggregates and no duration, count or byte is lost. Only the latest of samples is kept. Pure state:
the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, Final

from .telemetry import AGGREGATE_KEYS, SAMPLE_KEYS, SECOND, SUMMED_FIELDS, Event

MAX_AGGREGATES: Final = 1024
"""The most different aggregates between two batches; beyond that, events are added up by kind alone."""
NEVER_NS: Final = 1 << 62
"""A time in nanoseconds that is never reached."""
MAX_OTHER_EVENTS: Final = 4096
"""The most events that cannot be added up (such as a client that joined) between two batches; further ones are dropped and
counted."""

_KEYS: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in AGGREGATE_KEYS.items()}
_SAMPLES: Final[dict[type[Any], Any]] = {kind: attrgetter("worker", *names) for kind, names in SAMPLE_KEYS.items()}
_SUMMED: Final = {
    kind: tuple(at for at, name in enumerate(kind._fields) if name in SUMMED_FIELDS) for kind in AGGREGATE_KEYS
}
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
"""What an aggregate has in place of fields that its events do not share."""


class TokenBucket:
    """A token bucket, filled at `rate` tokens per second up to `burst` (0: a second's worth). Times are in nanoseconds.

    The number of tokens follows from the time at which there were none, so a check is one comparison: `now >= bucket.until`.
    """

    __slots__ = ("burst", "interval", "rate", "until")

    def __init__(self, now: int, rate: int, burst: int = 0) -> None:
        self.rate = rate
        self.burst = min(burst or rate, rate)
        self.interval = SECOND // rate if rate else NEVER_NS
        self.until = now - (self.burst - 1) * self.interval
        """From this time on there is a token."""

    def has(self, now: int, wanted: int = 1) -> bool:
        """Whether so many tokens are there; a full bucket suffices for more than it can hold."""
        return now >= self.until + (min(wanted, self.burst) - 1) * self.interval and self.rate > 0

    def take(self, now: int, wanted: int = 1) -> bool:
        """Take so many tokens, if they are there."""
        if not self.has(now, wanted):
            return False
        self.until = max(self.until, now - (self.burst - 1) * self.interval) + wanted * self.interval
        return True


class EventBuffer:
    """The events of one source: `rate` per second are kept individually, `burst` at once. `clock` gives nanoseconds."""

    def __init__(self, clock: Callable[[], int], rate: int, burst: int = 0) -> None:
        self.clock = clock
        self.bucket = TokenBucket(clock(), rate, burst)
        self.events: list[Event] = []
        """The events that are kept individually."""
        self.aggregates: dict[tuple[type[Any], Hashable], list[Any]] = {}
        self.samples: dict[Hashable, Event] = {}
        self.others = 0
        self.dropped = 0
        """How many events since the last batch could neither be kept nor added up."""

    def add(self, event: Event) -> None:
        """Record an event."""
        kind = type(event)
        if kind in _SAMPLES:
            self.samples[kind, _SAMPLES[kind](event)] = event
        elif kind not in _KEYS:
            if self.others >= MAX_OTHER_EVENTS:
                self.dropped += 1
                return
            self.others += 1
            self.events.append(event)
        elif self.bucket.take(self.clock()):
            self.events.append(event)
        else:
            self.collapse(event)

    def keep(self, event: Event) -> None:
        """Record an event individually; its source limits how many there are."""
        self.events.append(event)

    def collapse(self, event: Any) -> None:
        """Add an event up with similar ones."""
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
        """Everything recorded since the last call, and how many events were dropped."""
        out = self.events
        for key, fields in self.aggregates.items():
            out.append(key[0]._make(fields))
        out += self.samples.values()
        dropped = self.dropped
        self.events, self.aggregates, self.samples = [], {}, {}
        self.others = self.dropped = 0
        return out, dropped
