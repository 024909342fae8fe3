"""How often whoever waits for the service looks for messages, by a clock that only the waiting moves."""

from __future__ import annotations

import math

import pytest
from scripted_link import opened

from gt.client.session import session as module
from gt.client.session.session import MAX_PATIENCE_SECONDS, PATIENCE_PART, PATIENCE_SECONDS


class Clock:
    """A clock that stands still but for what is waited. As the module `time`, for what a session asks it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def looks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, timeout: float | None = None, part: float = 1.0
) -> list[float]:
    """Returns for how long each look waits of a thread that waits until so many seconds have passed, if something arrives after
    this part of each wait."""
    clock, found = Clock(), list[float]()
    start = clock.now
    with opened() as (session, link):

        def wait(patience: float) -> None:
            found.append(patience)
            clock.now = max(math.nextafter(clock.now, math.inf), clock.now + part * patience)

        with monkeypatch.context() as patched:
            patched.setattr(module, "time", clock)
            patched.setattr(link, "wait", wait)
            session.wait_for(lambda: clock.now >= start + seconds, "a value", timeout)
    return found


def test_who_waits_for_long_looks_seldom_and_who_has_just_begun_often() -> None:
    """What another thread has read is noticed at once at first, and within a tenth of a second in any case."""
    with pytest.MonkeyPatch.context() as patched:
        found = looks(patched, 3.0)
    assert found[0] == PATIENCE_SECONDS
    assert found == sorted(found)
    assert found[-1] == MAX_PATIENCE_SECONDS
    passed = 0.0
    for patience in found:
        assert patience <= max(PATIENCE_SECONDS, PATIENCE_PART * passed) + 1e-9
        passed += patience
    assert len(found) <= 3.0 / MAX_PATIENCE_SECONDS + 20, "far fewer than 50 in a second"


def test_messages_that_wake_it_do_not_make_it_look_less_often_than_its_wait_is_long() -> None:
    """The next look depends on how long was waited, not on how often."""
    with pytest.MonkeyPatch.context() as patched:
        found = looks(patched, 0.15, part=1e-2)
    assert {*found} == {PATIENCE_SECONDS}


@pytest.mark.parametrize("timeout", [0.005, 0.05, 1.0])
def test_it_never_waits_beyond_its_time(timeout: float) -> None:
    """The last look waits for what is left."""
    with (
        pytest.MonkeyPatch.context() as patched,
        pytest.raises(TimeoutError, match=f"waited {timeout:g} s for a value"),
    ):
        looks(patched, 2 * timeout, timeout)


@pytest.mark.parametrize("timeout", [0.005, 0.05, 1.0])
def test_what_comes_in_the_last_moment_counts(timeout: float) -> None:
    with pytest.MonkeyPatch.context() as patched:
        found = looks(patched, timeout - 1e-9, timeout)
    assert sum(found) == pytest.approx(timeout)
