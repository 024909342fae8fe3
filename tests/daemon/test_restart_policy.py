"""When a worker that ended is started again."""

from __future__ import annotations

from gt.daemon.restart_policy import MAX_PAUSE_SECONDS, MAX_RESTARTS, RESET_SECONDS, START_SECONDS, Restarts, pause


def test_pauses_double_and_end() -> None:
    assert [pause(times) for times in range(MAX_RESTARTS + 1)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert pause(MAX_RESTARTS - 1) <= MAX_PAUSE_SECONDS  # type: ignore[operator]


def test_who_is_killed_starts_again_so_often() -> None:
    restarts = Restarts()
    assert [restarts.after(-9, 0.1) for _ in range(MAX_RESTARTS + 2)] == [*map(pause, range(MAX_RESTARTS)), None, None]


def test_a_calm_while_makes_the_count_begin_anew() -> None:
    restarts = Restarts()
    for _ in range(MAX_RESTARTS):
        restarts.after(-11, RESET_SECONDS - 1)
    assert restarts.after(-11, RESET_SECONDS - 1) is None
    assert restarts.after(-11, RESET_SECONDS) == pause(0)


def test_who_was_asked_to_end_or_cannot_start_does_not() -> None:
    restarts = Restarts()
    assert restarts.after(0, RESET_SECONDS) is None
    assert restarts.after(1, START_SECONDS - 1) is None
    assert restarts.after(1, START_SECONDS) == pause(0)
