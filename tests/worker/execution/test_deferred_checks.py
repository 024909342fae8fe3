"""Errors that a GPU finds are looked for later: nobody waits for them, and they are where a CPU has them, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from card import CARD, installed
from effort import cases
from gpu.test_workers import connect

import gt
from gt.errors import GTError, IndexOutOfRange, WorkerError
from gt.service.in_process import Fabric

TWO = {"mesh": {"data": 2}, "sharding_config": {"*": {"strategy": "data_parallel"}}}


@pytest.fixture(autouse=True)
def _on_a_slow_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is started is over when somebody has asked for it again and again."""
    monkeypatch.setattr(CARD.timeline, "quick", False)
    monkeypatch.setattr(CARD.timeline, "patience", 50)
    monkeypatch.setattr(CARD.timeline, "waits", 0)
    with installed():
        yield
        gt.disconnect()


def doubtful(fabric: Fabric) -> list[int]:
    """How many stored values have doubts, by worker."""
    deferred_checks = [worker.deferred_checks for worker in fabric.workers.values()]
    return [len(each.stored) if each is not None else 0 for each in deferred_checks]


def test_training_waits_for_nothing_but_its_fetches() -> None:
    """An embedding and a cross-entropy look at indices in every step; the thread goes on, and at the end nothing is in doubt."""
    fabric = connect(["cuda:0"])
    gt.manual_seed(0)
    words, targets = gt.from_numpy(np.arange(12).reshape(3, 4) % 7), gt.from_numpy(np.arange(12) % 5)
    model = gt.nn.Sequential(gt.nn.Embedding(7, 8), gt.nn.Linear(8, 5))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = gt.nn.functional.cross_entropy(model(words).reshape(12, 5), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    gt.synchronize()
    assert CARD.timeline.waits == 0
    assert doubtful(fabric)[0] > 0
    loss.item()
    assert CARD.timeline.waits == 0, "not even for a fetch"
    (worker,) = fabric.workers.values()
    assert worker.deferred_checks is not None
    assert not worker.deferred_checks.checks
    fabric.check()


def test_what_was_computed_from_it_is_poison_and_nothing_else() -> None:
    """In its own plan and in later ones, with the line that a CPU names."""
    connect(["cuda:0"])
    x, index = gt.from_numpy(np.arange(5.0)), gt.from_numpy(np.array([0, 7]))
    wrong = gt.take_along_dim(x, index, 0)
    right = x * 2
    gt.synchronize()
    later, beside = wrong + 1, right + 1
    gt.synchronize()
    np.testing.assert_array_equal(beside.numpy(), np.arange(5.0) * 2 + 1)
    for poison in (later, wrong, later * 2):
        with pytest.raises(IndexOutOfRange, match="index 7 is out of range for axis 0 of size 5") as caught:
            poison.numpy()
        assert "test_deferred_checks.py" in str(caught.value)
    np.testing.assert_array_equal(right.numpy(), np.arange(5.0) * 2)


def test_an_answer_that_has_come_is_taken_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CARD.timeline, "quick", True)
    fabric = connect(["cuda:0"])
    x = gt.from_numpy(np.arange(5.0))
    sound = gt.take_along_dim(x, gt.from_numpy(np.array([1, 2])), 0)
    wrong = gt.take_along_dim(x, gt.from_numpy(np.array([-6])), 0)
    gt.synchronize()
    assert doubtful(fabric) == [0]
    np.testing.assert_array_equal((sound + 1).numpy(), [2, 3])
    with pytest.raises(IndexOutOfRange):
        (wrong + 1).numpy()
    assert CARD.timeline.waits == 0


def test_division_by_zero_and_negative_powers() -> None:
    connect(["cuda:0"])
    x, zero = gt.from_numpy(np.array([4, 5])), gt.from_numpy(np.array([2, 0]))
    quotient, power = x // zero, x ** (zero - 2)
    gt.synchronize()
    assert CARD.timeline.waits == 0
    with pytest.raises(WorkerError, match="ZeroDivisionError: floor_divide: integer division by zero"):
        quotient.numpy()
    with pytest.raises(WorkerError, match="ValueError: pow: an integer to a negative power"):
        power.numpy()


def test_others_see_no_doubtful_value() -> None:
    """Before a piece leaves its worker its doubts are settled: the other worker has the error, not a number."""
    fabric = connect(["cuda:0", "cuda:0"], TWO)
    table = gt.from_numpy(np.arange(20.0).reshape(10, 2))
    with gt.signal.context("data"):
        rows = gt.nn.functional.embedding(gt.from_numpy(np.array([0, 3, 11, 2])), table)
        total = rows.sum()
    with pytest.raises(IndexOutOfRange, match="index 11 is out of range"):
        total.item()
    fabric.check()


def test_with_gt_sync_errors_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_SYNC", "1")
    (worker,) = connect(["cuda:0"]).workers.values()
    assert worker.deferred_checks is None
    with pytest.raises(IndexOutOfRange):
        gt.take_along_dim(gt.ones(3), gt.from_numpy(np.array([3])), 0).numpy()


def program(seed: int) -> list[object]:
    """Reads at drawn places, some of them wrong, and sums of drawn results: values, or the first line of the error."""
    draw = np.random.default_rng(seed)
    gt.manual_seed(0)
    values = [gt.from_numpy(draw.standard_normal(6)) for _ in range(3)]
    for _ in range(12):
        a, b = (values[draw.integers(len(values))] for _ in range(2))
        way = draw.integers(4)
        if way == 0:
            values.append(a + b)
        elif way == 1:
            values.append(gt.take_along_dim(a, gt.from_numpy(draw.integers(-6, 7, 6)), 0))
        elif way == 2:
            values.append(a[gt.from_numpy(draw.integers(0, 6, 6))] * 2)
        else:
            gt.synchronize()
            del values[draw.integers(len(values)) : -2]
    found: list[object] = []
    for value in values:
        try:
            found.append(value.numpy().tolist())
        except GTError as error:
            found.append(f"{type(error).__name__}: {error}".splitlines()[0])
    return found


@pytest.mark.parametrize("seed", range(cases(40)))
def test_drawn_programs_have_errors_where_a_cpu_has_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether answers come at once or when they are waited for."""
    connect(["cpu"])
    expected = program(seed)
    for quick in (True, False):
        monkeypatch.setattr(CARD.timeline, "quick", quick)
        fabric = connect(["cuda:0"])
        assert program(seed) == expected
        fabric.check()
