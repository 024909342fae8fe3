"""Whoever asks for much waits for itself: turns of jobs, of new plans before workers, and of sessions that open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from builders import chain
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from one_dispatcher import NEG, VECTOR, Service

from gt.daemon import rate_limit
from gt.daemon.rate_limit import RateLimit
from gt.dispatcher.handlers import handshake
from gt.dispatcher.jobs.job_scheduler import Job, JobScheduler
from gt.dispatcher.jobs.round_robin import RoundRobin
from gt.dispatcher.pacing.thread_shares import OWED_SECONDS
from gt.dispatcher.state.events import Due, JobTurn, Lost
from gt.dispatcher.state.message_state import WAITING_TURN
from gt.dispatcher.state.shared_state import (
    LEAST_CREDITS,
    MAX_TO_COMPILE,
    MAX_TO_COMPILE_ALONE,
    MESH_CREDITS,
    WORKER_CREDITS,
)
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import pack_spec
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal

RUNS = MESH_CREDITS + 4
FACTS = {"host": "here", "namespace": "pid:[1]"}


def eager(each: Service, name: str, length: int, **facts: Any) -> None:
    """A session that wants a plan of so many instructions as soon as it is there."""
    each.client(name, **facts)
    each.put(1, name)
    each.define(1, chain(length), name)
    each.run(1, 10, [1], name)


def work(each: Service, until: Any = lambda: False, most: int = 100_000) -> int:
    """Turns, one by one, until then or until nothing is left to do; how many."""
    count = 0
    while each.core.busy and not until():
        for send in each.core.handle(JobTurn(), each.now):
            for peer in send.to:
                each.told.setdefault(peer.decode(), []).append(send.message)
        each.core.check()
        count += 1
        assert count < most, "it ends"
    return count


# jobs


@settings(max_examples=cases(100))
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=20))
def test_programs_take_turns_however_much_each_wants(drawn: list[tuple[int, int]]) -> None:
    """While two programs both have something to do, neither is ever more than one turn ahead of the other."""
    turns = JobScheduler(lambda *_, **__: None)
    done: Counter[int] = Counter()
    left: Counter[int] = Counter()

    def job(program: int, length: int) -> Iterator[None]:
        for _ in range(length):
            done[program] += 1
            yield
        done[program] += 1  # the turn in which it finds that it is over

    for number, (program, length) in enumerate(drawn):
        turns.add(Job(program, number, "a job", job(program, length), lambda _: None))
        left[program] += length + 1
    while turns:
        turns.work()
        turns.check()
        open_ = [program for program in left if done[program] < left[program]]
        assert not open_ or max(done[program] for program in open_) - min(done[program] for program in open_) <= 1
    assert done == left


def test_of_one_program_jobs_take_turns_too_and_those_who_leave_are_passed_over() -> None:
    """A short job behind a long one of the same program is over soon; nothing is worked out for who is gone."""
    turns = JobScheduler(lambda *_, **__: None)
    over: list[int] = []
    for client, length in ((1, 100), (2, 1), (3, 5)):
        turns.add(Job("p", client, "a job", iter(range(length)), lambda _, client=client: over.append(client)))
    turns.drop(3)
    for _ in range(4):
        turns.work()
    assert over == [2]
    turns.drop(1)
    assert not turns
    turns.check()


def test_a_job_that_fails_is_over_and_its_error_is_told() -> None:
    """Whoever waits goes on without what it would have found."""
    said: list[str] = []
    found: list[Any] = []
    turns = JobScheduler(lambda job, error: said.append(f"{job.what} for client {job.client}: {error}"))

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("no way")

    turns.add(Job("p", 7, "a way", broken(), found.append))
    while turns:
        turns.work()
    assert found == [None]
    assert said == ["a way for client 7: no way"]


@settings(max_examples=cases(100))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_a_ring_forgets_owners_who_have_nothing(drawn: list[tuple[str, bool]]) -> None:
    """Whatever is added and taken away, what is in the ring is what should be."""
    ring: RoundRobin[int] = RoundRobin()
    known: list[tuple[str, int]] = []
    for number, (owner, more) in enumerate(drawn):
        if more:
            ring.add(owner, number)
            known.append((owner, number))
        elif known:
            ring.remove(*known.pop(number % len(known)))
        ring.check()
        assert Counter(ring.owners()) == Counter({owner for owner, _ in known})
    if len({owner for owner, _ in known}) == 1:
        assert [ring.next() for _ in known] == [number for _, number in known]


# the dispatcher's thread


def test_a_known_plan_runs_at_once_while_a_hundred_sessions_wait_for_theirs() -> None:
    """A flood of definitions and plans holds up nobody whose plan is known: it is told to the worker in the same step."""
    each = Service(1)
    each.client("honest")
    each.put(1, "honest")
    each.define(1, NEG, "honest")
    each.run(1, 10, [1], "honest")
    each.done()
    each.idle = False
    for number in range(100):
        eager(each, f"e{number}", 32)
    each.hears("w0")
    each.run(1, 11, [10], "honest")
    each.say("honest", m.Fetch(1, 11))
    assert [type(said) for said in each.hears("w0")] == [m.Execute, m.Collect]
    assert each.core.busy, "the others' plans have yet to be made"


def test_a_new_plan_waits_for_a_turn_of_each_program_and_not_for_all_they_want() -> None:
    """Among programs that want long plans, one that wants a short one has it after a few turns of each."""
    each = Service(1)
    each.idle = False
    for number in range(20):
        eager(each, f"e{number}", 400)
    eager(each, "honest", 4)
    took = work(each, lambda: each.core.service.clients[b"honest"].inflight)
    # its put needs none, its definition two turns and its plan two: each turn of it comes after one of each of the others
    assert took <= 6 * 21


def test_the_sessions_of_one_program_share_its_turns() -> None:
    """Many sessions of one process get no more than another process' only one."""
    each = Service(1)
    each.idle = False
    for number in range(20):
        eager(each, f"e{number}", 300, **FACTS, pid=7)
    eager(each, "honest", 32, **FACTS, pid=8)
    assert work(each, lambda: each.core.service.clients[b"honest"].inflight) <= 20


def test_who_leaves_takes_its_work_along() -> None:
    """Nothing is worked out for a session that is gone, and nothing of it waits for its turn."""
    each = Service(1)
    each.idle = False
    for number in range(10):
        eager(each, f"e{number}", 200)
    work(each, lambda: each.core.service.order > 12)
    for number in range(10):
        each.say(f"e{number}", m.Goodbye("", ""))
    assert not each.core.busy
    assert not each.core.plan_selection.admission.ring


def test_who_rests_has_no_turn_while_others_have_something_to_do() -> None:
    rests = {"p"}
    turns = JobScheduler(lambda *_, **__: None, rests.__contains__)
    over: list[int] = []
    for client, program in enumerate("pqpr"):
        turns.add(Job(program, client, "a job", iter(range(2)), lambda _, client=client: over.append(client)))
    while turns.ready:
        turns.work()
        turns.check()
    assert over == [1, 3]
    rests.clear()
    while turns.ready:
        turns.work()
    assert over == [1, 3, 0, 2]


def test_who_has_used_more_than_its_share_of_the_thread_waits_until_that_is_paid_off() -> None:
    """Its messages wait in their order, and those of others pass; when the time has come that the core says, they are done."""
    each = Service(1)
    each.origins["flood"] = Origin(Principal("user 7", frozenset({USER})))
    for name in ("honest", "flood"):
        each.client(name)
        each.put(1, name)
        each.define(1, NEG, name)
        each.run(1, 10, [1], name)
        each.done()
    each.hears("w0")
    each.core.charge(10.0)  # the last event, which was a worker's word of the flood's run
    each.run(1, 11, [10], "flood")
    each.say("flood", m.Fetch(1, 11))
    assert each.core.service.clients[b"flood"].head is WAITING_TURN
    assert not each.core.busy
    assert not each.hears("w0")
    each.run(1, 11, [10], "honest")
    assert [said.client for said in each.hears("w0", m.Execute)] == [1]
    each.now = each.core.wakes_at
    assert each.now == OWED_SECONDS
    each.event(Due())
    assert [type(said) for said in each.hears("w0")] == [m.Execute, m.Collect]
    assert each.core.wakes_at > each.now


# what workers have before them


def test_a_worker_that_one_session_uses_has_more_to_compile() -> None:
    """So that it is never without work; once there is another session, little waits before that."""
    each = Service(1)
    each.client()
    each.put(1)
    for number in range(20):
        each.define(2 + number, chain(MAX_TO_COMPILE))
        each.run(2 + number, 10 + 1000 * number, [1])
    sent = each.hears("w0", m.Execute)
    assert len(sent) == MAX_TO_COMPILE_ALONE // MAX_TO_COMPILE
    each.client("d")
    each.put(1, "d")
    each.say("w0", m.Done(sent[-2].order))
    assert not each.hears("w0", m.Execute)
    each.say("w0", m.Done(sent[-1].order))
    assert len(each.hears("w0", m.Execute)) == 1


def test_a_worker_is_given_new_plans_only_as_fast_as_it_compiles_them() -> None:
    """Little waits before it; who waits here is sent on in turns, program by program, and whose plan is known passes all."""
    each = Service(1)
    length = MAX_TO_COMPILE // 2
    for number in range(8):
        eager(each, f"a{number}", length, **FACTS, pid=7)
    eager(each, "b", length, **FACTS, pid=8)
    sent = lambda: [said.client for said in each.hears("w0", m.Execute)]  # noqa: E731
    assert sent() == [1, 2]
    order: list[int] = []
    while each.core.plan_selection.admission.ring:
        each.done()
        order += sent()
    assert order.index(9) <= 1, "the other program has the next turn but one, whatever the first still wants"
    assert sorted(order) == list(range(3, 10))


def test_what_sessions_left_before_a_worker_counts() -> None:
    """Sessions that open, ask for much and leave do not pile up before a worker."""
    each = Service(1)
    for number in range(20):
        eager(each, f"e{number}", MAX_TO_COMPILE)
        each.say(f"e{number}", m.Goodbye("", ""))
    assert len(each.hears("w0", m.Execute)) == 1
    each.say("w0", m.Done(each.core.service.order))
    eager(each, "c", 4)
    assert len(each.hears("w0", m.Execute)) == 1


def test_who_waits_for_several_workers_is_not_overtaken_for_ever() -> None:
    """Two programs each keep one worker busy; a third that wants both gets its turn."""
    each = Service(2)
    for name in ("a", "b"):
        eager(each, name, MAX_TO_COMPILE)
    each.client("both")
    each.say("both", m.Configure(1, _mesh(2)))
    each.put(1, "both")
    each.define(1, chain(4), "both")
    each.run(1, 10, [1], "both")
    for round_ in range(6):
        for name in ("a", "b"):
            each.define(2 + round_, chain(MAX_TO_COMPILE + round_), name)
            each.run(2 + round_, 100 + round_, [1], name)
        worker = f"w{round_ % 2}"
        each.say(worker, m.Done(each.core.service.order))
    client = each.core.service.clients[b"both"]
    assert client.arrived == 2, "its put and its run have gone out"


def _mesh(size: int) -> dict[str, Any]:
    from gt.sharding.config import Config

    return Config.from_plain({"mesh": {"data": size}}).to_wire()


@pytest.mark.parametrize("sessions", [1, 8, 40])
def test_the_more_sessions_share_a_worker_the_less_each_has_before_it(sessions: int) -> None:
    """So a known plan waits for about as much, however many there are; and alone one may be far ahead."""
    each = Service(1)
    for number in range(sessions):
        name = f"c{number}"
        each.client(name)
        each.put(1, name)
        each.define(1, NEG, name)
        each.done()
    for number in range(sessions):
        for n in range(RUNS):
            each.run(1, 10 + n, [1], f"c{number}")
    allowed = [max(LEAST_CREDITS, min(MESH_CREDITS, WORKER_CREDITS // (n + 1))) for n in range(sessions)]
    assert len(each.core.service.issued) == sum(allowed), "each as much as was fair when it began"
    while each.core.service.issued:
        each.say("w0", m.Done(max(each.core.service.issued)))
    assert all(client.credited == client.arrived for client in each.core.service.clients.values())


def test_a_lost_worker_holds_up_no_new_plan() -> None:
    """What it had before it is gone with it: who waited goes on elsewhere."""
    each = Service(2)
    for name in ("a", "b", "c", "d"):
        eager(each, name, MAX_TO_COMPILE)
    assert each.core.plan_selection.admission.ring
    each.event(Lost(b"w0", "killed"))
    while each.core.service.issued:
        each.done()
    each.put(3, "d")
    each.run(1, 50, [3], "d")
    each.done()
    assert not each.core.plan_selection.admission.ring
    assert each.table("d")[50 + MAX_TO_COMPILE - 1].fault is None


# sessions


@settings(max_examples=cases(200))
@given(
    st.integers(1, 5), st.floats(0.5, 20), st.lists(st.floats(0, 2), min_size=1, max_size=60), st.integers(1, 5)
)  # fmt: skip
def test_a_rate_is_kept_in_every_stretch_of_time(burst: int, rate: float, pauses: list[float], programs: int) -> None:
    """Of each never more than `burst` and `a_second`; who waits as long as it is told is let in."""
    each = RateLimit(burst, rate)
    now, taken = 0.0, {n: list[float]() for n in range(programs)}
    for turn, pause in enumerate(pauses):
        now += pause
        whose = turn % programs
        wait = each.wait(whose, now)
        if wait == 0:
            each.take(whose, now)
            taken[whose].append(now)
        else:
            assert wait <= 1 / rate + 1e-9
            assert each.wait(whose, now + wait + 1e-9) < 1e-6
    for times in taken.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + rate * (times[last] - times[first]) + 1 + 1e-6


def test_a_program_that_opens_sessions_without_end_is_told_and_others_are_not() -> None:
    """It is told how long to wait, its other sessions go on, and after that time it may come again."""
    each = Service(1)
    burst, rate = handshake.PROGRAM_RATE
    for number in range(burst):
        each.client(f"a{number}", **FACTS, pid=7)
        each.say(f"a{number}", m.Goodbye("", ""))
    each.hello("late", "client", bulk=b"", **FACTS, pid=7)
    (goodbye,) = each.hears("late")
    assert goodbye.kind == "SessionError"
    assert goodbye.text.startswith(
        f"too many sessions: of this program {burst} may open at once, then {rate:g} a second"
    )
    assert f"try again in {1 / rate:.1f} s" in goodbye.text
    each.client("other", **FACTS, pid=8)
    each.now += 1 / rate
    each.client("later", **FACTS, pid=7)


def test_what_is_remembered_of_programs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names are made up."""
    monkeypatch.setattr(rate_limit, "MAX_KEYS", 10)
    rate = RateLimit(2, 1.0)
    for number in range(1000):
        rate.take(number, number / 100)
        assert len(rate.spent) <= 10
    assert rate.wait(999, 10.0) == 0
    rate.take(999, 10.0)
    assert rate.wait(999, 10.0) > 0


def test_a_put_of_a_session_needs_no_turn() -> None:
    """Nor does a fetch of it: what is no new plan is acted on as it comes, also while there is much to be worked out."""
    each = Service(1)
    each.idle = False
    for number in range(10):
        eager(each, f"e{number}", 1000)
    each.client("c")
    each.hears("w0")
    each.say("c", m.Put(1, pack_spec(VECTOR), [], False, bytes(16)), m.Fetch(1, 1))
    assert [type(said) for said in each.hears("w0")][-2:] == [m.Store, m.Collect]
    assert each.core.busy


def test_a_definition_read_in_turns_is_what_it_would_be_at_once() -> None:
    """Also when its session is cancelled or dropped in the middle of it."""
    each = Service(1, capabilities=("cancel",))
    each.idle = False
    each.client("c")
    each.define(1, chain(100), "c")
    work(each, most=50)
    known = each.core.service.clients[b"c"].segments[1]
    assert pack_segment(known) == pack_segment(chain(100))  # type: ignore[arg-type]
    each.define(2, chain(50), "c")
    each.core.handle(JobTurn(), 0.0)
    each.hello("t", "watcher")
    each.say("t", m.Cancel(5, 1))
    work(each)
    assert 2 in each.core.service.clients[b"c"].segments, "it is no work"
