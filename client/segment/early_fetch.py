"""Early fetches: what a loop fetches in each turn is asked for as soon as it is computed.

A training step computes its loss, its gradients and an update, and then the program fetches the loss. Sent like that, the
worker waits while the client emits, and the client while the worker computes. But the stream itself shows the loop: when two
fetches in a row were of the last value of the same instructions, and others followed it, the next segment at this place that
begins with these instructions ends with them, and its value is asked for at once. The worker computes while the client emits
the rest, and the value is there, or on its way, when the program fetches it. A run of a compiled function is cut in two.

What decides is what the program has sent, never the time. A fetch that the program does not make is the cost of a guess that
was wrong; then two more fetches must be alike. Nothing here sends: that does `builder.py`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .signature import TracedSegment

MIN_LATER: Final = 8
"""Instructions that must follow the value: else there is nothing to emit or to compute meanwhile."""
MAX_EARLY_BYTES: Final = 4096
"""The largest value that is asked for early, in bytes."""

MAX_SPLITS: Final = 8
"""Traced segments whose cuts are remembered, those that were cut last."""
MAX_SEGMENTS: Final = 16
"""The most segments between two fetches in which what is fetched is looked for; and one."""

Record = list[tuple[Any, ...]]


class SplitRun(NamedTuple):
    """A traced segment in two, the head up to and with the value that is fetched, and the tail."""

    traced: TracedSegment
    at: int
    """The number of that value among the outputs."""
    head: TracedSegment
    tail: TracedSegment
    head_key: Any
    """By which the session's definitions know the head."""
    tail_key: Any
    head_inputs: list[int]
    """The slot in the whole segment of each input of the head."""
    tail_inputs: list[int]
    """The same of the tail; of an output of the head its number, as ~number."""
    scalars: int
    """The number of scalars that the head reads."""

    def dying(self, dying: list[int]) -> tuple[list[int], list[int]]:
        """The inputs of head and tail that die with them, if those in `dying` die with the whole segment."""
        dead = set(dying)
        later = set(self.tail_inputs)
        head = [place for place, slot in enumerate(self.head_inputs) if slot in dead and slot not in later]
        alive = self.traced.alive
        tail = [
            place for place, slot in enumerate(self.tail_inputs) if (slot in dead if slot >= 0 else not alive[~slot])
        ]
        return head, tail


def split_run(traced: TracedSegment, at: int) -> SplitRun:
    """Cut a traced segment after the instruction `at`."""
    cut = at + 1
    head_inputs: dict[int, int] = {}
    tail_inputs: dict[int, int] = {}
    head: Record = []
    tail: Record = []
    for signature, *operands in traced.record[:cut]:
        reads = [each if each >= 0 else ~head_inputs.setdefault(~each, len(head_inputs)) for each in operands]
        head.append((signature, *reads))
    for signature, *operands in traced.record[cut:]:
        reads = [each - cut if each >= cut else ~tail_inputs.setdefault(~each, len(tail_inputs)) for each in operands]
        tail.append((signature, *reads))
    crossing = {~each for each in tail_inputs if each < 0}
    alive = bytes([traced.alive[number] or number in crossing for number in range(cut)])
    scalars = sum(isinstance(operand, str) for entry in head for operand in entry[0].operands)
    return SplitRun(
        traced, at, TracedSegment(head, alive, len(head_inputs), []),
        TracedSegment(tail, traced.alive[cut:], len(tail_inputs), []), (object(),), (object(),),
        [*head_inputs], [*tail_inputs], scalars,
    )  # fmt: skip


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

    __slots__ = ("armed", "asked", "before", "expected", "segments", "split", "splits")

    def __init__(self) -> None:
        self.segments: list[Sent] = []
        """What was sent since the last fetch, `MAX_SEGMENTS` at most."""
        self.before: Sighting | None = None
        """Where that lay which was fetched last."""
        self.expected: Sighting | None = None
        """Where, in gathered segments, that lies which is fetched next."""
        self.armed: Record | None = None
        """The instructions with which the segment under way ends, if it begins with them."""
        self.split: SplitRun | None = None
        """How a traced segment is sent."""
        self.splits: dict[tuple[int, int], SplitRun] = {}
        """How traced segments were cut, by their identities and where, oldest first: a loop that goes on after another one, as
        epochs do after evaluations, sends the same two definitions."""
        self.asked: tuple[int, Any] | None = None
        """The value that was asked for early last, until it is fetched: its id and its future."""

    def sent(self, base: int, record: Record, traced: TracedSegment | None) -> None:
        """A segment is sent, with outputs from `base` on."""
        if len(self.segments) < MAX_SEGMENTS:
            self.segments.append(Sent(base, record, traced))
        self._arm()

    def _arm(self) -> None:
        expected = self.expected
        self.armed = expected.record if expected is not None and expected.place == len(self.segments) else None

    def fetched(self, number: int, after: int, nbytes: int, only: bool) -> Any:
        """The program fetches output `number`, and the next output is `after`. Returns the future if it was asked for early.

        `only`: the session has one worker. On several the cut could be another way to place what is computed, and so to
        round it.
        """
        future = None
        if self.asked is not None and self.asked[0] == number:
            future, self.asked = self.asked[1], None
        segments, self.segments = self.segments, []
        if not segments:
            return future  # it fetches another one of the values that it had
        now = None
        if only and nbytes <= MAX_EARLY_BYTES and after - number > MIN_LATER:
            now = _sighting(segments, number)
        before, self.before = self.before, now
        self.expected = None
        self.split = None
        if now is not None and before is not None and now.alike(before):
            at = len(now.record) - 1
            if now.traced is None:
                self.expected = now
            else:
                self.split = self._split(now.traced, at)
        self._arm()
        return future

    def _split(self, traced: TracedSegment, at: int) -> SplitRun:
        """The cut of a traced segment after the instruction `at`, as it was before if that is remembered."""
        key = id(traced), at  # which is no other segment's while the cut refers to this one
        found = self.splits.pop(key, None) or split_run(traced, at)
        self.splits[key] = found
        if len(self.splits) > MAX_SPLITS:
            del self.splits[next(iter(self.splits))]
        return found


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
