"""Every event is short: whatever a peer says within `gt/bounds.py`, acting on it takes few steps, or several turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from event_steps import (
    DEEP,
    MAX_STEPS,
    SPEC,
    many_tensors,
    most_steps,
)
from measured_calls import counted_steps
from one_dispatcher import started

from gt.bounds import (
    MAX_IDS,
    MAX_QUEUED_MESSAGES,
    MAX_WORKER_EVENTS,
)
from gt.dispatcher.handlers.fetches import MAX_UNDER_WAY
from gt.dispatcher.state.events import Publish, Tick
from gt.wire import messages as m
from gt.wire import telemetry as t


def test_as_many_frees_as_may_be_take_few_steps() -> None:
    each = started()
    tensors = many_tensors(each, MAX_IDS)
    assert most_steps(each, "c", *[m.Free(tensors)] * 20) < MAX_STEPS
    assert set(each.table()) == {1}


def test_what_was_queued_goes_on_in_turns() -> None:
    """Thousands of messages behind a put that never lands, or lands at last, are taken and acted on a few at a time."""
    each = started()
    each.put(2, bulk=True)
    each.say("c", m.Fetch(1, 2))
    first = most_steps(
        each,
        "c",
        *(m.Fetch(2 + n, 1) for n in range(MAX_UNDER_WAY - 1)),
        *(m.Put(3 + n, SPEC, [], False, bytes(16)) for n in range(40)),
    )
    later = most_steps(each, "c", *(m.Put(50 + n, SPEC, [], False, bytes(16)) for n in range(2000)))
    assert later < first + 200
    assert most_steps(each, "w0", m.Landed(1, 2)) < MAX_STEPS
    assert len(each.core.fetches.collections) == MAX_UNDER_WAY


def test_a_cancellation_of_a_long_queue_goes_on_in_turns() -> None:
    each = started(capabilities=("cancel",))
    each.hello("t", "watcher")
    each.put(2, bulk=True)
    each.say("c", m.Fetch(1, 2))
    queue = each.core.service.clients[b"c"].queue
    queue.extend([m.Fetch(2, 1)] * 5000)
    assert len(queue) < MAX_QUEUED_MESSAGES
    assert most_steps(each, "t", m.Cancel(5, 1)) < MAX_STEPS
    assert not queue


SAID: dict[str, tuple[str, Callable[[], Any]]] = {
    "statistics": ("c", lambda: m.Ask(1, "statistics")),
    "devices": ("c", lambda: m.Ask(1, "devices")),
    "memory": ("c", lambda: m.Ask(1, "memory")),
    "why": ("c", lambda: m.Ask(1, "why 1 1")),
    "why nonsense": ("c", lambda: m.Ask(1, "why " + "9 " * 30_000)),
    "topic": ("c", lambda: m.Ask(1, "x" * 60_000)),
    "fetch": ("c", lambda: m.Fetch(1, 1)),
    "published": (
        "c",
        lambda: m.WriteSnapshot(1, "a", "0" * 16, [1] * MAX_IDS, [["x" * 256] * 64, -1, 16], bytes(1 << 22)),
    ),
    "snapshot": ("c", lambda: m.WriteSnapshot(1, "a", "0" * 16, [1] * MAX_IDS, [], bytes(1 << 22))),
    "confirm": ("c", lambda: m.ConfirmTensors(1, [1] * MAX_IDS)),
    "restore": ("c", lambda: m.Restore(9, SPEC, DEEP, 1, "a" * 10_000, "0" * 10_000, "k" * 20_000, [])),
    "snapshots": ("c", lambda: m.Ask(1, "snapshots")),
    "report": ("w0", lambda: m.SnapshotReport(1, ["k"] * 1000, ["f"] * 1000, bytes(1 << 23))),
    "loaded": ("w0", lambda: m.Loaded(1, 1, ["k"] * 1000)),
    "resume": ("c", lambda: m.Resume(1, 1)),
    "settled": ("c", lambda: m.Settled(1)),
    "request": ("c", lambda: m.RequestMark(True)),
    "mark taken": ("w0", lambda: m.MarkTaken(1, ["k"] * 1000, 1)),
    "mark restored": ("w0", lambda: m.MarkRestored(1, 1, ["k"] * 1000)),
    "parts packed": ("w0", lambda: m.PartsPacked(1, 1, 1, ["k"] * 1000)),
    "drop": ("c", lambda: m.Drop(1)),
    "options": ("c", lambda: m.Options({f"o{number}": 1 for number in range(5000)})),
    "done": ("w0", lambda: m.Done((1 << 63) - 1)),
    "poisoned": ("w0", lambda: m.Poisoned(1, 1, "k" * 100, "x" * 60_000)),
    "landed": ("w0", lambda: m.Landed(1, 1)),
    "part": ("w0", lambda: m.Part(1, ["k"] * 1000, False, bytes(1 << 16))),
    "linked": ("w0", lambda: m.Linked((1 << 63) - 1, (1 << 63) - 1, 1)),
    "holdings": ("w0", lambda: m.Holdings(1, {"holders": [[1, "net", 1, 1, 1, 1]] * 4096})),
    "unique id": ("w0", lambda: m.UniqueId(1, [0] * MAX_IDS, 1, bytes(1 << 14))),
    "events": ("w0", lambda: m.Events(1, 0, [t.encode_event(t.Gauges(1, 0, 1, 1, 1, 1, 1, 1, 1))] * MAX_WORKER_EVENTS)),
    "watch": ("t", lambda: m.Watch(t.TRACE, 0)),
    "cancel": ("t", lambda: m.Cancel(1, 99)),
    "drain": ("t", lambda: m.Drain(1, 99, True)),
    "control": ("t", lambda: m.ControlSession(1, 1, "weight" * 4000, "9" * 30_000)),
    "usage": ("t", lambda: m.AskUsage(1)),
    "own usage": ("c", lambda: m.Ask(1, "usage")),
    "reload": ("t", lambda: m.ReloadConfig(1)),
}


@pytest.mark.parametrize("said", SAID)
def test_any_other_message_takes_few_steps(said: str) -> None:
    """At the largest size that it may have."""
    each = started(capabilities=("cancel",))
    each.hello("t", "watcher")
    if said == "events":
        each.say("t", m.Watch(t.TRACE, 0))
    peer, message = SAID[said]
    assert most_steps(each, peer, message()) < MAX_STEPS
    for event in (Tick(), Publish(5)):
        assert counted_steps(lambda event=event: each.core.handle(event, each.now)) < MAX_STEPS  # type: ignore[misc]
