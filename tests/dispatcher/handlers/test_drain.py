"""Draining a worker: its sessions leave it, each in the way that it can, and then it is told to end."""

from __future__ import annotations

from typing import Any

from marking_dispatcher import lose, pass_time, restore, service, settled_mark
from one_dispatcher import VECTOR, Service

from gt.dispatcher.handlers.drain import SETTLE_SECONDS
from gt.dispatcher.state.events import Publish
from gt.dispatcher.state.worker_duty import LEAVING, WorkersBefore, process_key
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.principals import OBSERVER, Origin, Principal

OWN_MESH: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
ALL: dict[str, Any] = {"sharding_config": {"net": {"strategy": "data_parallel"}}}


def operated(workers: int, *, config: Any = None, marks: bool = True) -> Service:
    """A service with an operator "t", and a client "c" with tensor 1."""
    each = service(workers, config=config, marks=marks)
    each.core.facts["capabilities"] = ["cancel", "drain"]
    each.hello("t", "watcher")
    each.told.clear()
    return each


def drain(each: Service, worker: int, *, begin: bool = True, watcher: str = "t") -> Any:
    """What the operator is answered, when workers that were told to end have done so."""
    depart(each)
    each.say(watcher, m.Drain(5, worker, begin))
    (answer,) = each.hears(watcher, m.Answer, m.Failed)
    assert answer.request == 5
    return answer


def depart(each: Service) -> None:
    """Workers that were told to end say so, and end."""
    for worker in list(each.core.service.workers.values()):
        if worker.released:
            (told,) = each.hears(worker.identity.decode(), m.Goodbye)
            assert told.kind == m.DRAINED
            each.say(worker.identity.decode(), m.Goodbye("", "it was drained"))


def members(each: Service, client: str = "c") -> tuple[int, ...]:
    planner = each.core.service.clients[client.encode()].planner
    return () if planner is None else planner.mesh.members


def take_marks(each: Service, *, settled: bool = True) -> int:
    """All workers write the mark that they are told to take, and the client takes note of it. Its number."""
    taken = {
        message.mark: message for worker in list(each.core.service.workers)
        for message in each.hears(worker.decode(), m.TakeMark)
    }  # fmt: skip
    (mark,) = taken
    for worker in list(each.core.service.workers):
        each.say(worker.decode(), m.MarkTaken(mark, [], 0))
    if settled:
        each.say("c", m.Settled(mark))
    return mark


def resume(each: Service, mark: int) -> m.Rewind:
    """The client goes back to a mark, and all workers of its mesh restore it."""
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    numbers = {worker.number: name.decode() for name, worker in each.core.service.workers.items()}
    for number in members(each):
        (told,) = each.hears(numbers[number], m.RestoreMark)
        assert told.mark == mark
        each.say(numbers[number], m.MarkRestored(told.mark, told.client, []))
    return rewind


def test_another_worker_takes_the_rank_from_a_fresh_mark() -> None:
    """The client hears the same as after a loss, and the worker is told to end as soon as nothing needs it."""
    each = operated(3, config=OWN_MESH)
    old = settled_mark(each)
    each.run(1, 10, [1])
    assert members(each) == (0, 1)
    answer = drain(each, 1)
    assert answer.facts == {"state": "leaving", "sessions": [[1, "it takes a mark"]]}
    assert not each.hears("w1", m.Goodbye)
    mark = take_marks(each)
    assert mark > old
    assert drain(each, 1, begin=False).facts == {"state": "gone", "sessions": []}
    rewind = resume(each, mark)
    assert (rewind.lost, members(each)) == (1, (0, 2))
    assert "drained" in rewind.text
    assert set(each.table()) == {1, 10}, "nothing is computed again"
    each.run(1, 11, [10])
    assert each.hears("w2", m.Execute)
    assert "info: worker 1 left: it was drained" in each.log


def test_a_program_that_does_not_take_note_is_not_waited_for() -> None:
    """It may be in a long computation of its own; it goes back to the mark before, if it must."""
    each = operated(2)
    first = settled_mark(each)
    (here,) = members(each)
    each.run(1, 10, [1])
    drain(each, here)
    take_marks(each, settled=False)
    assert drain(each, here, begin=False).facts["sessions"] == [[1, "its program has yet to take note of the mark"]]
    pass_time(each, SETTLE_SECONDS + 0.1)
    assert drain(each, here, begin=False).facts["state"] == "gone"
    resume(each, first)
    assert set(each.table()) == {1}


def test_a_spare_takes_the_place() -> None:
    """Also in a service whose sessions use all workers."""
    each = operated(2, config=OWN_MESH)
    each.join("s", spare=True, marks=True)
    drain(each, 0)
    mark = take_marks(each)
    assert drain(each, 0, begin=False).facts["state"] == "gone"
    resume(each, mark)
    assert members(each) == (2, 1)
    each.join("w3", marks=True)
    assert str(each.core.service.workers[b"w3"].duty) == "spare", "the service keeps as many spares as before"


def test_a_drained_spare_just_goes() -> None:
    each = operated(1)
    each.join("s", spare=True)
    assert drain(each, 1).facts["state"] == "leaving"
    assert drain(each, 1, begin=False).facts == {"state": "gone", "sessions": []}
    each.join("w2")
    assert str(each.core.service.workers[b"w2"].duty) == "in service"


def test_without_a_free_worker_a_session_moves_to_a_smaller_mesh() -> None:
    """Its tensors move. The worker waits for the mark after that: what the client has lent it comes back then."""
    each = operated(2, config=ALL)
    mark = settled_mark(each)
    each.run(1, 10, [1])
    assert drain(each, 1).facts["state"] == "leaving"
    assert members(each) == (0, 1)
    each.done()
    each.done()
    assert members(each) == (0,)
    assert drain(each, 1, begin=False).facts["sessions"] == [[1, "it takes a mark on its new mesh"]]
    (taken,) = each.hears("w0", m.TakeMark)
    each.say("w0", m.MarkTaken(taken.mark, [], 0))
    assert drain(each, 1, begin=False).facts["sessions"] == [[1, "its program has yet to take note of the mark"]]
    each.say("c", m.Settled(taken.mark))
    assert m.DropMark(mark) in each.told["w1"]
    assert drain(each, 1, begin=False).facts["state"] == "gone"
    assert set(each.table()) == {1, 10}
    assert each.hears("c", m.Rewind) == []


def test_a_session_without_marks_moves_its_tensors() -> None:
    """Also one with a mesh of its own, if there are workers enough."""
    each = operated(3, config=OWN_MESH, marks=False)
    drain(each, 0)
    each.done()
    each.done()
    assert set(members(each)) == {1, 2}
    assert drain(each, 0, begin=False).facts["state"] == "gone"
    each.run(1, 10, [1])
    assert each.hears("w2", m.Execute)


def test_a_worker_that_a_session_needs_stays() -> None:
    """The operator is told which session, and why. Nothing has moved, and the worker serves as before."""
    each = operated(2, config=OWN_MESH)
    answer = drain(each, 1)
    assert isinstance(answer, m.Failed)
    assert "worker 1 stays in service" in answer.text
    assert "client 1: its mesh (<config>) needs 2 workers, and without this one there would be 1" in answer.text
    assert drain(each, 1, begin=False).text == answer.text
    each.run(1, 10, [1])
    assert each.hears("w1", m.Execute)
    each.join("w2", marks=True)
    assert drain(each, 1).facts["state"] == "leaving", "now it can"
    take_marks(each)


def test_the_last_worker_stays_as_long_as_a_session_uses_it() -> None:
    each = operated(1)
    assert "there is no other worker" in drain(each, 0).text
    each.say("c", m.Goodbye("", "done"))
    drain(each, 0)
    assert drain(each, 0, begin=False).facts["state"] == "gone"


def test_what_a_config_needs_besides_a_mesh_is_found_on_the_way() -> None:
    """Rules that do not fit the remaining workers: the session stays, and so does the worker."""
    config = {"sharding_config": {"net": {"strategy": "data_parallel", "batch_split": 2}}}
    each = operated(2, config=config)
    drain(each, 1)
    answer = drain(each, 1, begin=False)
    assert isinstance(answer, m.Failed)
    assert "2 parts need as many workers" in answer.text
    assert members(each) == (0, 1)
    each.run(1, 10, [1])
    assert each.hears("w1", m.Execute)


def test_new_sessions_get_other_workers_meanwhile() -> None:
    each = operated(2)
    (here,) = members(each)
    drain(each, here)
    for n in range(3):
        each.client(f"d{n}")
        each.put(1, f"d{n}")
        assert members(each, f"d{n}") == (1 - here,)
    take_marks(each)


def test_a_fetch_is_answered_before_the_worker_goes() -> None:
    each = operated(2, marks=False)
    (here,) = members(each)
    each.say("c", m.Fetch(9, 1))
    (collect,) = each.hears(f"w{here}", m.Collect)
    drain(each, here)
    each.done()
    each.done()
    assert drain(each, here, begin=False).facts["sessions"] == [[-1, "the worker has yet to send fetched tensors"]]
    each.say(f"w{here}", m.Part(collect.request, [], False, bytes(VECTOR.nbytes)))
    assert drain(each, here, begin=False).facts["state"] == "gone"
    assert len(each.hears("c", m.Value)) == 1


def test_puts_on_their_way_arrive_first() -> None:
    each = operated(2)
    (here,) = members(each)
    each.put(2, bulk=True)
    drain(each, here)
    assert not each.hears(f"w{here}", m.TakeMark)
    each.say(f"w{here}", m.Landed(1, 2))
    take_marks(each)
    assert each.hears(f"w{here}", m.Goodbye)


def test_a_worker_that_is_lost_meanwhile_is_lost() -> None:
    """Its sessions go back as ever, and the operator is told."""
    each = operated(2)
    (here,) = members(each)
    drain(each, here)
    lose(each, f"w{here}")
    assert each.hears("c", m.Rewind)
    answer = drain(each, here, begin=False)
    assert "was lost before all sessions had left it" in answer.text


def test_a_session_on_its_way_back_may_need_the_worker() -> None:
    """It is on no mesh until its program has answered, and its mark takes as many workers as it had."""
    each = operated(2, config=OWN_MESH)
    mark = settled_mark(each)
    lose(each, "w0")
    each.join("w2", marks=True)
    (rewind,) = each.hears("c", m.Rewind)
    assert drain(each, 2).facts == {"state": "leaving", "sessions": [[rewind.session, "it goes back to a mark"]]}
    each.say("c", m.Resume(rewind.session, mark))
    assert sorted(members(each)) == [1, 2]
    restore(each, mark)
    assert "needs 2 workers" in drain(each, 2, begin=False).text
    each.run(1, 10, [1])
    assert each.hears("w2", m.Execute)


def test_who_may_drain_and_what() -> None:
    each = operated(2)
    assert "worker 7 is not there" in drain(each, 7).text
    assert "worker 0 is not drained" in drain(each, 0, begin=False).text
    each.origins["o"] = Origin(Principal("key eve", frozenset({OBSERVER})))
    each.hello("o", "watcher")
    each.hears("o")
    answer = drain(each, 0, watcher="o")
    assert "only an operator drains workers" in answer.text
    assert str(each.core.service.workers[b"w0"].duty) == "in service"
    each.say("c", m.Drain(5, 0, True))
    assert each.hears("c", m.Goodbye), "nobody else may say such a thing"


def test_monitors_see_it_go() -> None:
    each = operated(2)
    (here,) = members(each)
    each.say("t", m.Watch(t.SUMMARY, 0))
    each.event(Publish(1))
    each.hears("t")
    drain(each, 1 - here)
    depart(each)
    each.event(Publish(2))
    told = [t.decode_event(raw) for batch in each.hears("t", m.Events) for raw in batch.events]
    kinds = [event for event in told if isinstance(event, (t.DutyChanged, t.WorkerLost))]
    assert [type(event).__name__ for event in kinds] == ["DutyChanged", "WorkerLost"]
    assert kinds[0].duty == "leaving"


def test_a_worker_that_was_told_to_end_is_not_waited_for() -> None:
    """Also if it dies before it has said that it ends: nobody starts it again. Until then it is there for bulk data."""
    each = operated(2)
    (here,) = members(each)
    gone = f"w{1 - here}"
    drain(each, 1 - here)
    assert gone.encode() in each.core.service.workers
    lose(each, gone)
    assert not each.core.service.is_short
    assert drain(each, 1 - here, begin=False).facts["state"] == "gone"
    assert not each.hears("c", m.Rewind)


def test_a_drain_goes_on_at_the_next_dispatcher() -> None:
    """The process joins as another worker there, and serves nobody: when nobody can come back who may need it, it leaves."""
    each = Service(0, expected=1)
    facts = {"host": "a", "pid": 7}
    each.core.service.goes_on(WorkersBefore(1, 0, frozenset({process_key(facts)})))
    each.join("w0", marks=True, **facts)
    assert each.core.service.workers[b"w0"].duty is LEAVING
    assert not each.hears("w0", m.Goodbye), "another worker is waited for"
    each.join("w1", marks=True, host="a", pid=8)
    assert [told.kind for told in each.hears("w0", m.Goodbye)] == [m.DRAINED]
    assert each.core.service.workers_now() == WorkersBefore(1, 0, frozenset({process_key(facts)})), (
        "as long as it is there"
    )
    each.say("w0", m.Goodbye("", "it was drained"))
    assert each.core.service.workers_now() == WorkersBefore(1)


def test_another_worker_takes_a_rank_only_if_it_can_read_the_same_files() -> None:
    """Else the session moves to the rest, as its config allows: it would lose what its marks have."""
    each = Service(0, config={**ALL, "mesh": {"data": 2}}, expected=3, capabilities=("drain",))
    for number, folder in enumerate("aab"):
        each.join(f"w{number}", marks=True, mark_folder=folder)
    each.client(resends=True)
    each.put(1)
    each.done()
    each.hello("t", "watcher")
    each.told.clear()
    assert members(each) == (0, 1)
    answer = drain(each, 1)
    assert isinstance(answer, m.Answer)
    assert not each.hears("w0", m.TakeMark), "it does not go back to a mark"
    each.done()
    assert members(each) == (0, 2)
