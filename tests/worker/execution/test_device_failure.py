"""A device that fails takes its worker with it, and the lines that may be to blame are named; profilers see signals and ops."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from card import CARD, installed
from gpu.test_workers import connect

import gt
from gt.errors import WorkerLost
from gt.worker.execution.device_failure import DeviceFailed, FailureWatch, WatchedDevice
from gt.worker.kernels import elementwise
from gt.worker.kernels.cuda import source

ILLEGAL = 700


@pytest.fixture(autouse=True)
def _on_the_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CARD.timeline, "status", 0)
    CARD.ranges.clear()
    with installed():
        yield
        gt.disconnect()
    source.compiled.cache_clear()  # what a test compiled otherwise


@pytest.fixture
def _kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arc tangent kills the device: nobody notices while it is started, everybody afterwards."""
    arctan = CARD.arctan

    def fatal(*operands: Any) -> Any:
        CARD.timeline.status = ILLEGAL
        return arctan(*operands)

    monkeypatch.setattr(CARD, "arctan", fatal, raising=False)


def lost(run: Any) -> str:
    """What a program is told by whose computing the device failed."""
    with pytest.raises(WorkerLost) as caught:
        run()
    return str(caught.value)


def compiling(launch: Any) -> Any:
    """A compiler for which every source has one kernel, which is `launch`."""
    return lambda **_: SimpleNamespace(get_function=lambda _: launch)


@pytest.mark.usefixtures("_kills")
def test_a_device_that_fails_is_a_lost_worker() -> None:
    """The plan's own lines are named, others are not, and so is what to do to know more."""
    fabric = connect(["cuda:0"])
    x = gt.from_numpy(np.ones(4, np.float32))
    x.numpy()
    said = lost(lambda: (gt.atan(x) @ x).numpy())
    assert "worker 0 was lost (cuda:0 failed: cudaError700: it fails; it was computing by itself, one of " in said
    assert "test_device_failure.py:" in said
    assert "with GT_SYNC=1" in said
    assert said.endswith("what it held is gone")
    assert not fabric.workers


@pytest.mark.usefixtures("_kills")
def test_with_gt_sync_the_step_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very instruction, with shapes and line, though others of the plan failed after it."""
    monkeypatch.setenv("GT_SYNC", "1")
    connect(["cuda:0"])
    x = gt.from_numpy(np.ones(4, np.float32))
    said = lost(lambda: (gt.atan(x) @ x).numpy())
    assert "cuda:0 failed: cudaError700: it fails; in atan of f32[4] at " in said
    assert "one of" not in said


def test_with_gt_sync_all_steps_of_a_kernel_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused kernel fails as a whole: all that it does is to blame, and nothing else of its plan."""

    def launch(*_: Any) -> None:
        CARD.timeline.status = ILLEGAL

    monkeypatch.setenv("GT_SYNC", "1")
    monkeypatch.setattr(CARD, "RawModule", compiling(launch), raising=False)
    connect(["cuda:0"])
    x = gt.from_numpy(np.ones(4, np.float32))
    said = lost(lambda: (gt.flip(gt.sinh(gt.cosh(x)), 0) @ x).numpy())
    assert "it fails; in one kernel that does cosh of f32[4] at " in said
    assert "; sinh of f32[4] at " in said
    assert "matmul" not in said


def test_who_waits_for_a_device_that_fails_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch waits for what is not known of an index; the device fails meanwhile, and that is what is said."""
    monkeypatch.setattr(CARD.timeline, "quick", False)
    connect(["cuda:0"])
    y = gt.take_along_dim(gt.from_numpy(np.arange(5.0)), gt.from_numpy(np.array([0, 1])), 0)
    gt.synchronize()
    CARD.timeline.status = ILLEGAL
    assert "cuda:0 failed: cudaError700: it fails" in lost(y.numpy)


def test_other_sessions_go_on_with_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has nothing on the device hears nothing of it."""
    fabric = connect(["cuda:0", "cuda:0"])
    x = gt.from_numpy(np.ones(4, np.float32))
    x.numpy()
    idle = next(worker for worker in fabric.workers.values() if not worker.stored.tensors.get(1))
    monkeypatch.setattr(idle.watch, "device", WatchedDevice("cuda:0", lambda: "cudaError700"))
    with pytest.raises(DeviceFailed, match="cudaError700; it was computing by itself, one of no plan"):
        idle.handle(None, 0.0)
    np.testing.assert_array_equal((x + 1).numpy(), np.full(4, 2, np.float32))


def test_without_a_failure_nothing_is_asked_twice() -> None:
    """A CPU has no watch; on a device the last plans are remembered, and no more."""
    (cpu,) = connect(["cpu"]).workers.values()
    assert cpu.watch is None
    (worker,) = connect(["cuda:0"]).workers.values()
    x = gt.from_numpy(np.ones(4, np.float32))
    for n in range(9):
        (x * n + elementwise.MIN_BITWISE_ELEMENTS).numpy()
    watch = worker.watch
    assert isinstance(watch, FailureWatch)
    assert len(watch.recent) == 4


def test_ranges_have_the_programs_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when they are asked for; each ends, also where a step fails, and chains say what they are of."""
    monkeypatch.setattr(CARD, "RawModule", compiling(lambda *_: None), raising=False)
    connect(["cuda:0"])
    (gt.from_numpy(np.ones((4, 4), np.float32)) + 1).numpy()
    assert CARD.ranges == []
    monkeypatch.setenv("GT_NVTX", "1")
    connect(["cuda:0"])
    x = gt.from_numpy(np.ones((4, 4), np.float32))
    with gt.signal.context("mlp"), gt.signal.context("hidden"):
        y = ((x @ x) * 2 - 1).tanh()
    y.numpy()
    assert CARD.ranges == ["mlp/hidden: matmul", "", "mlp/hidden: mul…tanh (3)", ""]
    CARD.ranges.clear()
    with pytest.raises(gt.IndexOutOfRange):
        gt.take_along_dim(x, gt.from_numpy(np.array([[9]])), 0).numpy()
    assert CARD.ranges[-2:] == ["gather", ""]
