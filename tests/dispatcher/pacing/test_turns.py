"""Who has the next turn: the order of those who wait, what finding it costs, and what becomes of plans on several workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paced_workers import PacedWorkers, Program

from gt.dispatcher.pacing.cells import Lane
from gt.dispatcher.pacing.learned_policy import service_policy
from gt.dispatcher.pacing.paced_session import PacedSession
from gt.dispatcher.pacing.pacer import DEPTH_NANOSECONDS, MAX_RANKED, Pacer
from gt.dispatcher.pacing.policy import Rank
from gt.dispatcher.pacing.priority import AUTO, BATCH, INTERACTIVE
from gt.dispatcher.pacing.run_time import RunTime
from gt.dispatcher.pacing.shares import Key, WorkerShares
from gt.dispatcher.pacing.turns import FairTurns
from gt.dispatcher.pacing.waiting_line import WaitingLine
from gt.dispatcher.pacing_simulator.figures import figures
from gt.dispatcher.pacing_simulator.programs import made
from gt.dispatcher.pacing_simulator.service import SimulatedService

KEYS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 2))
CHANGES = st.sampled_from(["wait", "urgent", "leave", "hide", "show", "charge", "back"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CHANGES, KEYS, st.integers(0, 200_000_000)), max_size=60))
def test_the_first_in_a_line_is_the_one_that_sorting_finds(changes: list[tuple[str, Key, int]]) -> None:
    """By its principal, its program and itself, whatever has moved since it began to wait, and whoever is passed over."""
    shares, line = WorkerShares(), WaitingLine[Lane]()
    lanes = {key: Lane(n, n, key) for n, key in enumerate(itertools.product("ab", "xyz", range(3)))}
    for key in lanes:
        shares.add(key, (1.0, 1.0, 1.0))
    for what, key, nanoseconds in changes:
        lane, path = lanes[key], shares.path(key)
        if what in ("wait", "urgent") and lane not in line.lanes:
            line.add(lane, path, urgent=what == "urgent")
        elif what == "leave" and lane in line.lanes:
            line.remove(lane)
        elif what == "hide" and lane in line.lanes and lane not in line.hidden:
            line.hide(lane)
        elif what == "show":
            line.show()
        elif what == "charge":
            shares.charge(key, nanoseconds)
        elif what == "back":
            line.moved_back(shares.correct(key, -nanoseconds))
        line.check()
        shown = [each for each in line.lanes if each not in line.hidden]
        assert line.head() is min(shown, key=line.order, default=None)


class LooksAgain(FairTurns):
    """Looks at all workers after each look at those where something has changed."""

    def next(self, now: float) -> Iterator[PacedSession]:
        """Nobody may have a turn who was not found before, but where workers had the depth already that several sessions have."""
        yield from super().next(now)
        before = self.cells.roomy
        self.touch(self.pacer.cells.of.values())
        for session in super().next(now):
            assert session.waits is not None
            assert all(cell.nanoseconds >= DEPTH_NANOSECONDS for cell in session.waits.cells)
            break
        self.cells.touch(before)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from([0.001, 0.006, 0.03]), st.sampled_from([None, None, 0.0, 0.02]),
            st.sampled_from([AUTO, INTERACTIVE, BATCH]), st.sampled_from("ab"),
        ),
        min_size=2, max_size=8,
    )
)  # fmt: skip
def test_nobody_could_go_where_nothing_has_changed(
    programs: list[tuple[int, float, float | None, str, str]],
) -> None:
    """So it is enough to look at workers where something has changed, or that had room left."""
    service = PacedWorkers(3)
    service.pacer.turns_of = LooksAgain(service.pacer)
    for n, (worker, seconds, pause, priority, principal) in enumerate(programs):
        thinks = None if pause is None else lambda pause=pause: pause
        program = Program(n, (worker,), itertools.repeat(seconds), principal, thinks=thinks)  # type: ignore[arg-type]
        service.add(program, priority=priority)  # type: ignore[arg-type]
    service.run(2.0)
    service.pacer.check()


def steps(policy: str, sessions: int, gangs: int = 0) -> int:
    """The most entries of heaps that are looked at for one finished plan and the turn after it, on two workers."""
    pacer, run_times, flights, orders = Pacer(), dict[int, RunTime](), list[tuple[int, int]](), itertools.count(1)
    chosen = service_policy(policy)
    if chosen is not None:
        pacer.choose(chosen)

    def pump(number: int, now: float) -> None:
        while pacer.admits(number, now):
            flights.append((number, next(orders)))
            pacer.released(*flights[-1], run_times[number], now)

    for number in range(sessions):
        members = (0, 1) if number < gangs else (number % 2,)
        pacer.add_mesh(number, members, number, f"user {number % 7}", number)
        run_times[number] = RunTime(5_000_000 + number)
        pump(number, 0.0)
    most = 0
    for turn in range(60):
        before = sum(cell.prompt.steps for cell in {*pacer.cells.of.values()})
        number, order = flights[turn]
        pacer.measured(number, order, [run_times[number].nanoseconds - 1000])
        pacer.finished(number, 1)
        pump(number, turn * 0.005)
        while pacer.due:
            for each in pacer.turns(turn * 0.005, 16):
                pump(each, turn * 0.005)
        most = max(most, sum(cell.prompt.steps for cell in {*pacer.cells.of.values()}) - before)
    assert len(pacer.waiting) > sessions - 10
    return most


@pytest.mark.parametrize("gangs", [0, 100])
def test_a_choice_costs_hardly_more_among_many(gangs: int) -> None:
    """The steps to find who is next among 2,000 sessions, also where sessions on both workers wait."""
    assert steps("fair", 2000, gangs) < 16 * 64
    assert steps("fair", 2000) < 2 * steps("fair", 200) + 64


def test_a_learned_policy_ranks_a_bounded_number() -> None:
    """However many sessions wait."""
    pacer, asked = Pacer(), list[int]()
    policy = service_policy("learned")
    assert policy is not None

    class Counted:
        def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
            asked.append(len(waiting))
            return policy.ranks(waiting, now)

    pacer.choose(Counted())
    for number in range(500):
        pacer.add_mesh(number, (0,), number, "user", number)
    for number in range(500):
        if pacer.admits(number, 0.0):
            pacer.released(number, number + 1, RunTime(6_000_000), 0.0)
    pacer.finished(0, 1)
    assert len([*pacer.turns(0.01, 4)]) == 4
    assert max(asked) == MAX_RANKED


def always(seconds: float) -> Iterator[float]:
    return itertools.repeat(seconds)


def test_a_gang_has_its_part_beside_single_programs_of_its_own_principal() -> None:
    """These could have each turn of their principal on one worker or the other, because it is hardly ever behind on both."""
    service = PacedWorkers(2)
    for n, (worker, principal, seconds) in enumerate(
        [(0, "one", 0.004), (0, "one", 0.02), (0, "two", 0.001), (1, "one", 0.02), (1, "two", 0.1), (1, "three", 0.004)]
    ):
        service.add(Program(n, (worker,), always(seconds), principal))
    gang = service.add(Program(9, (0, 1), always(0.05), "one"))
    service.run(20.0)
    assert gang.seconds / 2 > 0.8 * 20 / 6, "a third of its principal's half, or half of its third"
    assert min(sum(each.values()) for each in service.shares(hungry=False).values()) > 0.93 * 20


def test_overlapping_gangs_do_not_wait_for_each_other() -> None:
    """Of several that are each further behind than another one on one worker, and less far on another worker."""
    service = PacedWorkers(4)
    members = [(0, 1), (0, 1, 3), (0, 1, 2, 3), (3,), (0, 1), (0,), (0,)]
    thinks = {2: lambda: 0.03, 6: lambda: 0.0}
    made = [
        service.add(Program(n, each, always(0.001), f"user {n}", thinks=thinks.get(n)))
        for n, each in enumerate(members)
    ]
    service.run(5.0)
    assert min(made[n].seconds / len(made[n].members) for n in (0, 1, 4)) > 0.7 * 5 / 6
    assert made[2].runs > 0.5 * 5 / 0.034


def test_a_worker_that_is_kept_free_runs_what_is_over_in_time() -> None:
    """A gang waits for a long plan on one worker; meanwhile the other one runs short plans, and does not begin a long one."""
    pacer, orders = Pacer(), itertools.count(1)
    for number, members in enumerate([(0,), (1,), (1,), (0, 1)]):
        pacer.add_mesh(number, members, number, f"user {number}", number)
    long, middle, short = RunTime(100_000_000), RunTime(60_000_000), RunTime(20_000_000)
    pacer.released(0, next(orders), long, 0.0)
    pacer.released(1, next(orders), middle, 0.0)
    for number, run_time in ((3, short), (1, middle), (2, short)):
        assert not pacer.admits(number, 0.0, run_time.nanoseconds)
    pacer.finished(1, 1)
    went = []
    for number in pacer.turns(0.06, 9):
        went.append(number)
        if pacer.admits(number, 0.06, short.nanoseconds):
            pacer.released(number, next(orders), short, 0.06)
            pacer.admits(number, 0.06, short.nanoseconds)
    assert went == [2]
    pacer.check()


def test_workers_are_busy_beside_gangs_and_the_gangs_have_their_parts() -> None:
    """Of made programs with one trainer on two workers. Most of the rest is before all programs have begun."""
    for seed in (101, 105):
        service = SimulatedService(made(seed, 2, 3.0), 2, lambda heads: None)
        service.run(3.0)
        assert figures("fair", [service]).utilisation > 0.9
