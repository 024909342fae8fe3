"""What the dispatcher counts of its sessions, and to whom it tells that."""

from __future__ import annotations

from typing import Any

from marking_dispatcher import lose, service
from one_dispatcher import NEG, VECTOR, Service, started

from gt.dispatcher.state.events import Lost, Publish, Tick
from gt.dispatcher.telemetry.usage_reports import LINE_SECONDS, LOOK_SECONDS, usage_of
from gt.dispatcher.usage.rows import COLUMNS
from gt.ir.instruction_bytes import pack_segment
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import OBSERVER, USER, Origin, Principal


def later(each: Service, seconds: float = LOOK_SECONDS) -> None:
    each.now += seconds
    each.event(Tick())


def used(each: Service, principal: str = "this process", signal: str = "") -> dict[str, int]:
    for row in usage_of(each.core.service)["rows"]:
        if row[:2] == [principal, signal]:
            return dict(zip(COLUMNS, row[2:], strict=True))
    return dict.fromkeys(COLUMNS, 0)


def test_what_a_program_does_is_counted() -> None:
    """Time as its workers measure it, of both together; runs, instructions, puts, fetches, and what it holds."""
    each = started(2, config={"mesh": {"data": 2}})
    each.run(1, 2, [1])
    order = each.core.service.order
    each.say("w0", m.Done(order, [0, 3000]))
    each.say("w1", m.Done(order, [5000]))
    each.say("c", m.Fetch(1, 2))
    later(each)
    later(each)
    found = used(each)
    assert found["device_ns"] == 8000
    assert found["predicted_ns"] == 0
    assert (found["runs"], found["instructions"]) == (1, 1)
    assert found["put_bytes"] == VECTOR.nbytes
    assert found["fetched_bytes"] == VECTOR.nbytes
    assert found["held_byte_seconds"] == 2 * 2 * VECTOR.nbytes * LOOK_SECONDS
    assert found["energy_mj"] == -1


def test_time_that_nobody_measures_is_the_cost_models_and_said_to_be() -> None:
    """As on a GPU; also of what was in flight when its session left."""
    each = started(1)
    each.run(1, 2, [1])
    each.say("w0", m.Done(each.core.service.order))
    each.run(1, 3, [1])
    each.event(Lost(b"c", "it was killed"))
    later(each)
    found = used(each)
    assert found["device_ns"] == found["predicted_ns"] > 0
    assert found["runs"] == 2


def test_signals_are_told_apart() -> None:
    """By the outermost one, and by the time that is expected of each; the sum is what was measured."""
    from builders import Lines

    lines = Lines()
    x = lines.input(4)
    y = lines.op("neg", x, signal=("first", "inner"))
    z = lines.op("neg", y, signal=("second",))
    each = started(1)
    each.say("c", m.Define(2, pack_segment(lines.segment(z))))
    each.run(2, 5, [1])
    each.say("w0", m.Done(each.core.service.order, [1001]))
    later(each)
    first, second = used(each, signal="first"), used(each, signal="second")
    assert first["instructions"] == second["instructions"] == 1
    assert first["device_ns"] + second["device_ns"] == 1001
    assert abs(first["device_ns"] - second["device_ns"]) <= 1


def test_a_session_that_goes_back_is_counted_on() -> None:
    """What is computed again was computed, and counts; nothing counts twice without that."""
    each = service(2)
    each.define(1)
    each.run(1, 2, [1])
    each.done()
    lose(each, "w0")
    account = each.core.service.clients[b"c"].account
    later(each)
    assert account.principal == "this process"
    assert used(each)["runs"] == 1


def test_lines_are_written_by_the_minute_and_at_the_end() -> None:
    """They follow each other without gaps, and together they are what was used."""
    each = started(1, accounts=True)
    for n in range(5):
        each.run(1, 2 + n, [1])
        each.say("w0", m.Done(each.core.service.order, [10**6]))
        for _ in range(3):
            later(each)
    each.run(1, 50, [1])
    each.say("w0", m.Done(each.core.service.order, [10**6]))
    each.event(Lost(b"c", "it ended"))
    later(each)
    lines = [*each.core.usage.lines]
    assert len(lines) >= 3
    assert all(line.until - line.since >= LINE_SECONDS for line in lines[:-1])
    assert [line.until for line in lines[:-1]] == [line.since for line in lines[1:]]
    assert sum(line.values[0] for line in lines) == used(each)["device_ns"] == 6 * 10**6
    each.core.usage.finish()
    assert len(each.core.usage.lines) == len(lines), "nothing is left"


def test_a_program_hears_of_its_own_principal_and_watchers_of_all() -> None:
    """A user is not told what others use, and an observer needs no right to act."""
    each = started(1)
    each.origins["d"] = Origin(Principal("key other", frozenset({USER})))
    each.origins["t"] = Origin(Principal("key sees", frozenset({OBSERVER})))
    each.client("d")
    each.put(1, "d")
    later(each)
    each.say("d", m.Ask(4, "usage"))
    (answer,) = each.hears("d", m.Answer)
    assert {row[0] for row in answer.facts["rows"]} == {"key other"}
    each.hello("t", "watcher")
    each.hears("t")
    each.say("t", m.AskUsage(3))
    (answer,) = each.hears("t", m.Answer)
    assert {row[0] for row in answer.facts["rows"]} == {"this process", "key other"}
    assert answer.facts["columns"] == ["principal", "signal", *COLUMNS]


def test_who_asks_hears_what_was_used_up_to_then() -> None:
    """Of all sessions of a principal, or of all principals, as workers have reported it, and not only of the last look."""
    each = started(1)
    each.origins["t"] = Origin(Principal("key sees", frozenset({OBSERVER})))
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    later(each)
    for client in "cd":
        each.run(1, 2, [1], client)
        each.say("w0", m.Done(each.core.service.order, [4000]))
    each.say("c", m.Ask(5, "usage"))
    (answer,) = each.hears("c", m.Answer)
    at = 2 + COLUMNS.index("device_ns")
    assert [row[at] for row in answer.facts["rows"]] == [8000]
    each.run(1, 3, [1])
    each.say("w0", m.Done(each.core.service.order, [1000]))
    each.hello("t", "watcher")
    each.hears("t")
    each.idle = False
    each.say("t", m.AskUsage(3), m.AskUsage(4))
    each.idle = True
    each.event(Tick())
    assert [(said.request, said.facts["rows"][0][at]) for said in each.hears("t", m.Answer)] == [(3, 9000), (4, 9000)]
    each.idle = False
    each.say("t", m.AskUsage(5))
    each.idle = True
    each.event(Lost(b"t", "it was killed"))
    assert not each.hears("t", m.Answer), "who has left is told nothing"


def watched(each: Service) -> list[Any]:
    each.event(Publish(1))
    return [t.decode_event(raw) for batch in each.hears("t", m.Events) for raw in batch.events]


def test_watchers_are_told_the_sums_at_first_and_when_they_change() -> None:
    each = started(1)
    later(each)
    each.hello("t", "watcher")
    each.say("t", m.Watch(t.SUMMARY, 0))
    first = [event for event in watched(each) if isinstance(event, t.Used)]
    assert {event.put for event in first} == {VECTOR.nbytes}
    each.run(1, 2, [1])
    each.say("w0", m.Done(each.core.service.order, [777]))
    later(each)
    assert [event.device for event in watched(each) if isinstance(event, t.Used)] == [777]
    assert not [event for event in watched(each) if isinstance(event, t.Used)]


def test_energy_goes_to_those_whose_plans_ran() -> None:
    """A worker's device tells its power, every two seconds."""
    each = started(1)
    each.hello("pulse", "pulse", address="ipc:///w0")
    health = m.Health(50, 100_000, -1, -1, -1, -1, -1, [])
    for busy in (0, 10**9, 0):
        if busy:
            each.run(1, 2, [1])
            each.say("w0", m.Done(each.core.service.order, [busy]))
        each.now += 2
        each.say("pulse", health)
    later(each)
    assert used(each)["energy_mj"] == 100_000
    each.event(Lost(b"w0", "gone"))
    each.join("w1")
    each.hello("pulse1", "pulse", address="ipc:///w1")
    each.say("pulse1", health)
    assert len(each.core.usage.meters) == 1


def test_a_plan_of_a_segment_without_instructions_of_signals_counts_as_a_whole() -> None:
    each = started(1)
    each.say("c", m.Define(9, pack_segment(NEG)))
    each.run(9, 7, [1])
    (part,) = next(iter(each.core.service.clients[b"c"].plans.values())).run_time.tally.parts
    assert (part.signal, part.instructions, part.share) == ("", 1, 1.0)
