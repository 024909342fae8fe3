"""The shares of the dispatcher's thread, in virtual time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.pacing.thread_shares import (
    BESIDE_SECONDS,
    FLOOD_SECONDS,
    MAX_KEPT,
    MAX_PAUSE_SECONDS,
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


def test_the_thread_is_shared_with_whoever_sends_no_plans() -> None:
    """Who only fetches and asks takes cores from workers as well, so it is looked whether they are short."""
    shares = ThreadShares()
    shares.charge("asks", 0.001, 0.0)
    assert not shares.is_shared(0.0), "workers compute for nobody"
    shares.issued("honest", 0.1)
    shares.charge("honest", 0.001, 0.1)
    assert not shares.is_shared(0.1), "nobody else has the thread do anything"
    shares.charge("asks", 0.001, 0.2)
    assert shares.is_shared(0.2 + 0.99 * BESIDE_SECONDS)
    assert not shares.is_shared(0.2 + BESIDE_SECONDS)


@pytest.mark.parametrize(("waits", "share"), [(0.0, SHARE), (SHORT_WAIT, SHORT_SHARE)])
def test_messages_without_end_take_no_more_than_the_share(waits: float, share: float) -> None:
    """They are read although their sender rests, because nobody knows whose the next one is."""
    shares, now, spent, seconds, message = ThreadShares(), 0.0, 0.0, 10.0, 2e-5
    while now < seconds:
        shares.issued("honest", now)
        shares.waited(waits, now)
        began, pause = now, 0.0
        while not pause:
            now += message
            shares.charge("flood", message, now)
            pause = shares.pause("flood", now - began, now)
            assert pause <= MAX_PAUSE_SECONDS
        spent += now - began
        now += pause
    assert spent <= share * seconds * (1 + 2 * message / FLOOD_SECONDS) + SHARE * SAVED_SECONDS


def test_nobody_else_is_held_up_by_a_message() -> None:
    shares = ThreadShares()
    shares.issued("honest", 0.0)
    shares.charge("flood", 1.0, 0.0)
    assert shares.pause("flood", FLOOD_SECONDS, 0.0) > 0
    assert not shares.pause("flood", 0.9 * FLOOD_SECONDS, 0.0), "a batch is worth a poll"
    assert not shares.pause("honest", 0.01, 0.0)


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
