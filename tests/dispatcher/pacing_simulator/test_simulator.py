"""What holds of a simulated service whatever the policy, and what the policy of the service gives."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.pacing_simulator.figures import PolicyFigures, figures, jain, table
from gt.dispatcher.pacing_simulator.policies import POLICIES
from gt.dispatcher.pacing_simulator.programs import PLANS_AHEAD, SimulatedProgram, Step, Steps, fetcher, made, trainer
from gt.dispatcher.pacing_simulator.service import WAY_SECONDS, SimulatedService

NAMES = st.sampled_from(sorted(POLICIES))
STEPS = st.lists(
    st.builds(
        Step, st.integers(0, 2), st.sampled_from([0.0002, 0.003, 0.02]), st.sampled_from([None, None, 0.0, 0.01])
    ),
    min_size=1,
    max_size=30,
)
MEMBERS = st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])


def finite(number: int, members: tuple[int, ...], steps: list[Step]) -> SimulatedProgram:
    return SimulatedProgram(number, "job", f"user {number % 2}", members, lambda: iter(steps))


@settings(max_examples=60, deadline=None)
@given(NAMES, st.lists(st.tuples(MEMBERS, STEPS), min_size=1, max_size=5))
def test_each_plan_is_done_once_and_no_worker_runs_two(
    name: str, drawn: list[tuple[tuple[int, ...], list[Step]]]
) -> None:
    """Also where plans are for several workers: these begin together, and nothing waits for ever."""
    service = SimulatedService([finite(n, *each) for n, each in enumerate(drawn)], 3, POLICIES[name])
    while service.events:
        service.step()
        service.pacer.check()
    assert [each.finished for each in service.sessions.values()] == [len(steps) for _, steps in drawn]
    assert not service.pacer.waiting
    by_worker = defaultdict(list)
    for worker, begin, end, number in service.spans:
        by_worker[worker].append((begin, end, number))
    for spans in by_worker.values():
        assert all(end <= begin for (_, end, _), (begin, _, _) in itertools.pairwise(sorted(spans)))
    for number, (members, steps) in enumerate(drawn):
        mine = [[span[:2] for span in by_worker[member] if span[2] == number] for member in members]
        assert all(each == mine[0] for each in mine)
        assert [end - begin for begin, end in mine[0]] == pytest.approx([step.seconds for step in steps])


@settings(max_examples=20, deadline=None)
@given(NAMES, st.lists(st.sampled_from([0.0005, 0.004, 0.03]), min_size=1, max_size=5))
def test_a_worker_idles_only_while_it_is_told(name: str, lengths: list[float]) -> None:
    """While there is something to run, it runs, but for the two messages between one plan and the next."""
    programs = [
        SimulatedProgram(n, "trainer", n, (0,), lambda each=each: iter([Step(0, each)] * 2 * PLANS_AHEAD), hungry=True)
        for n, each in enumerate(lengths)
    ]
    service = SimulatedService(programs, 1, POLICIES[name])
    while service.events:
        service.step()
    spans = [(0.0, 0.0), *sorted((begin, end) for _, begin, end, _ in service.spans)]
    assert all(begin - end <= 2 * WAY_SECONDS + 1e-9 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_who_shares_with_nobody_has_no_index_of_fairness() -> None:
    """The table shows none, rather than a perfect one."""
    service = SimulatedService([finite(0, (0,), [Step(0, 0.01)])], 1, POLICIES["fair"])
    service.run(1.0)
    found = figures("fair", [service])
    assert found.jain is None
    assert table([found]).splitlines()[1].split()[3] == "-"


def simulated(name: str, seconds: float) -> PolicyFigures:
    services = []
    for seed in (1, 2):
        services.append(SimulatedService(made(seed, 2, seconds), 2, POLICIES[name]))
        services[-1].run(seconds)
        services[-1].pacer.check()
    return figures(name, services)


def test_the_service_is_fairer_than_a_queue_and_as_busy() -> None:
    """On made programs: by far more equal time for principals, no less work, and earlier fetches."""
    fair, fifo = simulated("fair", 3.0), simulated("fifo", 3.0)
    assert fair.jain is not None
    assert fifo.jain is not None
    assert fair.jain > max(0.9, fifo.jain + 0.1)
    assert fair.waits["fetcher"].mean < fifo.waits["fetcher"].mean
    assert fair.utilisation > fifo.utilisation - 0.05


def test_one_seed_makes_one_table() -> None:
    """Every policy is deterministic, and so are made programs."""
    once = [simulated(name, 0.5) for name in POLICIES]
    assert table(once) == table([simulated(name, 0.5) for name in POLICIES])


def test_policies_are_what_their_names_say() -> None:
    """Two with endless plans, of 1 and of 20 ms: equal time, equal turns, or the short ones alone; and one that fetches."""
    programs = [
        SimulatedProgram(0, "short", "one", (0,), again(trainer(0.001)), hungry=True),
        SimulatedProgram(1, "long", "two", (0,), again(trainer(0.02)), hungry=True),
        SimulatedProgram(2, "fetcher", "three", (0,), again(fetcher(0.002, 0.02)), begins=0.5),
    ]  # fmt: skip
    got, fetches = {}, {}
    for name, policy in POLICIES.items():
        service = SimulatedService(programs, 1, policy)
        service.run(10.0)
        shares = service.shares(hungry=True)[0]
        got[name], fetches[name] = jain([shares["one"], shares["two"]]), figures(name, [service]).waits["fetcher"].mean
    assert got["fair"] > 0.99
    assert all(got[name] < 0.7 for name in ("fifo", "round_robin", "sjf"))
    assert fetches["fifo"] > fetches["round_robin"] > fetches["fair"]
    assert fetches["sjf"] > 1.0
    assert max(fetches["priority"], fetches["mlfq"]) < 0.5 * fetches["fifo"]


def again(steps: Steps) -> Callable[[], Iterator[Step]]:
    return lambda: steps(random.Random(1))


def test_a_request_that_is_not_done_counts_with_what_it_has_waited() -> None:
    """So that a policy does not look good by starving."""

    def steps() -> Iterator[Step]:
        return iter([Step(0, 0.5, 0.0), Step(0, 2.0, 0.1)])

    service = SimulatedService([SimulatedProgram(0, "job", "one", (0,), steps)], 1, POLICIES["fair"])
    service.run(1.0)
    first, second = service.requests()["job"]
    assert (first.done, second.done) == (True, False)
    assert (first.seconds, second.seconds) == pytest.approx((0.5, 0.4), abs=3 * WAY_SECONDS)
