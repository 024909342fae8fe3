"""Each rule speaks where it should, names file and line, and keeps silent where it should not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import event_samples as e
import pytest

from gt.monitor.advice import RULES, Advice, advise, count, percent, seconds, size
from gt.monitor.findings import Findings, gather
from gt.wire import telemetry as t

MS = e.MS


def steps(number: int) -> Iterator[int]:
    """Times at which the steps of a loop begin."""
    return iter(range(e.START, e.START + 20 * MS * number, 20 * MS))


def fetching(runs: int, fetches: int) -> list[t.Event]:
    out: list[t.Event] = [e.plan_described(members=[0])]
    for order, at in enumerate(steps(runs)):
        out += [e.run(at, order=order), e.plan_slice(at, order=order)]
        if order < fetches:
            out.append(e.fetched(at + MS))
    return out


def futures(runs: int) -> list[t.Event]:
    """Every value is asked for, and the program goes on."""
    out = [event for event in fetching(runs, 0) if not isinstance(event, t.PlanSlice)]
    return [*out, *[e.fetched(at + MS, 50 * MS) for at in steps(runs - 3)]]


def rarely(runs: int) -> list[t.Event]:
    """A plan whose value is waited for each time, and which is run so seldom that this is nothing."""
    return [*fetching(runs, runs), e.run(e.START + 20 * MS * runs * 100, plan=9)]


def flood(runs: int) -> list[t.Event]:
    """The same, so fast that runs were told as one."""
    told = [event for event in futures(runs) if not isinstance(event, t.RunIssued)]
    return [e.run(e.START, times=runs), *told]


def moving(kind: str, duration: int, number: int = 20) -> list[t.Event]:
    out: list[t.Event] = [e.utilisation(e.START + 20 * MS * number)]
    return [*out, *[e.collective(at, duration=duration, kind=kind) for at in steps(number)]]


def planned(plans: int, runs: int) -> list[t.Event]:
    out: list[t.Event] = []
    for plan in range(plans):
        out += [e.plan_described(plan), e.run(e.START, plan=plan, times=runs)]
    return out


def missed(reason: str, times: int) -> list[t.Event]:
    return [e.run(e.START, times=100), e.miss(reason=reason, times=times)]


def small(elements: int, share: tuple[int, ...]) -> list[t.Event]:
    ops = [e.op_slice(at, duration=2000, elements=elements, op="add") for at in steps(20)]
    return [*ops, e.utilisation(e.START + 400 * MS, share=share)]


def computing(first: int, second: int, number: int = 20) -> list[t.Event]:
    out: list[t.Event] = [e.plan_described()]
    for order, at in enumerate(steps(number)):
        out += [
            e.plan_slice(at, 0, 15 * MS, order=order, compute=first),
            e.plan_slice(at, 1, 15 * MS, order=order, compute=second),
        ]
    return out


# by rule: what it must find, the line that it must name, and recordings in which there is nothing to find
CASES: dict[str, tuple[list[t.Event], str, list[list[t.Event]]]] = {
    "fetch in a loop": (
        fetching(30, 30), e.FETCH,
        [fetching(100, 3), fetching(300, 30), fetching(5, 5), futures(30), flood(30), rarely(30)],
    ),
    "a plan that gathers": (
        moving("all-gather", 5 * MS), e.SITE,
        [moving("all-reduce", 5 * MS), moving("all-gather", MS // 10), moving("all-gather", 5 * MS, 3)],
    ),
    "a segment that never repeats": (planned(30, 1), e.SITE, [planned(30, 50), planned(4, 1)]),
    "inputs that keep moving": (missed("placements", 40), e.SITE, [missed("placements", 2), missed("new", 40)]),
    "tiny ops": (
        small(16, (1, 0, 8, 0, 1)), e.SITE,
        [small(16, (8, 0, 1, 0, 1)), small(1 << 20, (1, 0, 8, 0, 1)), small(16, (0, 0, 0, 0, 1))],
    ),
    "an unbalanced shard": (
        computing(12 * MS, 4 * MS), e.SITE,
        [computing(12 * MS, 11 * MS), computing(12 * MS, 4 * MS, 3), computing(12_000, 4_000)],
    ),
}  # fmt: skip


def told(name: str, events: list[t.Event]) -> list[Advice]:
    return list(RULES[name](gather(events)))


def test_there_are_cases_for_every_rule() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_what_it_is_for_and_names_file_and_line(name: str) -> None:
    events, site, _ = CASES[name]
    found = told(name, events)
    assert [(each.rule, each.site) for each in found] == [(name, site)]
    assert found[0].what
    assert found[0].remedy
    assert 0 < found[0].cost <= 1


@pytest.mark.parametrize(
    ("name", "events"), [(name, events) for name, (_, _, silent) in CASES.items() for events in silent]
)
def test_a_rule_keeps_silent_where_nothing_is_wrong(name: str, events: list[t.Event]) -> None:
    assert told(name, events) == []


@pytest.mark.parametrize("name", RULES)
def test_nothing_recorded_is_nothing_to_say(name: str) -> None:
    assert list(RULES[name](Findings())) == []


@pytest.mark.parametrize("name", CASES)
def test_one_mistake_is_told_by_one_rule(name: str) -> None:
    assert {each.rule for each in advise(gather(CASES[name][0]))} == {name}


def test_what_costs_most_is_told_first() -> None:
    found = advise(gather([*fetching(30, 30), *computing(12 * MS, 4 * MS), *planned(30, 1)]))
    assert len(found) > 1
    assert [each.cost for each in found] == sorted((each.cost for each in found), reverse=True)


def test_the_fetch_in_a_loop_is_told_with_what_it_cost() -> None:
    assert "30 fetches here or just after, for 30 runs" in told("fetch in a loop", fetching(30, 30))[0].what
    assert "60 ms in all" in told("fetch in a loop", fetching(30, 30))[0].what


def test_tiny_ops_are_told_once_with_the_other_lines_where_they_are() -> None:
    more = [
        event._replace(site="train.py:30", op="add+mul+exp")
        for event in small(16, (1, 0, 8, 0, 1))
        if isinstance(event, t.OpSlice)
    ]
    [found] = told("tiny ops", [*small(16, (1, 0, 8, 0, 1)), *more, *more])
    assert found.site == "train.py:30"
    assert "67 % of the instructions that were sampled are here (add and 2 fused with it)" in found.what
    assert f"then come {e.SITE} (33 %)" in found.what


def test_the_unbalanced_shard_names_the_worker() -> None:
    assert "worker 0 computes 1.5 times as long" in told("an unbalanced shard", computing(12 * MS, 4 * MS))[0].what


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (percent(0.5), "50 %"), (percent(0.051), "5.1 %"), (percent(0), "0 %"), (count(1, "run"), "1 run"),
        (count(12000, "fetch", "fetches"), "12,000 fetches"), (seconds(3_200_000), "3.2 ms"), (seconds(12), "12 ns"),
        (seconds(4e12), "4000 s"), (size(0), "0 B"), (size(1_500_000), "1.5 MB"), (size(2e15), "2000 TB"),
    ],
)  # fmt: skip
def test_numbers_are_worded_with_the_unit_that_suits_them(value: str, words: str) -> None:
    assert value == words


def test_a_recording_of_anything_is_advised_upon() -> None:
    strange: dict[str, Any] = {"elements": 0, "times": 0}
    events: list[t.Event] = [
        e.op_slice(e.START, **strange),
        e.plan_slice(e.START, times=0),
        e.fetched(e.START, times=0),
    ]
    advise(gather([*e.session(), *events]))


def _is_pure(rule: Callable[[Findings], Any]) -> bool:
    findings = gather(e.session(30))
    return list(rule(findings)) == list(rule(findings))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_the_same_twice(name: str) -> None:
    assert _is_pure(RULES[name])
