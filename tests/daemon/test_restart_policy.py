"""When a daemon that ended is started again, by the cause of its end."""

from __future__ import annotations

import signal

from gt.daemon.restart_policy import (
    HAND_OVER_STATUS,
    MAX_PAUSE_SECONDS,
    MAX_RESTARTS,
    RESET_SECONDS,
    Restarts,
    describe_end,
    pause,
)


def test_pauses_double_and_end() -> None:
    assert [pause(times) for times in range(MAX_RESTARTS + 1)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert pause(MAX_RESTARTS - 1) <= MAX_PAUSE_SECONDS  # type: ignore[operator]


def test_who_is_killed_starts_again_at_once_however_often() -> None:
    restarts = Restarts()
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        assert {restarts.after(-number, 0.1, in_service=True) for _ in range(1000)} == {0.0}


def test_a_dispatcher_that_hands_over_is_followed_at_once() -> None:
    """However often, and that is no error."""
    restarts = Restarts()
    assert {restarts.after(HAND_OVER_STATUS, 0.1, in_service=True) for _ in range(100)} == {0.0}
    assert restarts.after(1, 1.0, in_service=True) == pause(0)
    assert describe_end(HAND_OVER_STATUS) == "ended for the next one"


def test_kills_are_no_errors() -> None:
    """They neither count as errors nor make earlier errors forgotten."""
    restarts = Restarts()
    pauses = []
    for _ in range(MAX_RESTARTS + 1):
        assert restarts.after(-9, 1.0, in_service=True) == 0.0
        pauses.append(restarts.after(1, 1.0, in_service=True))
    assert pauses == [pause(times) for times in range(MAX_RESTARTS + 1)]


def test_who_is_killed_whenever_it_starts_starts_ever_more_slowly_and_for_ever() -> None:
    restarts = Restarts()
    pauses = [restarts.after(-11, 0.3, in_service=False) for _ in range(2000)]
    assert pauses[:6] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert set(pauses[9:]) == {MAX_PAUSE_SECONDS}
    assert restarts.after(-11, 0.3, in_service=True) == 0.0
    assert restarts.after(-11, 0.3, in_service=False) == 0.0, "it had been in service since"


def test_who_fails_by_itself_starts_again_so_often() -> None:
    restarts = Restarts()
    pauses = [restarts.after(1, 60.0, in_service=True) for _ in range(MAX_RESTARTS + 2)]
    assert pauses == [*map(pause, range(MAX_RESTARTS)), None, None]


def test_a_calm_while_makes_the_count_begin_anew() -> None:
    restarts = Restarts()
    for _ in range(MAX_RESTARTS):
        restarts.after(1, RESET_SECONDS - 1, in_service=True)
    assert restarts.after(1, RESET_SECONDS - 1, in_service=True) is None
    assert restarts.after(1, RESET_SECONDS, in_service=True) == pause(0)


def test_who_was_asked_to_end_or_could_never_start_does_not() -> None:
    restarts = Restarts()
    assert restarts.after(1, RESET_SECONDS, in_service=False) is None, "such as a device that does not exist"
    for status in (0, -signal.SIGTERM, -signal.SIGINT):
        assert restarts.after(status, RESET_SECONDS, in_service=True) is None
    assert restarts.after(1, 4.0, in_service=False) == pause(0), "it could start before: its dispatcher may be away"


def test_an_end_in_words() -> None:
    assert describe_end(3) == "ended with status 3"
    assert describe_end(-9) == "was killed by SIGKILL"
    assert describe_end(-40) == "was killed by signal 40"
