"""A worker's own figures: sensible, from the fastest try, and quick to get."""

import os

import pytest

from gt.worker.backend import backend
from gt.worker.calibrate import best, measure


def test_a_cpu_says_how_fast_it_is() -> None:
    facts = measure(backend("cpu"))
    flops, memory = facts.pop("speed")
    assert 1e8 < flops < 1e15
    assert 1e8 < memory < 1e14
    assert 1 << 28 <= facts.pop("host_memory") <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts == {}


def test_the_fastest_try_within_the_budget_counts() -> None:
    clock = iter([0.0, 0.0, 0.009, 0.009, 0.011, 0.012, 0.012, 0.019, 0.021])
    runs: list[int] = []
    assert best(lambda: runs.append(0), lambda: None, lambda: next(clock)) == pytest.approx(0.002)
    assert len(runs) == 4  # the first does not count
