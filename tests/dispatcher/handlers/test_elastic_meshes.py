"""Sessions whose config lets the mesh grow: they follow the workers of the service."""

from __future__ import annotations

from typing import Any

from marking_dispatcher import lose, pass_time, restore, service, settled_mark
from one_dispatcher import Service, configure, started

from gt.dispatcher.state.events import Reload
from gt.sharding.config import Config
from gt.wire import messages as m

RULES: dict[str, Any] = {"sharding_config": {"net": {"strategy": "data_parallel"}}}
AUTO: dict[str, Any] = {"mesh": {"data": "auto"}, **RULES}
GRID: dict[str, Any] = {"mesh": {"data": "auto", "model": 2}, **RULES}


def members(each: Service, client: str = "c") -> tuple[int, ...]:
    found: tuple[int, ...] = each.core.service.clients[client.encode()].planner.mesh.members
    return found


def finish(each: Service) -> None:
    """Workers finish all that they get, also what follows from that."""
    while each.core.service.issued:
        each.done()


def test_a_session_grows_to_a_worker_that_joins() -> None:
    """Between two messages, when nothing of it is under way; what it has moves along."""
    each = started(1, config=AUTO)
    each.run(1, 10, [1])
    each.join("w1")
    assert each.core.service.clients[b"c"].head == "waiting for an idle mesh"
    each.run(1, 11, [10])
    assert len(each.hears("w0", m.Execute)) == 1, "what comes behind waits"
    finish(each)
    assert members(each) == (0, 1)
    assert set(each.table()) == {1, 10, 11}
    mesh = each.core.service.clients[b"c"].planner.mesh.number
    assert {entry.mesh for entry in each.table().values()} == {mesh}
    assert each.hears("w1", m.Execute)


def test_others_stay_as_they_are() -> None:
    """A mesh over all workers that is derived, or of a given size, does not move by itself."""
    for config in (None, RULES, {"mesh": {"data": 2}, **RULES}):
        each = started(2, config=config)
        before = members(each)
        each.join("w2")
        finish(each)
        assert members(each) == before


def test_a_grid_grows_when_it_can() -> None:
    """By as many workers as one more position of the axis takes; one worker alone changes nothing."""
    each = started(2, config=GRID)
    mesh = each.core.service.clients[b"c"].planner.mesh
    each.join("w2")
    assert each.core.service.clients[b"c"].planner.mesh is mesh
    each.join("w3")
    finish(each)
    grown = each.core.service.clients[b"c"].planner.mesh
    assert (grown.axes, grown.sizes, sorted(grown.members)) == (("data", "model"), (2, 2), [0, 1, 2, 3])


def test_too_few_workers_are_said() -> None:
    each = started(1)
    answer = configure(each, GRID)
    assert "{data: auto, model: 2} takes at least 2 workers, there is 1 worker" in answer.text
    each.join("w1")
    each.say("c", m.Configure(8, Config.from_plain(GRID).to_wire()))
    finish(each)
    (answer,) = each.hears("c", m.Answer)
    assert answer.facts == {"mesh": {"data": 1, "model": 2}}


def test_a_spare_is_not_grown_to() -> None:
    each = started(1, config=AUTO)
    each.join("s", spare=True)
    finish(each)
    assert members(each) == (0,)


def test_a_mark_is_taken_on_the_new_mesh_at_once() -> None:
    """A loss right after that would have what came since computed on the mesh before."""
    each = service(1, config=AUTO)
    settled_mark(each)
    each.join("w1", marks=True)
    finish(each)
    each.told.clear()
    pass_time(each, 0.01)
    (taken,) = each.hears("w1", m.TakeMark)
    assert taken.mesh == each.core.service.clients[b"c"].planner.mesh.number


def test_a_session_that_goes_back_to_a_smaller_mesh_grows_again() -> None:
    """The mark is of the time before the worker joined."""
    each = service(1, config=AUTO)
    mark = settled_mark(each)
    each.join("w1", marks=True)
    finish(each)
    assert members(each) == (0, 1)
    lose(each, "w1")
    (rewind,) = each.hears("c", m.Rewind)
    each.join("w2", marks=True)
    each.say("c", m.Resume(rewind.session, mark))
    assert members(each) in {(0,), (2,)}
    restore(each, mark)
    finish(each)
    assert members(each) == (0, 2)


def test_a_lost_worker_is_waited_for_at_the_same_size() -> None:
    each = service(2, config=AUTO)
    mark = settled_mark(each)
    lose(each, "w1")
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    assert each.core.service.clients[b"c"].head == "waiting for workers"
    each.join("w2", marks=True)
    restore(each, mark)
    assert members(each) == (0, 2)


def test_a_session_without_marks_goes_on_smaller() -> None:
    """Its tensors are lost with the worker; a mesh of a given size would fit no more."""
    each = started(2, config=AUTO)
    lose(each, "w1", returns=False)
    each.put(20)
    assert members(each) == (0,)
    each.join("w2")
    finish(each)
    assert members(each) == (0, 2)


def test_a_session_shrinks_when_a_worker_is_drained() -> None:
    """And grows again when another one joins."""
    each = started(2, config=AUTO, capabilities=("drain",))
    each.run(1, 10, [1])
    each.hello("t", "watcher")
    each.say("t", m.Drain(1, 0, True))
    finish(each)
    assert members(each) == (1,)
    assert [message.kind for message in each.hears("w0", m.Goodbye)] == [m.DRAINED]
    each.join("w2")
    finish(each)
    assert members(each) == (1, 2)
    assert set(each.table()) == {1, 10}


def test_a_drain_that_fails_gives_the_worker_back() -> None:
    """Sessions that had left it already come back."""
    each = started(2, config=AUTO, capabilities=("drain",))
    each.client("d")
    each.hears("d")
    each.say("d", m.Configure(7, Config.from_plain({**RULES, "mesh": {"data": 2}}).to_wire()))
    each.put(1, "d")
    each.hello("t", "watcher")
    each.say("t", m.Drain(1, 0, True))
    assert "client 2: its mesh (<config>) needs 2 workers" in each.hears("t", m.Failed)[0].text
    finish(each)
    assert members(each) == (0, 1)


def test_a_config_that_becomes_elastic_is_followed() -> None:
    """Of the whole service, by a reload; sessions that have no tensors yet get what there is then."""
    each = started(1)
    each.client("idle")
    each.event(Reload(Config.from_plain(AUTO)))
    finish(each)
    each.join("w1")
    finish(each)
    assert members(each) == (0, 1)
    each.put(1, "idle")
    assert members(each, "idle") == (0, 1)
