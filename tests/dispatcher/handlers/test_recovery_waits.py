"""How long a session that has lost a worker waits for another one, and when it goes on with those that remain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from marking_dispatcher import (
    FAULT,
    lose,
    pass_time,
    restore,
    service,
    settled_mark,
    time_passes,
)
from measured_calls import counted_steps
from one_dispatcher import Service, fault_of

from gt.dispatcher.state.mark_wait import LEAST_SECONDS, SLOW_BYTES_PER_SECOND, MarkWait, Overdue
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.session_marks import MAX_IDLE_REWINDS
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.wire import messages as m

RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def number_of(each: Service, client: str = "c") -> int:
    found: int = each.core.service.clients[client.encode()].number
    return found


def going_back(workers: int, **facts: Any) -> tuple[Service, int]:
    """A session that has lost one of its two workers, and is restored on workers 0 and 2; its mark."""
    each = service(workers, config=RULES)
    if facts:
        each.join("s", marks=True, **facts)
    mark = settled_mark(each)
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(2, mark))
    assert each.hears("w2", m.RestoreMark) == each.hears("w0", m.RestoreMark)
    each.say("w0", m.MarkRestored(mark, 2, []))
    each.hears("c")
    return each, mark


@pytest.mark.parametrize("spare", [True, False])
def test_a_worker_that_lives_and_does_not_restore_is_not_waited_for_for_ever(spare: bool) -> None:
    """The session goes back once more, with another one or a spare in its place."""
    each, mark = going_back(3, spare=True) if spare else going_back(4)
    time_passes(each, LEAST_SECONDS - 1)
    assert not each.hears("c", m.Rewind)
    time_passes(each, 10)
    (rewind,) = each.hears("c", m.Rewind)
    assert (rewind.text, rewind.lost) == ("worker 2 has not restored what a mark of the session has within 60 s", 2)
    assert any("client 2: worker 2 has not restored" in line for line in each.log)
    each.say("w2", m.MarkRestored(mark, 2, []))
    each.say("c", m.Resume(rewind.session, mark))
    assert not each.hears("w2", m.RestoreMark), "it had its time"
    restore(each, mark)
    assert each.core.service.clients[b"c"].planner.mesh.members == (0, 3)
    each.run(1, 10, [1])
    assert each.hears("w0", m.Execute)
    assert len(each.core.service.workers) == 3, "it lives, and others may use it"


def test_a_session_is_told_when_only_a_worker_is_left_that_does_not_restore() -> None:
    """It loses its tensors, and goes on."""
    each, _ = going_back(3)
    each.run(1, 10, [1])
    time_passes(each, LEAST_SECONDS + 5)
    text = "worker 2 has not restored what a mark of the session has within 60 s; what it held is gone"
    assert each.hears("c", m.Unkept, m.Rewind) == [m.Unkept(text)]
    assert fault_of(each, 10) == ("WorkerLost", text)
    each.put(20)
    each.run(1, 21, [20])
    assert each.hears("w0", m.Execute) or each.hears("w2", m.Execute)


def test_a_worker_has_time_for_what_it_was_sent_before() -> None:
    """A plan of another session may take as long as it likes."""
    each = service(2)
    mark = settled_mark(each)
    each.client("d")
    each.put(1, "d")
    each.define(1, client="d")
    each.run(1, 10, [1], "d")
    lose(each, "w0", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    assert each.hears("w1", m.RestoreMark)
    each.hears("c")
    time_passes(each, 10 * LEAST_SECONDS)
    assert not each.hears("c", m.Unkept)
    each.done("w1")
    time_passes(each, LEAST_SECONDS - 1)
    assert not each.hears("c", m.Unkept)
    time_passes(each, 10)
    assert each.hears("c", m.Unkept)


def first_overdue(each: Service, table: dict[int, Entry]) -> tuple[float, int]:
    """The first time, on the whole seconds, at which a worker that never answers is overdue, and the most steps of one look."""
    wait, steps = MarkWait(0, table), 0
    found: list[Overdue | None] = [None]
    while found[-1] is None:
        steps = max(steps, counted_steps(lambda: found.append(wait.overdue([0], each.core.service))))
        each.core.service.now += 1
    assert found[-1] is not None
    assert each.core.service.now - 1 > found[-1].seconds
    return found[-1].seconds, steps


def test_large_sessions_have_more_time_to_be_restored() -> None:
    """Whose tensors are added up, a few in each look."""
    each = service(1)
    entry = each.table()[1]
    assert isinstance(entry, Entry)
    one = replace(entry, spec=spec(float32, (SLOW_BYTES_PER_SECOND // 4,)))
    lost = replace(one, fault=("WorkerLost", "it is gone"))
    assert first_overdue(each, {1: one, 2: one, 3: lost})[0] == LEAST_SECONDS + 2
    each.core.service.now = 0.0
    many = {n: replace(entry, spec=spec(float32, (1 + n,))) for n in range(20_000)}
    seconds, steps = first_overdue(each, {**many, -1: one, -2: one})
    assert seconds == LEAST_SECONDS + 2 + sum(each.spec.nbytes for each in many.values()) / SLOW_BYTES_PER_SECOND
    assert steps < 20_000


def test_a_worker_that_nobody_starts_again_is_replaced_if_there_is_another() -> None:
    """And if there is none the session loses what it had, as it is told."""
    each = service(2)
    mark = settled_mark(each)
    lose(each, "w0", returns=False)
    each.say("c", m.Resume(2, mark))
    assert each.hears("w1", m.RestoreMark)
    restore(each, mark)
    each.say("w1", m.MarkRestored(mark, 2, []))
    lose(each, "w1", returns=False)
    assert [type(told) for told in each.hears("c", m.Rewind, m.Unkept)][-1] is m.Unkept
    assert fault_of(each, 1)[0] == "WorkerLost"


REST: dict[str, Any] = {"mesh": {"data": "auto"}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def rest(config: Any = REST) -> tuple[Service, int]:
    """A service of three workers, whose session has tensor 1, cut in three, and a mark with it."""
    each = service(3, config=config)
    each.put(2, signal=("net",))
    each.done()
    return each, settled_mark(each)


def lose_patience(each: Service) -> None:
    """The service waits no longer for workers; everybody else lives."""
    until = each.now + each.core.patience + 1.0
    while each.now < until:
        for peer in [*each.core.peers]:
            each.say(peer.decode(), m.Ping())
        pass_time(each, 10.0)


@pytest.mark.parametrize("mesh", [{"data": "auto"}, None])
def test_a_session_goes_on_with_the_workers_that_remain(mesh: Any) -> None:
    """If nobody comes in place of the lost one: they read their parts from the files of all ranks."""
    each, mark = rest({**REST, "mesh": mesh} if mesh else {"sharding_config": REST["sharding_config"]})
    weights = [list(row) for row in each.core.service.clients[b"c"].planner.mesh.weights]
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    (told,) = each.hears("w0", m.RestoreParts)
    assert (told.mark, told.weights, told.tensors, told.more) == (mark, weights, [1, 2], False)
    assert [told.kinds[at][1:] for at in told.which] == [["R", "R"], ["S0", "S0"]]
    assert each.hears("w2", m.RestoreParts) == [told]
    client = each.core.service.clients[b"c"]
    assert client.planner.mesh.members == (0, 2)
    each.run(1, 10, [1])
    assert 10 not in each.table(), "first everything is there"
    each.told.clear()
    for worker in ("w0", "w2"):
        each.say(worker, m.MarkRestored(mark, client.number, []))
    assert set(each.table()) == {1, 2, 10}
    assert each.hears("w0", m.Execute)
    each.done()
    pass_time(each, 0.1)
    assert each.hears("w2", m.TakeMark), "from the former mark it would have to come here again"


def test_a_worker_that_is_started_again_is_waited_for() -> None:
    """The rest goes on only when the service waits no longer."""
    each, mark = rest()
    lose(each, "w1")
    each.say("c", m.Resume(number_of(each), mark))
    assert each.core.service.clients[b"c"].head == "waiting for workers"
    lose_patience(each)
    assert each.hears("w0", m.RestoreParts)


def test_a_mark_that_is_restored_on_the_rest_serves_once_more() -> None:
    """Another worker is lost before there is a mark on the smaller mesh: then even fewer go on."""
    each, mark = rest()
    lose(each, "w1", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    assert each.hears("w0", m.RestoreParts)
    lose(each, "w2", returns=False)
    each.say("c", m.Resume(number_of(each), mark))
    (told,) = each.hears("w0", m.RestoreParts)
    assert told.client == number_of(each) == 3
    restore(each, mark)
    each.say("w0", m.MarkRestored(mark, 3, []))
    each.run(1, 10, [1])
    assert each.hears("w0", m.Execute)


def test_what_needs_all_workers_is_said_with_what_it_needs() -> None:
    each, mark = rest({**REST, "mesh": {"data": 3}})
    lose(each, "w1")
    each.say("c", m.Resume(number_of(each), mark))
    lose_patience(each)
    kind, text = fault_of(each, 1)
    assert kind == "WorkerLost"
    assert "3 workers are needed" in text
    assert "takes 3 workers, there are 2" in text


def test_a_part_whose_file_cannot_be_read_is_looked_for_elsewhere() -> None:
    """Other ranks have replicas of it; only if they have not is it lost."""
    each, mark = rest()
    lose(each, "w1")
    each.join("w3", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    for worker in ("w0", "w2"):
        each.say(worker, m.MarkRestored(mark, 2, []))
    each.say("w3", m.MarkRestored(mark, 2, FAULT))
    (told,) = each.hears("w3", m.RestoreParts)
    assert not each.hears("w0", m.RestoreParts)
    assert all(before == after for _, before, after in told.kinds)
    each.say("w3", m.MarkRestored(mark, 2, []))
    each.run(1, 10, [1])
    assert each.hears("w3", m.Execute)


def test_a_session_that_ends_its_workers_is_not_tried_for_ever() -> None:
    each = service(1)
    for attempt in range(MAX_IDLE_REWINDS + 2):
        each.run(1, 10, [1])
        lose(each, f"w{attempt}")
        each.join(f"w{attempt + 1}", marks=True)
        if not each.hears("c", m.Rewind):
            break
        each.say("c", m.Resume(number_of(each), 0))
        each.put(1)
        each.define(1)
    assert attempt == MAX_IDLE_REWINDS + 1
    assert "worker 6 was lost" in fault_of(each, 1)[1]


def test_a_plan_at_which_workers_fail_by_themselves_is_tried_once_more() -> None:
    """A device that fails, or a bug: the second time the session is told, and goes on without what it had."""
    each = service(1)
    for attempt in range(2):
        each.run(1, 10, [1])
        each.say(f"w{attempt}", m.Goodbye("WorkerLost", "the device has failed"))
        each.join(f"w{attempt + 1}", marks=True)
        for told in each.hears("c", m.Rewind):
            each.say("c", m.Resume(told.session, 0))
            each.put(1)
            each.define(1)
    assert "the device has failed" in fault_of(each, 10)[1]
    each.put(20)
    each.run(1, 21, [20])
    assert each.hears("w2", m.Execute)


def test_a_session_that_says_its_mesh_needs_as_many_workers() -> None:
    """Where nobody starts another in the place of the lost one it is told at once."""
    each = service(2, config=RULES)
    each.put(2, signal=("net",))
    each.done()
    lose(each, "w1", returns=False)
    assert not each.hears("c", m.Rewind)
    assert fault_of(each, 2)[0] == "WorkerLost"
