"""The clock for deadlines: times in which the process stood still do not count."""

from gt.daemon.active_clock import PAUSE_SECONDS, ActiveClock


def test_a_pause_of_the_process_itself_is_left_out() -> None:
    time = [100.0]
    clock = ActiveClock(lambda: time[0])
    start = clock()
    for _ in range(10):
        time[0] += 1.0
        clock()
    assert clock() - start == 10.0
    time[0] += 3600.0
    assert clock() - start == 10.0
    assert clock.paused_seconds == 3600.0
    time[0] += PAUSE_SECONDS
    assert clock() - start == 10.0 + PAUSE_SECONDS
