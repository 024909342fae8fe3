"""Sums of what was used: nothing is lost or counted twice, whatever programs do, and what is kept is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.usage.energy import BusyMesh, EnergyMeter
from gt.dispatcher.usage.ledger import MAX_ROWS, MAX_SIGNALS, OTHER, Ledger, RowKey, SessionAccount
from gt.dispatcher.usage.rows import COLUMNS, UsageRow
from gt.dispatcher.usage.tally import PlanTally, SignalPart


def parts_of(shares: list[int]) -> tuple[SignalPart, ...]:
    """A plan's parts, with these shares of its time."""
    whole = sum(shares)
    return tuple(SignalPart(f"s{at}", at, 10 * at, each / whole) for at, each in enumerate(shares))


PLANS = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(parts_of)


@given(
    st.lists(PLANS, min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["run", "measured", "guessed", "add up", "drop"]), st.integers(1, 10**12)
        )
    ),
)
def test_every_nanosecond_and_run_is_counted_once(
    plans: list[tuple[SignalPart, ...]], steps: list[tuple[int, str, int]]
) -> None:
    """Whenever tallies are added up, and also of plans that were dropped meanwhile."""
    ledger, account = Ledger(), SessionAccount("user 1", "p", 1)
    tallies = [PlanTally(parts) for parts in plans]
    runs = spent = predicted = instructions = 0
    for at, what, nanoseconds in steps:
        tally = tallies[at % len(tallies)]
        if what == "run":
            tally.ran(account)
            runs += 1
            instructions += sum(part.instructions for part in tally.parts)
        elif what == "add up":
            for _ in ledger.add_up(account):
                pass
        elif what == "drop":
            tallies[at % len(tallies)] = PlanTally(tally.parts)
        elif tally.account is not None:  # of what was never issued nobody speaks
            spent += nanoseconds
            if what == "guessed":
                predicted += nanoseconds
                tally.guessed(nanoseconds)
            else:
                tally.measured(nanoseconds)
    for _ in ledger.add_up(account):
        pass
    ledger.check()
    for sums in ([account.sum], [*ledger.rows.values()]):
        whole = UsageRow()
        for each in sums:
            whole.add(each)
        assert (whole.runs, whole.device_ns, whole.predicted_ns) == (runs, spent, predicted)
        assert whole.instructions == instructions
        assert all(each.device_ns >= each.predicted_ns >= 0 or len(plans) > 0 for each in sums)
    assert not account.tallies


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), max_size=1500))
def test_the_ledger_is_bounded_and_loses_nothing(uses: list[tuple[int, int]]) -> None:
    """However many principals and signals there are; a principal's sums stay its own as long as there is room for one."""
    ledger = Ledger()
    for principal, signal in uses:
        ledger.row(f"user {principal}", f"s{signal}").runs += 1
    ledger.check()
    assert sum(row.runs for row in ledger.rows.values()) == len(uses)


def test_many_principals_and_signals_become_others() -> None:
    ledger = Ledger()
    for principal in range(100):
        for signal in range(100):
            ledger.row(f"user {principal}", f"s{signal}").runs += 1
    ledger.check()
    assert len(ledger.rows) == MAX_ROWS + 1
    assert ledger.rows[RowKey("user 0", OTHER)].runs == 100 - MAX_SIGNALS
    assert ledger.rows[RowKey(OTHER, OTHER)].runs > 0
    assert sum(row.runs for row in ledger.rows.values()) == 10_000


def test_what_is_held_counts_from_look_to_look() -> None:
    """With what was there at the last look, so that nobody pays for what came since."""
    ledger, account = Ledger(), SessionAccount("user 1", "p", 1, 5.0)
    ledger.held(account, 100, 10.0)
    ledger.held(account, 0, 12.5)
    ledger.held(account, 7, 20.0)
    assert account.sum.held_byte_seconds == 250
    assert account.sum.energy_mj == -1, "nothing tells of energy"


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 5), st.integers(-1, 500_000), st.lists(st.integers(0, 4 * 10**9), min_size=3, max_size=3)
        ),
        max_size=30,
    )
)
def test_energy_is_divided_by_time_and_no_more_than_there_was(reports: list[tuple[float, int, list[int]]]) -> None:
    """Nobody is charged for what was taken while nothing ran, and all together never for more than was taken."""
    meter, now, taken, charged = EnergyMeter(), 0.0, 0.0, dict.fromkeys(range(3), 0)
    spent = dict.fromkeys(range(3), 0)
    for seconds, power, more in reports:
        now += seconds
        for mesh, nanoseconds in enumerate(more):
            spent[mesh] += nanoseconds
        taken += max(0, power) * seconds
        for mesh, millijoules in meter.hear(power, now, [BusyMesh(mesh, spent[mesh], True) for mesh in spent]):
            assert more[mesh] > 0 or len(reports) > 1
            charged[mesh] += millijoules
    assert sum(charged.values()) <= taken + 3 * len(reports)
    assert all(each >= 0 for each in charged.values())


def test_energy_of_a_long_plan_counts_when_it_is_over() -> None:
    """And that of a device which was idle half of the time counts half."""
    meter = EnergyMeter()
    assert [*meter.hear(100_000, 0.0, [BusyMesh(1, 0, True)])] == []
    assert [*meter.hear(100_000, 2.0, [BusyMesh(1, 0, True)])] == []
    assert [*meter.hear(100_000, 4.0, [BusyMesh(1, 4 * 10**9, False)])] == [(1, 400_000)]
    assert [*meter.hear(100_000, 6.0, [BusyMesh(1, 4 * 10**9, False)])] == [], "idle"
    halves = [BusyMesh(1, 4 * 10**9 + 5 * 10**8, False), BusyMesh(2, 5 * 10**8, False)]
    assert [*meter.hear(100_000, 8.0, halves)] == [(1, 50_000), (2, 50_000)]
    assert [*meter.hear(-1, 10.0, halves)] == []


def test_a_sum_has_the_columns_that_are_told() -> None:
    assert UsageRow().values() == (0,) * (len(COLUMNS) - 1) + (-1,)
    assert UsageRow().is_empty
