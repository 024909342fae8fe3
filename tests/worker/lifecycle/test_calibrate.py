"""A worker's own figures: sensible, from the fastest try, and quick to get."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from card import CARD, installed

from gt.errors import SessionError
from gt.service.launch import cores
from gt.worker.base.backend import Backend, backend
from gt.worker.lifecycle import calibrate
from gt.worker.lifecycle.calibrate import MAX_AGE_SECONDS, facts, fastest_run, measure, threads


def test_a_cpu_says_how_fast_it_is() -> None:
    facts = measure(backend("cpu"))
    flops, memory = facts.pop("speed")
    assert 1e8 < flops < 1e15
    assert 1e8 < memory < 1e14
    assert 1 << 28 <= facts.pop("host_memory") <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts == {}


def test_a_gpu_measures_in_no_memory_of_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose limit may be less than it takes: a worker with 64 MB starts too."""
    looked: list[bool] = []

    def looking(run: Any, _synchronize: Any, _clock: Any) -> float:
        run()
        looked.append(CARD.unpooled)
        return 1.0

    monkeypatch.setattr(calibrate, "fastest_run", looking)
    monkeypatch.setitem(calibrate.MATRIX_SIZES, "cuda", (1, 8))
    monkeypatch.setitem(calibrate.VECTOR_ELEMENTS, "cuda", 64)
    with installed():
        found = measure(backend("cuda:0"))
    assert looked == [True, True]
    assert not CARD.unpooled
    assert found["speed"] == [2.0 * 8**3, 2.0 * 64 * 4]


def test_what_was_measured_is_kept_for_a_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By all that it depends on; what is kept and makes no sense is measured again."""
    monkeypatch.setenv("GT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GT_THREADS", "1")
    made: list[float] = []

    def counted(_: Backend) -> dict[str, Any]:
        made.append(1e9 + len(made))
        return {"speed": [made[-1], 2e9], "host_memory": 1}

    monkeypatch.setattr(calibrate, "measure", counted)
    cpu = backend("cpu")
    first = facts(cpu, 1e6)["speed"]
    assert facts(cpu, 1e6 + MAX_AGE_SECONDS - 1)["speed"] == first
    assert facts(cpu, 1e6)["host_memory"] == measure(cpu)["host_memory"]
    assert facts(cpu, 1e6 + MAX_AGE_SECONDS)["speed"] != first
    assert facts(cpu, 1e6)["speed"][0] == made[-1], "a clock that went back"
    count = len(made)
    monkeypatch.setattr(calibrate, "threads", lambda: 2)
    facts(cpu, 1e6)
    assert len(made) == count + 1
    for wrong in (
        "",
        "{",
        "[]",
        '{"speed": [1, 2]}',
        '{"of": 0, "at": 0, "speed": "ab"}',
        '{"speed": null, "of": [], "at": 1}',
    ):
        for path in (tmp_path / "cache").iterdir():
            path.write_text(wrong)
        count = len(made)
        assert facts(cpu, 1e6)["speed"] == [made[-1], 2e9]
        assert len(made) == count + 1
    monkeypatch.setenv("GT_CACHE", "/proc/no such folder")
    assert facts(cpu, 1e6)["speed"] == [made[-1], 2e9]


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
    assert fastest_run(lambda: runs.append(0), lambda: None, lambda: next(clock)) == pytest.approx(0.002)
    assert len(runs) == 4  # the first does not count
