"""Where a session begins: on the worker on which its work would end soonest, as far as the last seconds tell."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.pacing.pacer import Pacer
from gt.dispatcher.pacing.priority import Entitlement
from gt.dispatcher.pacing.run_time import RunTime
from gt.dispatcher.pacing.soonest_end import FORGOTTEN_SECONDS, WorkerOffer, soonest

ALIKE = {worker: WorkerOffer(1.0) for worker in range(2)}
MILLISECOND = 1_000_000


class Workers:
    """A pacer, sessions of one mesh each, and the time."""

    def __init__(self) -> None:
        self.pacer = Pacer()
        self.now = 0.0
        self.order = 0

    def session(self, number: int, *workers: int, principal: str = "a") -> None:
        self.pacer.add_mesh(number, workers, number, principal, number, self.now)

    def use(self, number: int, nanoseconds: int) -> None:
        """A session has a plan in flight from now on."""
        self.order += 1
        self.pacer.released(number, self.order, RunTime(nanoseconds), self.now)

    def works(self, number: int, seconds: float) -> None:
        """A session uses its workers half of some seconds, and has nothing in flight at the end."""
        for _ in range(round(seconds * 10)):
            self.use(number, 50 * MILLISECOND)
            self.pacer.finished(number, 1)
            self.now += 0.1

    def order_of(self, offers: dict[int, WorkerOffer] = ALIKE, principal: str = "a", session: int = 99) -> list[int]:
        self.pacer.check()
        return soonest(self.pacer, principal, session, offers, self.now)


def test_an_idle_session_leaves_its_worker_to_who_comes() -> None:
    """Where three wait for their programs to say something work ends sooner than beside one that works."""
    each = Workers()
    for number in (1, 2, 3):
        each.session(number, 0)
    each.session(4, 1)
    each.now = FORGOTTEN_SECONDS + 1
    each.works(4, 3)
    assert each.order_of() == [0, 1]
    each.now += FORGOTTEN_SECONDS + 1
    assert each.order_of() == [1, 0], "now all are idle, and fewer are there"


def test_work_in_flight_counts() -> None:
    each = Workers()
    each.session(1, 0)
    each.session(2, 1)
    each.now = FORGOTTEN_SECONDS + 1
    each.use(1, 30_000 * MILLISECOND)
    assert each.order_of() == [1, 0]
    assert each.order_of(session=1) == [1, 0], "its own plans are before it, too"


def test_another_principal_has_one_share_however_many_its_sessions() -> None:
    each = Workers()
    for number in (1, 2, 3):
        each.session(number, 0, principal="b")
    for number in (4, 5):
        each.session(number, 1)
    assert each.order_of() == [0, 1]
    assert each.order_of(principal="b") == [1, 0]
    each.pacer.entitle({"b": Entitlement(9.0)})
    assert each.order_of() == [1, 0], "one of nine parts in ten"


def test_speed_strain_and_data_count() -> None:
    each = Workers()
    assert each.order_of({0: WorkerOffer(1.0), 1: WorkerOffer(3.0)}) == [1, 0]
    assert each.order_of({0: WorkerOffer(1.0), 1: WorkerOffer(3.0, strained=True)}) == [0, 1]
    assert each.order_of({0: WorkerOffer(1.0), 1: WorkerOffer(20.0, strained=True)}) == [1, 0], (
        "it is faster all the same"
    )
    assert each.order_of({0: WorkerOffer(1.0, seconds=0.2), 1: WorkerOffer(1.0)}) == [1, 0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 12))
def test_sessions_that_come_at_once_are_spread_by_speed(paces: list[int], count: int) -> None:
    """No session would have been better off on another worker when it came."""
    each, sessions = Workers(), [0] * len(paces)
    offers: Any = {worker: WorkerOffer(float(pace)) for worker, pace in enumerate(paces)}
    for number in range(count):
        (best, *_) = each.order_of(offers, session=number)
        assert (sessions[best] + 1) / paces[best] == min(
            (n + 1) / pace for n, pace in zip(sessions, paces, strict=True)
        )
        sessions[best] += 1
        each.session(number, best)
