"""Runs during which workers end: they are tried once more, and then refused, and nobody else pays for that."""

from __future__ import annotations

import pytest
from builders import Lines, one
from marking_dispatcher import lose, pass_time, restore, service, settled_mark
from one_dispatcher import VECTOR, fault_of

from gt.dispatcher.state.session_marks import MAX_FAILURES, MAX_IDLE_REWINDS
from gt.ir.instruction import Segment
from gt.wire import messages as m
from gt.wire.shared_memory.running_plan import RunningPlan

EXP = one("exp", VECTOR)


class Killing:
    """A service of one worker, which is started again whenever it ends. Client "c" has segment 1, `neg`, and 2, `exp`."""

    def __init__(self, *others: str) -> None:
        self.service = each = service(1)
        self.worker = 0
        each.define(2, EXP)
        for other in others:
            each.client(other, resends=True)
            each.put(1, other)
            each.define(1, client=other)
        each.done()
        each.told.clear()

    @property
    def name(self) -> str:
        return f"w{self.worker}"

    def number(self, client: str = "c") -> int:
        found: int = self.service.core.service.clients[client.encode()].number
        return found

    def hears(self, *kinds: type) -> list[type]:
        return [type(told) for told in self.service.hears(self.name, *kinds)]

    def next_worker(self) -> None:
        self.worker += 1
        self.service.join(self.name, marks=True)

    def ends_at(self, order: int, client: str = "c", *, says: bool = False) -> None:
        """The worker ends while it computes a plan; it `says` goodbye if it fails by itself."""
        self.service.running[self.name.encode()] = RunningPlan(order, self.number(client))
        self.ends(says=says)

    def ends(self, *, says: bool = False) -> None:
        if says:
            self.service.say(self.name, m.Goodbye("WorkerLost", "the device has failed"))
        else:
            lose(self.service, self.name)
        self.next_worker()

    @property
    def order(self) -> int:
        """The number of the last plan or put."""
        return self.service.core.service.order

    def resumes(self, mark: int = 0, client: str = "c") -> bool:
        """A client goes back to a mark, and from the beginning it sends again what the service began with. Whether it has to."""
        rewinds = self.service.hears(client, m.Rewind)
        for told in rewinds[-1:]:
            self.service.say(client, m.Resume(told.session, mark))
            if mark:
                restore(self.service, mark)
            else:
                self.service.put(1, client)
                self.service.define(1, client=client)
                if client == "c":
                    self.service.define(2, EXP)
        return bool(rewinds)


@pytest.mark.parametrize("says", [False, True])
def test_a_run_that_ends_two_workers_is_refused(says: bool) -> None:
    """What depends on it has an error with lines and shapes, and everything else of the session is computed: it ends, and it
    fails by itself."""
    killing = Killing()
    each = killing.service
    for _ in range(MAX_FAILURES):
        each.run(1, 10, [1])
        each.run(2, 11, [1])
        each.run(1, 12, [11])
        killing.ends_at(killing.order - 1, says=says)
        assert killing.resumes()
    each.run(1, 10, [1])
    each.run(2, 11, [1])
    each.run(1, 12, [11])
    each.run(2, 13, [1])
    assert len(each.hears(killing.name, m.Execute)) == 2, "the first and the last"
    for tensor in (11, 12):
        kind, text = fault_of(each, tensor)
        assert kind == "PlanRefused"
        assert "2 workers ended while they computed these instructions" in text
        assert "exp of f32[4], which gives f32[4], at model.py:1" in text
        assert text.count("\n") == 1
    assert set(each.table()) == {1, 10, 11, 12, 13}
    each.say("c", m.Fetch(5, 10))
    assert each.hears(killing.name, m.Collect)
    assert each.core.service.counters.plans_refused == 1
    assert len([line for line in each.log if line.startswith("error: refused a plan of client")]) == 1


def test_a_worker_that_ends_by_chance_costs_nothing() -> None:
    """Each time at another run, or at one that was computed in between: nothing is refused."""
    killing = Killing()
    each = killing.service
    for at in (0, 1, 0, 2, 0, 1):
        for base in (10, 11, 12):
            each.run(2, base, [1])
        first = killing.order - 2
        killing.ends_at(first + at)
        assert killing.resumes()
    assert set(each.table()) == {1}
    assert each.core.service.counters.plans_refused == 0


def test_what_was_reported_as_computed_begins_anew() -> None:
    """Also if the next loss tells nothing."""
    killing = Killing()
    each = killing.service
    for _ in range(2):
        each.run(2, 11, [1])
        killing.ends_at(killing.order)
        assert killing.resumes()
        each.run(2, 11, [1])
        each.done()
        each.run(1, 12, [1])
        killing.ends()
        assert killing.resumes()
    each.run(2, 11, [1])
    assert each.hears(killing.name, m.Execute)


def test_positions_hold_across_a_mark() -> None:
    """A session that goes back to a mark counts on from there; what it refused it refuses again until a mark has it."""
    killing = Killing()
    each = killing.service
    each.run(1, 10, [1])
    each.done()
    mark = settled_mark(each)
    for _ in range(2):
        each.run(1, 20, [1])
        each.run(2, 21, [1])
        killing.ends_at(killing.order)
        assert killing.resumes(mark)
    for _ in range(2):
        each.run(1, 20, [1])
        each.run(2, 21, [1])
        each.run(1, 22, [1])
        assert fault_of(each, 21)[0] == "PlanRefused"
        killing.ends_at(killing.order)
        assert killing.resumes(mark)
    each.run(1, 20, [1])
    each.run(2, 21, [1])
    each.run(1, 22, [1])
    assert fault_of(each, 22)[0] == "PlanRefused"
    assert each.core.service.counters.plans_refused == 4
    assert len([line for line in each.log if line.startswith("error: refused a plan")]) == 2, "once for each of two"


def test_those_who_share_the_worker_only_go_back() -> None:
    """However often, and also where the device fails: it was another session's plan."""
    killing = Killing("d")
    each = killing.service
    each.run(1, 50, [1], "d")
    each.done()
    for attempt in range(MAX_IDLE_REWINDS + 2):
        each.run(2, 10 + attempt, [1])
        killing.ends_at(killing.order, says=attempt % 2 > 0)
        assert killing.resumes(client="d")
        each.run(1, 50, [1], "d")
        assert killing.hears(m.Execute), "it was issued"
        killing.resumes()
        for earlier in range(attempt):
            each.run(1, 10 + earlier, [1])
    recovery = each.core.service.clients[b"d"].recovery
    assert (recovery.idle, recovery.failures) == (0, 0)
    assert recovery.resends
    assert not each.hears("d", m.Unkept)


def test_a_session_is_told_that_it_was_its_plan() -> None:
    killing = Killing("d")
    each = killing.service
    each.run(2, 11, [1])
    killing.ends_at(killing.order)
    (mine,), (other,) = each.hears("c", m.Rewind), each.hears("d", m.Rewind)
    assert mine.text == f"{other.text}; it was computing a plan of this session"
    assert any("while it computed a plan of client 1 (order 3)" in line for line in each.log)


def test_who_has_left_is_nobody_else() -> None:
    """A plan of a session that has ended, or has gone back since, counts for none of those that are there."""
    killing = Killing("d")
    each = killing.service
    each.run(1, 10, [1], "d")
    before = killing.number()
    each.running[killing.name.encode()] = RunningPlan(killing.order + 7, before + 1000)
    killing.ends(says=True)
    assert killing.resumes()
    recovery = each.core.service.clients[b"c"].recovery
    assert (recovery.idle, recovery.failures, recovery.fatal_runs.by_position) == (0, 0, {})


def test_a_plan_that_is_not_known_counts_as_a_failure_of_its_session() -> None:
    """A GPU computes by itself: whose plan it was is known, and not which."""
    killing = Killing("d")
    each = killing.service
    for _ in range(MAX_FAILURES):
        each.run(2, 11, [1])
        killing.ends_at(0, says=True)
        killing.resumes()
        assert killing.resumes(client="d")
    assert "the device has failed" in fault_of(each, 11)[1]
    assert each.core.service.clients[b"d"].recovery.resends


def test_a_definition_is_known_after_two_refused_runs() -> None:
    """Of the same instructions the next run is tried once, and from then on none is: a loop would end a worker for each turn."""
    killing = Killing()
    each = killing.service

    def runs() -> None:
        for base in (20, 21, 22, 23):
            each.run(2, base, [1])

    runs()
    ends = 0
    while killing.hears(m.Execute):
        first = next(iter(each.core.service.issued))
        killing.ends_at(first)
        ends += 1
        assert killing.resumes()
        each.done()
        killing.hears()
        runs()
    assert ends == 3
    texts = [fault_of(each, base)[1] for base in (20, 21, 22, 23)]
    assert "2 workers ended" in texts[0]
    assert (
        "a worker ended while it computed these instructions (worker 2 was lost (its process ended)), as other"
        in texts[1]
    )
    assert "in each of 2 earlier runs" in texts[2]
    assert texts[3] == texts[2]
    each.run(1, 30, [1])
    assert killing.hears(m.Execute), "others are computed"
    killing.ends_at(killing.order)
    assert killing.resumes()
    runs()
    assert not killing.hears(m.Execute), "it stays so when the session goes back"


def test_many_fatal_runs_are_no_reason_to_give_up() -> None:
    """Each is refused after two attempts, and the session comes further with each."""
    killing = Killing()
    each = killing.service
    count = MAX_IDLE_REWINDS + 1

    def runs() -> None:
        for number in range(3, 3 + count):
            each.define(number, EXP)
            each.run(number, 10 * number, [1])

    runs()
    for _ in range(2 * count):
        killing.ends_at(next(order for order in each.core.service.issued if order > killing.order - count))
        assert killing.resumes(), "not given up"
        each.done()
        killing.hears()
        runs()
    assert not killing.hears(m.Execute)
    assert {fault_of(each, 10 * number)[0] for number in range(3, 3 + count)} == {"PlanRefused"}


def test_a_silent_worker_is_one_that_ended() -> None:
    killing = Killing()
    each = killing.service
    for _ in range(2):
        each.run(2, 11, [1])
        each.core.service.workers[killing.name.encode()].facts.update(supervised=True, watched=True)
        each.running[killing.name.encode()] = RunningPlan(killing.order, killing.number())
        each.core.service.clients[b"c"].facts["watched"] = True
        pass_time(each, 100.0)
        killing.next_worker()
        assert killing.resumes()
    each.run(2, 11, [1])
    kind, text = fault_of(each, 11)
    assert kind == "PlanRefused"
    assert "no sign of life" in text


def long(instructions: int) -> Segment:
    lines = Lines()
    last = lines.input(4)
    for at in range(instructions):
        last = lines.op("neg", last, signal=(f"layer{at}",))
    return lines.segment(last)


def test_an_error_names_at_most_some_lines() -> None:
    killing = Killing()
    each = killing.service
    for _ in range(2):
        each.define(3, long(500))
        each.run(3, 1000, [1])
        killing.ends_at(killing.order)
        assert killing.resumes()
    each.define(3, long(500))
    each.run(3, 1000, [1])
    text = fault_of(each, 1499)[1]
    assert "neg of f32[4], which gives f32[4], at " in text
    assert text.count("\n") <= 14
    assert text.endswith("  and others, of 500 instructions in all")
