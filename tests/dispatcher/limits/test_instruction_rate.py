"""The rate of instructions: never more than is granted, and everybody who waits goes on."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.limits.instruction_rate import BURST_SECONDS, InstructionRates

RATES = {"slow": 10.0, "fast": 1000.0, "free": None}


def limited() -> InstructionRates:
    rates = InstructionRates()
    rates.change(RATES.get, limited=True, now=0.0)
    return rates


@given(
    st.lists(st.tuples(st.sampled_from(["slow", "fast"]), st.integers(1, 40)), min_size=1, max_size=6), st.floats(1, 8)
)
def test_in_no_span_is_more_issued_than_rate_burst_and_one_run(sessions: list[tuple[str, int]], seconds: float) -> None:
    """Sessions that always have another run, in virtual time: what is granted is used, and no more; their principal's sessions
    issue as many runs each, to one."""
    rates = limited()
    issued: dict[str, list[tuple[float, int]]] = {"slow": [], "fast": []}
    runs = dict.fromkeys(range(len(sessions)), 0)

    def pump(number: int, now: float) -> None:
        principal, length = sessions[number]
        while rates.admits(principal, number, now):
            rates.spend(principal, length)
            issued[principal].append((now, length))
            runs[number] += 1

    now = 0.0
    for number in runs:
        pump(number, now)
    while rates.due <= seconds:
        now = max(now, rates.due) + 1e-9
        for number in rates.turns(now, 3):
            pump(number, now)
        rates.check()
    for principal, each in issued.items():
        mine = [n for n, (who, _) in enumerate(sessions) if who == principal]
        if not mine:
            continue
        rate, longest = RATES[principal], max(length for who, length in sessions if who == principal)
        assert rate is not None
        for at, (since, _) in enumerate(each[:: max(1, len(each) // 20)]):
            total = 0
            for until, length in each[at * max(1, len(each) // 20) :]:
                total += length
                assert total <= rate * (until - since + BURST_SECONDS) + longest + 1e-6
        assert sum(length for _, length in each) >= rate * (now - 0.1) - longest
        late = [runs[n] for n in mine[1:]]
        assert not late or max(late) - min(late) <= max(late) * 0.5 + 8


def test_who_has_no_limit_never_waits_and_who_waits_is_set_free_by_another_table() -> None:
    rates = limited()
    assert all(rates.admits("free", 1, 0.0) for _ in range(5))
    assert rates.admits("slow", 2, 0.0)
    rates.spend("slow", 1000)
    assert not rates.admits("slow", 2, 0.0)
    assert not rates.admits("slow", 3, 50.0)
    assert 98 < rates.due < 100
    rates.forget(3)
    rates.change({"slow": None}.get, limited=False, now=1.0)
    assert [number for number in rates.turns(1.0, 8) if rates.admits("slow", number, 1.0)] == [2]
    assert (rates.waits, rates.buckets, rates.due) == ({}, {}, inf)


def test_another_rate_keeps_the_debt_in_time() -> None:
    """Who has to wait for ten seconds still does, at whatever rate."""
    rates = limited()
    assert rates.admits("slow", 1, 0.0)
    rates.spend("slow", 110)
    assert not rates.admits("slow", 1, 0.0)
    rates.change({"slow": 100.0}.get, limited=True, now=0.0)
    assert [*rates.turns(9.9, 8)] == []
    assert [*rates.turns(10.1, 8)] == [1]
