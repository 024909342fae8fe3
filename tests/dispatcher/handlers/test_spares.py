"""Sessions of a service that keeps spares."""

from __future__ import annotations

from typing import Any

from marking_dispatcher import lose, restore, service, settled_mark
from one_dispatcher import Service, fault_of

from gt.dispatcher.state.events import Publish
from gt.wire import messages as m
from gt.wire import telemetry as t

ALL: dict[str, Any] = {"sharding_config": {"net": {"strategy": "data_parallel"}}}


def with_spare(config: Any = None) -> Service:
    """Two workers, with a session on them, and a spare "s"."""
    each = Service(0, config=config, expected=2)
    each.join("s", spare=True, marks=True)
    for name in ("w0", "w1"):
        each.join(name, marks=True)
    each.client(resends=True)
    each.put(1)
    each.define(1)
    each.done()
    each.told.clear()
    return each


def members(each: Service, client: str = "c") -> tuple[int, ...]:
    found: tuple[int, ...] = each.core.service.clients[client.encode()].planner.mesh.members
    return found


def test_a_spare_is_on_no_mesh() -> None:
    """Neither of a session over all workers, nor of many sessions with one each."""
    each = with_spare(ALL)
    assert members(each) == (1, 2)
    plain = with_spare()
    for n in range(4):
        plain.client(f"c{n}")
        plain.put(1, f"c{n}")
        assert members(plain, f"c{n}")[0] in (1, 2)


def test_a_spare_takes_the_place_at_once() -> None:
    """Nobody waits for the worker that is started again, which waits as a spare afterwards."""
    each = with_spare(ALL)
    mark = settled_mark(each)
    lose(each, "w0")
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    assert members(each) == (0, 2)
    restore(each, mark)
    each.run(1, 10, [1])
    assert each.hears("s", m.Execute)
    each.join("w3", marks=True, supervised=True)
    assert members(each) == (0, 2)
    each.client("d")
    each.put(1, "d")
    assert members(each, "d") == (0, 2)


def test_a_lost_spare_disturbs_nobody() -> None:
    each = with_spare(ALL)
    lose(each, "s")
    assert not each.hears("c")
    assert not each.core.service.is_short


def test_a_spare_stands_in_for_a_worker_that_does_not_return() -> None:
    """Also for a session that cannot go back and has a mesh of its own: it loses what was cut, and can go on."""
    each = service(2, config={"mesh": {"data": 2}, **ALL}, marks=False)
    each.join("s", spare=True)
    each.put(2, signal=("net",))
    each.done()
    each.core.service.clients[b"c"].recovery.resends = False
    lose(each, "w0", returns=False)
    each.put(20)
    each.done()
    assert members(each) == (1, 2)
    assert fault_of(each, 2)[0] == "WorkerLost"
    assert each.table()[1].fault is None


def test_watchers_and_programs_are_told() -> None:
    each = with_spare(ALL)
    each.hello("top", "watcher")
    each.say("top", m.Watch(t.SUMMARY, 0))
    each.event(Publish(1))
    known = [t.decode_event(raw) for told in each.hears("top", m.Events) for raw in told.events]
    assert [(event.number, event.duty) for event in known if isinstance(event, t.DutyChanged)] == [(0, "spare")]
    each.say("c", m.Ask(1, "devices"), m.Ask(2, "statistics"))
    answers = each.hears("c", m.Answer)
    assert [facts["duty"] for _, facts in answers[0].facts["workers"]] == ["spare", "in service", "in service"]
    assert (answers[1].facts["workers"], answers[1].facts["spares"]) == (2, 1)


def test_a_spare_elsewhere_does_not_take_the_place_of_a_worker_that_returns() -> None:
    """It could not read what the lost one has written for marks; one on the same machine does, before others."""
    each = Service(0, config=ALL, expected=2)
    each.join("far", spare=True, marks=True, mark_folder="b")
    for name in ("w0", "w1"):
        each.join(name, marks=True, mark_folder="a")
    each.client(resends=True)
    each.put(1)
    each.done()
    mark = settled_mark(each)
    lose(each, "w1")
    each.say("c", m.Resume(each.core.service.clients[b"c"].number, mark))
    assert not each.hears("far", m.RestoreMark), "the one that is started again is waited for"
    each.join("w2", marks=True, mark_folder="a")
    restore(each, mark)
    assert members(each) == (1, 3)
    lose(each, "w2", returns=False)
    each.say("c", m.Resume(each.core.service.clients[b"c"].number, mark))
    assert each.hears("far", m.RestoreMark), "nobody else comes"
