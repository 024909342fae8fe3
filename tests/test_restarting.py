"""When a worker that ended is started again."""

from __future__ import annotations

from gt.daemon.restart_policy import CALM, LONGEST, MOST, SETTLED, Restarts, pause


def test_pauses_double_and_end() -> None:
    assert [pause(times) for times in range(MOST + 1)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert pause(MOST - 1) <= LONGEST  # type: ignore[operator]


def test_who_is_killed_starts_again_so_often() -> None:
    restarts = Restarts()
    assert [restarts.after(-9, 0.1) for _ in range(MOST + 2)] == [*map(pause, range(MOST)), None, None]


def test_a_calm_while_makes_the_count_begin_anew() -> None:
    restarts = Restarts()
    for _ in range(MOST):
        restarts.after(-11, CALM - 1)
    assert restarts.after(-11, CALM - 1) is None
    assert restarts.after(-11, CALM) == pause(0)


def test_who_was_asked_to_end_or_cannot_start_does_not() -> None:
    restarts = Restarts()
    assert restarts.after(0, CALM) is None
    assert restarts.after(1, SETTLED - 1) is None
    assert restarts.after(1, SETTLED) == pause(0)
