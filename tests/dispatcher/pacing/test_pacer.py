"""What sessions get of their workers' time, and how late, in virtual time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paced_workers import PacedWorkers, Program

from gt.dispatcher.pacing.pacer import BATCH_PATIENCE
from gt.dispatcher.pacing.priority import BATCH, INTERACTIVE, NORMAL, Entitlement
from gt.dispatcher.pacing.shares import rates

LENGTHS = st.sampled_from([0.001, 0.004, 0.02, 0.1])
"""Seconds of plans."""


def always(seconds: float) -> Iterator[float]:
    return itertools.repeat(seconds)


def mixed(seed: int, lengths: Iterable[float]) -> Iterator[float]:
    """Plans of these lengths in no order."""
    choose, lengths = random.Random(seed), [*lengths]
    return iter(lambda: choose.choice(lengths), None)


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(len(waits) * 0.99)]


def near(got: Iterable[float], due: Iterable[float], longest: float = 0.01) -> bool:
    """Whether shares are within 3 % of what is due, or two of the longest plans where those are more."""
    got, due = [*got], [*due]
    parts = [sum(got) * share / sum(due) for share in due]
    return all(abs(each - part) <= max(0.03 * part, 2 * longest) for each, part in zip(got, parts, strict=True))


@settings(max_examples=4, deadline=None)
@given(st.lists(st.lists(LENGTHS, min_size=1, max_size=3), min_size=2, max_size=4))
def test_principals_get_equal_time_however_unlike_their_plans(programs: list[list[float]]) -> None:
    """Device seconds count, not plans: who has long plans gets fewer of them. All of the worker's time is used."""
    service = PacedWorkers(1)
    made = [service.add(Program(n, (0,), mixed(n, each), f"user {n}")) for n, each in enumerate(programs)]
    service.run(20.0)
    assert near([each.seconds for each in made], [1] * len(made), max(map(max, programs)))
    assert sum(each.seconds for each in made) > 0.93 * 20


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(LENGTHS, st.sampled_from([1.0, 2.0, 5.0])), min_size=2, max_size=4), st.booleans())
def test_weights_hold(programs: list[tuple[float, float]], one_user: bool) -> None:
    """Between principals those that the service gives them, between programs of one principal those that they ask for."""
    service = PacedWorkers(1)
    made = []
    for n, (seconds, weight) in enumerate(programs):
        if not one_user:
            service.entitle(f"user {n}", Entitlement(weight))
        program = Program(n, (0,), always(seconds), "user" if one_user else f"user {n}")
        made.append(service.add(program, weight=weight if one_user else 1.0))
    service.run(20.0)
    assert near([each.seconds for each in made], [weight for _, weight in programs], max(programs)[0])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.01, 0.5, 1, 3, 100]), st.sampled_from([0, 0, 0.05, 0.3])), min_size=1, max_size=3
    )
)
def test_rates_divide_a_whole_by_weights_beside_what_is_reserved(parts: list[tuple[float, float]]) -> None:
    """Everybody has at least the reserved part; who would have had more by weight is as before beside others like that."""
    found = rates(parts)
    shares = [rate / sum(found) for rate in found]
    assert all(share >= reserved - 1e-9 for share, (_, reserved) in zip(shares, parts, strict=True))
    free = [(rate, weight) for rate, (weight, reserved) in zip(found, parts, strict=True) if not reserved]
    assert all(rate == weight for rate, weight in free)
    assert all(rate >= weight for rate, (weight, _) in zip(found, parts, strict=True))


def test_a_reserved_part_is_there_whenever_its_principal_has_work_and_is_others_before_and_after() -> None:
    """Half of the time for one of four principals with equal weights, also where it comes late and goes again."""
    service = PacedWorkers(1)
    service.entitle("owner", Entitlement(reserved=0.5))
    others = [service.add(Program(n, (0,), mixed(n, [0.001, 0.02]), f"user {n}")) for n in (1, 2, 3)]
    owner = service.add(Program(0, (0,), always(0.004), "owner"), at=10.0)
    service.run(10.0)
    assert near([each.seconds for each in others], [1, 1, 1], 0.02)
    before = [each.seconds for each in others]
    service.run(30.0)
    after = [each.seconds - was for each, was in zip(others, before, strict=True)]
    assert near([owner.seconds, *after], [3, 1, 1, 1], 0.02)
    service.leave(owner)
    service.run(32.0)
    assert sum(each.seconds for each in others) > sum(before) + sum(after) + 1.8


def test_another_weight_holds_at_once_and_owes_nothing_for_what_was() -> None:
    """A principal that gets three times the weight has three times the time from then on."""
    service = PacedWorkers(1)
    made = [service.add(Program(n, (0,), always(0.004), f"user {n}")) for n in (0, 1)]
    service.run(10.0)
    assert near([each.seconds for each in made], [1, 1])
    service.entitle("user 0", Entitlement(3.0))
    service.run(30.0)
    assert near([each.seconds for each in made], [5 + 15, 5 + 5])


@pytest.mark.parametrize("sessions", [1, 20])
def test_a_principal_that_floods_costs_another_little(sessions: int) -> None:
    """With plans no longer than its own, the 99th percentile of one that waits for each value is at most twice that alone."""
    think, latest = random.Random(2), {}
    for beside in (0, sessions):
        service = PacedWorkers(2)
        for n in range(beside):
            service.add(Program(n, (n % 2,), always(0.005), "floods"))
        client = service.add(
            Program(100, (0,), always(0.005), "honest", thinks=lambda: think.uniform(0.02, 0.1)), at=0.5
        )
        service.run(6.0)
        latest[beside] = p99(client.waits[5:])
    assert latest[sessions] <= 2 * latest[0]


def test_what_workers_answer_counts_in_their_time() -> None:
    """Who has fetched what takes a worker a second has a second less of plans there, beside somebody who always has some, too."""
    service = PacedWorkers(1)
    one, other = (service.add(Program(n, (0,), always(0.004), f"user {n}")) for n in (1, 2))
    service.run(1.0)
    service.pacer.answers(1, 10**9)
    service.pacer.answers(7, 10**9)  # of a mesh that is gone
    service.run(4.0)
    assert near([other.seconds - 1.0, one.seconds], [1, 1])


def test_a_class_is_not_more_urgent_than_its_principal_may_ask_for() -> None:
    """What a session says, and how it behaves, counts up to that; another principal's is as it was."""
    service = PacedWorkers(1)
    service.entitle("one", Entitlement(most=NORMAL))
    service.entitle("two", Entitlement(most=BATCH))
    waits = [
        service.add(Program(n, (0,), always(0.005), who, thinks=lambda: 0.01))
        for n, who in enumerate(["one", "two", "three"])
    ]
    says = service.add(Program(3, (0,), always(0.005), "one", thinks=lambda: 0.01), priority=INTERACTIVE)
    service.run(3.0)
    kinds = [service.pacer.sessions[each.number].kind for each in (*waits, says)]
    assert kinds == [NORMAL, BATCH, INTERACTIVE, NORMAL]


def test_a_principal_gets_no_more_by_more_programs_nor_a_program_by_more_sessions() -> None:
    """Two levels: users have equal shares, and programs of one user have equal parts of that."""
    service = PacedWorkers(1)
    alone = service.add(Program(0, (0,), always(0.002), "alone"))
    many = [service.add(Program(n, (0,), always(0.003), "many")) for n in range(1, 4)]
    sessions = [service.add(Program(n, (0,), always(0.001), "many", "one program")) for n in range(4, 9)]
    service.run(20.0)
    parts = [sum(each.seconds for each in sessions), *(each.seconds for each in many)]
    assert near([alone.seconds, sum(parts)], [1, 1])
    assert near(parts, [1] * 4)


@pytest.mark.parametrize("plan", [0.001, 0.004, 0.03, 0.1])
@pytest.mark.parametrize("sessions", [1, 8])
def test_an_interactive_client_waits_for_little_more_than_the_running_plan(plan: float, sessions: int) -> None:
    """Beside trainers that always have another plan, one that waits for each value of 5 ms has a 99th percentile of at most
    three times its own alone and the longest plan, without saying that it is interactive."""
    think = random.Random(1)
    latest = {}
    for beside in (0, sessions):
        service = PacedWorkers(1)
        for n in range(beside):
            service.add(Program(n, (0,), always(plan), f"trainer {n}"))
        client = service.add(
            Program(100, (0,), always(0.005), "client", thinks=lambda: think.uniform(0.05, 0.15)), at=0.5
        )
        service.run(10.0)
        latest[beside] = p99(client.waits[5:])
    assert latest[sessions] <= 3 * latest[0] + plan


def test_behaviour_makes_a_session_interactive_and_what_it_says_counts_more() -> None:
    """One that waits for each value is interactive; one with an ever full queue is not; neither is one that says so."""
    service = PacedWorkers(1)
    waits = service.add(Program(1, (0,), always(0.005), "one", thinks=lambda: 0.01))
    trains = service.add(Program(2, (0,), always(0.005), "one"))
    says = service.add(Program(3, (0,), always(0.005), "one", thinks=lambda: 0.01), priority=BATCH)
    service.run(5.0)
    kinds = [service.pacer.sessions[each.number].kind for each in (waits, trains, says)]
    assert kinds == [INTERACTIVE, NORMAL, BATCH]


def test_a_class_changes_no_share_but_that_of_batch() -> None:
    """Who says that all is urgent goes first and gets no more."""
    service = PacedWorkers(1)
    urgent = service.add(Program(1, (0,), always(0.01), "urgent"), priority=INTERACTIVE)
    normal = service.add(Program(2, (0,), always(0.01), "normal"), priority=NORMAL)
    service.run(20.0)
    assert near([urgent.seconds, normal.seconds], [1, 1])


def test_batch_takes_what_others_leave_and_is_not_starved() -> None:
    """Beside a saturating session it has a turn for each time of patience; beside an idle one it has all the rest."""
    service = PacedWorkers(1)
    service.add(Program(1, (0,), always(0.01), "normal"), priority=NORMAL)
    batch = service.add(Program(2, (0,), always(0.01), "batch"), priority=BATCH)
    service.run(30.0)
    assert 30 / (BATCH_PATIENCE + 0.1) - 2 < batch.runs < 30 / BATCH_PATIENCE + 2
    service = PacedWorkers(1)
    service.add(Program(1, (0,), always(0.01), "normal", thinks=lambda: 0.01), priority=NORMAL)
    batch = service.add(Program(2, (0,), always(0.001), "batch"), priority=BATCH)
    service.run(30.0)
    assert batch.seconds > 0.35 * 30


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 3), min_size=1), LENGTHS, st.sampled_from([None, 0.0, 0.03])),
        min_size=2, max_size=7,
    )
)  # fmt: skip
def test_nothing_starves_on_several_workers(programs: list[tuple[set[int], float, float | None]]) -> None:
    """Whatever meshes sessions have, each is served again and again, in at most a few rounds of the longest plans; and who waits,
    waits for something (`Pacer.check`)."""
    service = PacedWorkers(4)
    made = [
        service.add(
            Program(n, tuple(sorted(members)), always(seconds), f"user {n}",
                    thinks=None if pause is None else lambda pause=pause: pause)  # type: ignore[misc]
        )
        for n, (members, seconds, pause) in enumerate(programs)
    ]  # fmt: skip
    service.run(6.0)
    round_ = len(programs) * max(max(seconds, pause or 0, 0.01) for _, seconds, pause in programs)
    assert all(each.runs >= 6.0 / (4 * round_) - 1 for each in made), [each.runs for each in made]


def test_a_gang_is_not_starved_where_time_stands_still() -> None:
    """What is kept free for a gang is not held against it: two gangs, one of which waits for each value, beside sessions of
    one of their workers."""
    service = PacedWorkers(4)
    gangs = [
        service.add(Program(0, (0, 1, 2, 3), always(0.001), "closed", thinks=lambda: 0.0)),
        service.add(Program(1, (0, 1, 2, 3), always(0.004), "open")),
    ]
    singles = [service.add(Program(n, (0,), always(0.001), f"user {n}")) for n in (2, 3, 4)]
    service.run(10.0)
    assert min(each.seconds / len(each.members) for each in (gangs[1], *singles)) > 0.7 * 10 / 5


def test_a_plan_for_several_workers_is_not_overtaken_for_ever() -> None:
    """A gang beside sessions of its single workers has its share on each of them."""
    service = PacedWorkers(2)
    gang = service.add(Program(1, (0, 1), always(0.01), "gang"))
    singles = [service.add(Program(2 + n, (n,), always(0.01), f"single {n}")) for n in (0, 1)]
    service.run(20.0)
    assert gang.seconds / 2 > 0.4 * 20
    assert min(each.seconds for each in singles) > 0.4 * 20


def test_a_lone_session_is_released_at_once() -> None:
    """Nothing waits in the dispatcher that its depth allows: its worker is never without work."""
    for plan in (0.001, 0.003, 0.1):
        service = PacedWorkers(1)
        alone = service.add(Program(1, (0,), always(plan)))
        service.run(3.0)
        assert alone.seconds > 0.95 * 3


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), LENGTHS, st.floats(0, 2), st.floats(0, 2)), max_size=10)
)
def test_sessions_come_and_go(programs: list[tuple[set[int], float, float, float]]) -> None:
    """Nothing is left of those that have gone, and those that stay go on (`Pacer.check` after each event)."""
    service = PacedWorkers(6)
    stays = service.add(Program(100, (0, 1, 2, 3, 4, 5), always(0.01), "stays"))
    for n, (members, seconds, since, lasts) in enumerate(programs):
        program = service.add(Program(n, tuple(members), always(seconds), f"user {n % 3}"), at=since)
        service.at(since + lasts, service.leave, program)
    service.run(4.0)
    before = stays.runs
    service.run(5.0)
    assert stays.runs - before > 80
    assert [*service.pacer.lanes] == [100]
    assert len({*service.pacer.cells.of.values()}) == 1
    service.leave(stays)
    assert [service.pacer.sessions, service.pacer.lanes, service.pacer.cells.of] == [{}, {}, {}]
