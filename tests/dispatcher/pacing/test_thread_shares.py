"""The shares of the dispatcher's thread, in virtual time."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.pacing.thread_shares import (
    BESIDE_SECONDS,
    MAX_KEPT,
    OWED_SECONDS,
    SAVED_SECONDS,
    SHARE,
    SHORT_SAVED_SECONDS,
    SHORT_SECONDS,
    SHORT_SHARE,
    SHORT_WAIT,
    ThreadShares,
)

TURN = 1e-4
"""The seconds of one turn of work."""


def used(shares: ThreadShares, seconds: float, others: float | None = 0.02, waits: float = 0.0) -> float:
    """How much of the thread "flood" has in so many seconds, if it always has work and a plan of "honest" is issued every
    `others` seconds (None: never), while the thread `waits` for cores for such a part of the time."""
    now = spent = due = 0.0
    while now < seconds:
        if others is not None and now >= due:
            shares.issued("honest", now)
            due = now + others
        shares.issued("flood", now)
        shares.waited(waits, now)
        if not shares.rests("flood", now):
            shares.charge("flood", TURN, now)
            spent += TURN
        now += TURN
    return spent


def test_who_is_alone_has_the_whole_thread() -> None:
    assert used(ThreadShares(), 2.0, None) > 1.999


def test_beside_others_a_principal_has_half_and_what_it_saved() -> None:
    """It is at no time given more than that; what is saved is the same after any pause."""
    seconds = 10.0
    assert SHARE * seconds <= used(ThreadShares(), seconds) <= SHARE * (seconds + SAVED_SECONDS) + 2 * TURN


def test_while_cores_are_short_it_is_less() -> None:
    """And less at once, but no less when they hardly are."""
    seconds = 10.0
    most = SHORT_SHARE * (seconds + SHORT_SAVED_SECONDS) + 2 * TURN
    assert SHORT_SHARE * seconds <= used(ThreadShares(), seconds, waits=SHORT_WAIT) <= most
    assert used(ThreadShares(), seconds, waits=0.9 * SHORT_WAIT) >= SHARE * seconds


def test_what_was_saved_is_less_once_cores_are_short_and_they_are_for_a_while() -> None:
    shares = ThreadShares()
    shares.issued("honest", 0.0)
    shares.issued("flood", 0.0)
    shares.charge("flood", SHORT_SHARE * SHORT_SAVED_SECONDS * 1.5, 0.0)
    assert not shares.rests("flood", 0.0)
    shares.waited(SHORT_WAIT, 0.0)
    shares.charge("flood", SHORT_SHARE * SHORT_SAVED_SECONDS * 1.5, 0.0)
    assert shares.rests("flood", 0.0)
    shares.waited(0.0, SHORT_SECONDS / 2)
    assert shares.short_until == SHORT_SECONDS


def test_the_thread_is_shared_while_plans_of_two_are_issued() -> None:
    shares = ThreadShares()
    for now in (0.0, 0.1):
        shares.issued("a", now)
        assert not shares.is_shared(now)
    shares.issued("b", 0.2)
    assert shares.is_shared(0.3)
    shares.issued("b", 2.0)
    assert not shares.is_shared(2.0), "of the other one nothing was issued for a second"


def test_who_needs_little_never_rests() -> None:
    """A tenth of the thread, in turns of any length up to a fifth of what is saved."""
    shares = ThreadShares()
    for step in range(1000):
        now = step * 0.1
        shares.issued("other", now)
        shares.issued("honest", now)
        assert not shares.rests("honest", now)
        shares.charge("honest", 0.01, now)


def test_nobody_rests_for_long_nor_once_the_others_are_gone() -> None:
    shares = ThreadShares()
    shares.issued("honest", 0.0)
    shares.issued("flood", 0.0)
    shares.charge("flood", 100.0, 0.0)
    assert shares.rests("flood", 0.99 * OWED_SECONDS)
    assert shares.due(["honest", "flood"], 0.0) == OWED_SECONDS
    assert not shares.rests("flood", OWED_SECONDS)
    assert not shares.rests("honest", 0.0)
    assert shares.due(["honest"], 0.0) == inf
    later = BESIDE_SECONDS - 0.01
    shares.charge("flood", 100.0, later)
    assert shares.rests("flood", later + 0.005)
    assert not shares.rests("flood", later + 0.02), "nothing was issued for others for a second"
    shares.charge("flood", 1.0, later + 0.02)
    assert not shares.paid, "who is alone owes nothing"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.5), st.floats(0.0, 0.4)), max_size=60))
def test_whoever_rests_goes_on_when_it_is_due(drawn: list[tuple[str, float, float]]) -> None:
    """For any times: nobody owes more than `OWED_SECONDS`, and at the time that is said it may go on."""
    shares, now = ThreadShares(), 0.0
    for name, spent, passed in drawn:
        shares.issued(name, now)
        shares.charge(name, spent, now)
        for each in "abc":
            due = shares.due([each], now)
            assert shares.rests(each, now) == (due < inf)
            assert due == inf or now < due <= now + OWED_SECONDS
            assert due == inf or not shares.rests(each, due)
        now += passed


def test_what_is_kept_of_principals_is_bounded() -> None:
    shares = ThreadShares()
    shares.issued("honest", 0.0)
    for number in range(3 * MAX_KEPT):
        shares.issued(number, number * 1e-4)
        shares.charge(number, 1e-5, number * 1e-4)
    assert len(shares.paid) <= MAX_KEPT + 1
