"""The event stream's vocabulary: every event survives the wire, what is none is refused, and nothing is lost in a flood."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.bounds import MAX_WORKER_EVENTS
from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.event_buffer import MAX_AGGREGATES, MAX_OTHER_EVENTS, EventBuffer
from gt.wire.messages import codec

FORMS: dict[str, Any] = {
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "str": st.text(max_size=5),
    "list[int]": st.lists(st.integers(0, 9), max_size=3),
    "list[str]": st.lists(st.text(max_size=3), max_size=3),
    "list[Any]": st.lists(st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=3), max_size=3),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "int": ("1", 1.5, True, None, 1 << 63, [1]),
    "str": (1, b"text", None, "a" * (t.MAX_TEXT_LENGTH + 1)),
    "list[int]": (["1"], [True], 1, None, [1] * (t.MAX_LIST_ITEMS + 1)),
    "list[str]": ([1], "text", None, ["a" * (t.MAX_TEXT_LENGTH + 1)]),
    "list[Any]": ([1], ["text"], [[None]], [[[1]]], [[1.5]], {}, [[]] * (t.MAX_LIST_ITEMS + 1)),
}


def form_of(kind: type[Any], field: str) -> str:
    return str(kind.__annotations__[field].__forward_arg__)


def events(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*[FORMS[form_of(kind, field)] for field in kind._fields]).map(kind._make)


ANY = st.sampled_from(t.KINDS).flatmap(events)
FIELDS = [(kind, field) for kind in t.KINDS for field in kind._fields]


@given(ANY)
@settings(max_examples=cases(100))
def test_events_come_back_as_they_were(event: Any) -> None:
    """An event and its kind survive becoming plain values."""
    back = t.decode_event(t.encode_event(event))
    assert (back, type(back)) == (event, type(event))


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_is_checked(kind: type[Any], field: str) -> None:
    """A field of the wrong form is refused by an error that names kind and field."""
    plain = {"int": 0, "str": ""}
    raw = [t.CODE_OF[kind], *[plain.get(form_of(kind, each), []) for each in kind._fields]]
    assert type(t.decode_event(raw)) is kind
    for value in WRONG[form_of(kind, field)]:
        spoilt = [*raw]
        spoilt[1 + kind._fields.index(field)] = value
        with pytest.raises(ProtocolError, match=rf"{kind.__name__}\.{field}"):
            t.decode_event(spoilt)


@pytest.mark.parametrize("raw", [None, 1, [], "", {}, [-1], [len(t.KINDS)], [True], ["0"], [0], [0, 1], [15, *[0] * 9]])
def test_what_is_no_event_is_refused(raw: Any) -> None:
    """Whatever is not exactly one event raises `ProtocolError`."""
    with pytest.raises(ProtocolError):
        t.decode_event(raw)


def test_long_texts_are_cut_when_they_are_sent() -> None:
    """An error's text of any length makes an event that its reader takes."""
    failure = t.Failure(1, 0, 1, 1, 1, "WorkerError", "a" * 10_000, "")
    assert t.decode_event(t.encode_event(failure)) == failure._replace(text="a" * t.MAX_TEXT_LENGTH)


def test_every_kind_that_can_be_added_up_says_what_must_be_alike_and_how_often() -> None:
    """`times` is on the kinds of `ALIKE` and no other, and every kind begins with when and who."""
    assert {kind for kind in t.KINDS if "times" in kind._fields} == set(t.AGGREGATE_KEYS)
    assert all(kind._fields[:2] == ("time", "worker") for kind in t.KINDS)
    for kind, names in (t.AGGREGATE_KEYS | t.SAMPLE_KEYS).items():
        assert set(names) <= set(kind._fields)
        assert not t.SUMMED_FIELDS & set(names)
    assert not set(t.AGGREGATE_KEYS) & set(t.SAMPLE_KEYS)


def test_the_page_of_events_lists_every_kind_with_its_fields() -> None:
    """docs/events.md has the version, and a row for every kind in the order of its code, with all fields in order."""
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    assert f"Version {t.VERSION}." in page
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]*) \|", page, flags=re.MULTILINE)
    listed = [(int(code), name, fields.split()) for code, name, fields in rows]
    assert listed == [(code, kind.__name__, list(kind._fields[2:])) for code, kind in enumerate(t.KINDS)]


# the recorder


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


SLICES = st.builds(
    t.PlanSlice, st.integers(0, 9), st.just(0), st.integers(0, 99), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2),
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
MOVES = st.builds(
    t.Collective, st.integers(0, 9), st.just(0), st.integers(0, 99), st.integers(1, 3), st.integers(0, 3), st.just(1),
    st.integers(0, 9), st.sampled_from(("all-reduce", "scatter")), st.just([1]), st.integers(0, 9), st.integers(0, 9),
    st.integers(0, 9), st.sampled_from(("", "net")), st.just("a.py:1"),
)  # fmt: skip


def sums(of: list[Any]) -> Counter[Any]:
    """Every summed field, by kind and by what is alike."""
    found: Counter[Any] = Counter()
    for event in of:
        key = (type(event), *[getattr(event, name) for name in t.AGGREGATE_KEYS[type(event)]])
        for name in t.SUMMED_FIELDS & set(event._fields):
            found[key, name] += getattr(event, name)
    return found


@given(st.lists(st.tuples(st.integers(0, 10**9), SLICES | MOVES), max_size=60), st.integers(0, 40), st.integers(1, 9))
@settings(max_examples=cases(150))
def test_sums_over_slices_and_aggregates_are_those_of_what_was_added_whatever_the_rate(
    added: list[tuple[int, Any]], rate: int, every: int
) -> None:
    """However few events go by themselves, every count, duration and byte arrives, under what it belongs to."""
    clock = Clock()
    recorder = EventBuffer(clock, rate)
    out: list[Any] = []
    for number, (passed, event) in enumerate(added):
        clock.now += passed
        recorder.add(event)
        if number % every == 0:
            taken, dropped = recorder.take()
            out += taken
            assert dropped == 0
    out += recorder.take()[0]
    assert sums(out) == sums([event for _, event in added])
    assert recorder.take() == ([], 0)


def test_no_more_than_its_rate_goes_by_itself() -> None:
    """After a second's worth at once a flood is one aggregate; when time has passed, some go by themselves again."""
    clock = Clock()
    recorder = EventBuffer(clock, 10)
    event = t.RunIssued(0, -1, 1, 7, 1, 1)
    for _ in range(100):
        recorder.add(event)
    taken, _ = recorder.take()
    assert [each.times for each in taken] == [1] * 10 + [90]  # type: ignore[union-attr]
    clock.now = 300_000_000
    for _ in range(5):
        recorder.add(event)
    assert [each.times for each in recorder.take()[0]] == [1] * 3 + [2]  # type: ignore[union-attr]


def test_memory_is_bounded_whatever_comes() -> None:
    """Aggregates without end are added up by kind; what cannot be added up is dropped beyond a bound, and counted."""
    recorder = EventBuffer(Clock(), 0)
    for plan in range(3 * MAX_AGGREGATES):
        recorder.add(t.RunIssued(0, -1, 1, plan, 1, plan))
        recorder.add(t.ClientLeft(0, -1, plan, ""))
    for plan in range(3 * MAX_OTHER_EVENTS):
        recorder.add(t.ClientLeft(0, -1, plan, ""))
    taken, dropped = recorder.take()
    runs = [event for event in taken if isinstance(event, t.RunIssued)]
    assert sum(event.times for event in runs) == 3 * MAX_AGGREGATES
    assert len(runs) == MAX_AGGREGATES + 1
    assert (runs[-1].plan, runs[-1].client) == (-1, -1)
    assert len(taken) - len(runs) == MAX_OTHER_EVENTS
    assert dropped == 3 * MAX_AGGREGATES + 3 * MAX_OTHER_EVENTS - MAX_OTHER_EVENTS


def test_of_samples_the_last_one_stands() -> None:
    """Samples replace earlier ones of the same source, and cost no tokens."""
    recorder = EventBuffer(Clock(), 0)
    for number in range(5):
        recorder.add(t.Traffic(number, 0, [1], [number]))
        recorder.add(t.Traffic(number, 1, [0], [number]))
    assert recorder.take() == ([t.Traffic(4, 0, [1], [4]), t.Traffic(4, 1, [0], [4])], 0)


def test_a_worker_sends_its_events_in_messages_that_the_dispatcher_reads() -> None:
    """However many events there are and however long their texts, each batch is within both bounds, in order."""
    for count, text in ((3 * MAX_WORKER_EVENTS + 1, ""), (500, "\U0001f600" * t.MAX_TEXT_LENGTH), (0, "")):
        events = [[1, (1 << 62) + n, 3, text] for n in range(count)]
        batches = list(t.event_batches(events))
        assert [event for batch in batches for event in batch] == events
        assert batches
        for batch in batches:
            assert len(batch) <= MAX_WORKER_EVENTS
            assert codec.decode(codec.encode(m.Events(1 << 62, 0, batch)), codec.TO_DISPATCHER).events == batch
