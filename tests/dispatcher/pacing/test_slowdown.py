"""Workers that something outside the service slows down: noticed by what plans take, late enough and for long enough."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gt.dispatcher.pacing.slowdown import (
    FORGOTTEN_SECONDS,
    LOOKS_AVERAGED,
    RECOVERED,
    SLOWED,
    SUSTAINED_SECONDS,
    WorkerSlowdown,
    of_all,
)

LEAST = 300_000_000
"""Of the plans of a look."""


class Looks:
    """A worker that is looked at once a second, and what it counted as at each look."""

    def __init__(self) -> None:
        self.worker = WorkerSlowdown()
        self.now = 100.0

    def __call__(self, ratios: Iterable[float]) -> list[float]:
        """What it counts as when its plans take so many times as long as at best (0: there are none)."""
        found = []
        for ratio in ratios:
            self.now += 1.0
            self.worker.look(round(ratio * LEAST), LEAST if ratio else 0, self.now)
            found.append(self.worker.factor)
        return found


def test_it_is_slowed_down_once_its_plans_have_taken_long_for_some_time_and_counts_by_how_much() -> None:
    looks = Looks()
    assert looks([1.0] * 10) == [1.0] * 10
    counted = looks([3.0] * 30)
    begins = next(at for at, factor in enumerate(counted) if factor > 1.0)
    assert SUSTAINED_SECONDS <= begins <= SUSTAINED_SECONDS + LOOKS_AVERAGED
    assert counted[-1] == pytest.approx(3.0, rel=0.01)


def test_a_moment_is_no_slowdown_and_a_pause_in_one_is_no_end() -> None:
    looks = Looks()
    assert {*looks([*[3.0] * 4, *[1.0] * 4] * 10)} == {1.0}
    looks([3.0] * 20)
    assert min(looks([*[1.0] * 2, *[3.0] * 4] * 10)) > 1.0


def test_between_the_two_bounds_it_stays_what_it_is() -> None:
    """So that nothing changes back and forth."""
    between = (SLOWED + RECOVERED) / 2
    looks = Looks()
    assert {*looks([between] * 100)} == {1.0}
    looks([3.0] * 20)
    assert looks([between] * 100)[-1] == pytest.approx(between, rel=0.01)
    assert looks([1.0] * 30)[-1] == 1.0


def test_what_nobody_measures_is_forgotten_and_what_hardly_works_tells_nothing() -> None:
    looks = Looks()
    looks([3.0] * 20)
    counted = looks([0.0] * round(FORGOTTEN_SECONDS + 2))
    assert counted[-3] > 1.0
    assert counted[-1] == 1.0
    worker = WorkerSlowdown()
    for second in range(100):
        worker.look(9_000_000, 1_000_000, float(second))
    assert worker.factor == 1.0


def test_an_idle_worker_counts_as_the_best_that_works_on_its_host() -> None:
    """Whoever moved there would find it as slow."""
    slow, slower, well = Looks(), Looks(), Looks()
    slow([2.0] * 50)
    slower([4.0] * 50)
    well([1.0] * 50)
    hosts = {0: "a", 1: "a", 2: "a", 3: "b", 4: "c", 5: "c"}
    slowdowns = {0: slow.worker, 1: slower.worker, 4: well.worker}
    found = of_all(slowdowns, hosts, slow.now)
    assert found[0] == found[2] == pytest.approx(2.0, rel=0.01)
    assert found[1] == pytest.approx(4.0, rel=0.01)
    assert found[3] == found[4] == found[5] == 1.0
    slow([2.0] * 10)
    found = of_all(slowdowns, hosts, slow.now)
    assert found[1] == found[0], "what was measured there a while ago may be over"
    slower([0.0] * 10)
    assert of_all({1: slower.worker}, hosts, slower.now)[1] == pytest.approx(4.0, rel=0.01), "nobody there knows better"
