"""Early fetches: what a loop fetches in each turn is asked for with the run that computes it.

A training step computes its loss, its gradients and an update, and then the program fetches the loss. By then the run that makes
it has left. But the stream itself shows the loop: when two fetches in a row were of the same value of the same instructions, the
next segment at this place that begins with these instructions asks for that value, as does a run of the same traced one. The
worker answers as soon as it has the value, and computes the rest while the client emits the next turn.

What decides is what the program has sent, never the time. A fetch that the program does not make is the cost of a guess that
was wrong; then two more fetches must be alike. Nothing here sends: that does `builder.py`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .signature import TracedSegment

MAX_EARLY_BYTES: Final = 4096
"""The largest value that is asked for with its run, in bytes."""
MAX_SEGMENTS: Final = 16
"""The most segments between two fetches in which what is fetched is looked for; and one."""

Record = list[tuple[Any, ...]]


class Sent(NamedTuple):
    """A segment that was sent: the id of its first output, its record, and what it is a run of if it was traced."""

    base: int
    record: Record
    traced: TracedSegment | None


class Sighting(NamedTuple):
    """Where that lay which was fetched: the instructions up to it in its segment, and how many segments were sent before that
    since the last fetch; of a traced segment, which it is."""

    record: Record
    place: int
    traced: TracedSegment | None

    def alike(self, other: Sighting) -> bool:
        """Whether the other one was the same in the turn before."""
        if self.traced is not None or other.traced is not None:
            return self.traced is other.traced and len(self.record) == len(other.record)
        return self.place == other.place and self.record == other.record


class EarlyFetches:
    """What the fetches of one builder's thread have shown, and what is asked for early because of it."""

    __slots__ = ("armed", "asked", "before", "expected", "segments")

    def __init__(self) -> None:
        self.segments: list[Sent] = []
        """What was sent since the last fetch, `MAX_SEGMENTS` at most."""
        self.before: Sighting | None = None
        """Where that lay which was fetched last."""
        self.expected: Sighting | None = None
        """Where that lies which is fetched next."""
        self.armed: Record | None = None
        """The instructions with whose last value the segment under way is asked for, if it begins with them."""
        self.asked: tuple[int, Any] | None = None
        """The value that was asked for early last, until it is fetched: its id and its future."""

    def sent(self, base: int, record: Record, traced: TracedSegment | None) -> None:
        """A segment is sent, with outputs from `base` on."""
        if len(self.segments) < MAX_SEGMENTS:
            self.segments.append(Sent(base, record, traced))
        self._arm()

    def _arm(self) -> None:
        expected = self.expected
        here = expected is not None and expected.traced is None and expected.place == len(self.segments)
        self.armed = expected.record if expected is not None and here else None

    def output_of(self, record: Record, traced: TracedSegment | None) -> int:
        """The output of a segment that is about to be sent for which the program will ask; -1 if none is expected to be."""
        if traced is not None:
            expected = self.expected
            return len(expected.record) - 1 if expected is not None and expected.traced is traced else -1
        armed = self.armed
        return len(armed) - 1 if armed is not None and record[: len(armed)] == armed else -1

    def fetched(self, number: int, nbytes: int) -> Any:
        """The program fetches output `number`, of so many bytes. Returns the future if it was asked for early."""
        future = None
        if self.asked is not None and self.asked[0] == number:
            future, self.asked = self.asked[1], None
        segments, self.segments = self.segments, []
        if segments:  # else it fetches another one of the values that it had
            now = _sighting(segments, number) if nbytes <= MAX_EARLY_BYTES else None
            before, self.before = self.before, now
            self.expected = now if now is not None and before is not None and now.alike(before) else None
            self._arm()
        return future


def _sighting(segments: list[Sent], number: int) -> Sighting | None:
    """Where an output lies in the segments since the last fetch; None if it is older, there are too many, or several are runs
    of the same traced one."""
    if len(segments) == MAX_SEGMENTS:
        return None
    for place, (base, record, traced) in enumerate(segments):
        if base <= number < base + len(record):
            if traced is not None and sum(each.traced is traced for each in segments) > 1:
                return None
            return Sighting(record[: number - base + 1], place, traced)
    return None
