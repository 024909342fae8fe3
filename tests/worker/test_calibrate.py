"""A worker's own figures: sensible, from the fastest try, and quick to get."""

import multiprocessing
import os

import pytest

from gt.errors import SessionError
from gt.launch import cores
from gt.worker.backend import backend
from gt.worker.calibrate import best, measure, threads


def test_a_cpu_says_how_fast_it_is() -> None:
    facts = measure(backend("cpu"))
    flops, memory = facts.pop("speed")
    assert 1e8 < flops < 1e15
    assert 1e8 < memory < 1e14
    assert 1 << 28 <= facts.pop("host_memory") <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts == {}


def test_its_threads_count_and_other_processes_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that may use two threads is twice as fast as one, whatever else the machine does while it measures."""
    busy = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(2 * cores())]
    for process in busy:
        process.start()
    try:
        speeds = {}
        for count in (1, cores()):
            monkeypatch.setenv("GT_THREADS", str(count))
            speeds[count] = max(measure(backend("cpu"))["speed"][0] for _ in range(3))
        assert cores() * speeds[1] / 3 < speeds[cores()] < cores() * speeds[1] * 3
        assert speeds[1] > 1e9
    finally:
        for process in busy:
            process.kill()


@pytest.mark.parametrize("said", ["abc", "0", "-1", "1.5", "nan", "inf"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("GT_THREADS", said)
    with pytest.raises(SessionError, match=f"^GT_THREADS={said} is no number.* say for example GT_THREADS={cores()}$"):
        threads()


def test_there_are_as_many_threads_as_said_and_no_more_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GT_THREADS", raising=False)
    assert threads() == cores()
    for said, found in (("", cores()), ("1", 1), ("100000", cores())):
        monkeypatch.setenv("GT_THREADS", said)
        assert threads() == found


def spin() -> None:
    while True:
        pass


def test_the_fastest_try_within_the_budget_counts() -> None:
    clock = iter([0.0, 0.0, 0.009, 0.009, 0.011, 0.012, 0.012, 0.019, 0.021])
    runs: list[int] = []
    assert best(lambda: runs.append(0), lambda: None, lambda: next(clock)) == pytest.approx(0.002)
    assert len(runs) == 4  # the first does not count
