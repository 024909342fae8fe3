"""Whole workers on the GPU, cores in this thread: programs see what they see on CPUs, however they are sharded.

`tests/worker/device/test_card.py` runs the same on a stand-in for CuPy, where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import cases

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import host_facts
from gt.errors import IndexOutOfRange, WorkerError
from gt.service import in_process
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.worker.base.backend import backend
from gt.worker.kernels.philox import device_words, words

DATA_PARALLEL = {"mesh": {"data": 2}, "sharding_config": {"*": {"strategy": "data_parallel"}}}
CONFIGS: list[tuple[int, Any]] = [
    (1, None),
    (2, DATA_PARALLEL),
    (2, {"mesh": {"model": 2}, "sharding_config": {"*": {"strategy": "tensor_parallel"}}}),
    (4, {"mesh": {"data": 2, "model": 2}, "sharding_config": {"*": {"strategy": "fully_sharded"}}}),
]


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    gt.disconnect()


def connect(devices: list[str], config: Any = None) -> Fabric:
    """A session on in-memory workers of these devices."""
    gt.disconnect()
    fabric = Fabric(len(devices), None if config is None else Config.from_plain(config), devices=devices)
    session = Session(InprocLink(fabric), "inproc", idle_flush=False)
    session.open({**host_facts(), "bulk": b""}, 1.0)
    sessions.adopt(session)
    return fabric


def sharded(fabric: Fabric) -> bool:
    """Whether values went from worker to worker."""
    return any(program.moves for core in fabric.workers.values() for program in core.programs.compiled.values())


def trained(devices: list[str], config: Any, steps: int = 6) -> list[float]:
    """The losses of a small network with a norm, a dropout and Adam, in a signal, for rules are for signals alone."""
    fabric = connect(devices, config)
    gt.manual_seed(0)
    numbers = np.random.default_rng(0)
    losses = []
    with gt.signal.context("net"):
        x, y = gt.from_numpy(numbers.standard_normal((16, 12), np.float32)), gt.from_numpy(numbers.integers(0, 5, 16))
        model = gt.nn.Sequential(
            gt.nn.Linear(12, 20), gt.nn.LayerNorm(20), gt.nn.GELU(), gt.nn.Dropout(0.2), gt.nn.Linear(20, 5)
        )
        optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(steps):
            loss = gt.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    found = [loss.item() for loss in losses]
    fabric.check()
    assert sharded(fabric) == (config is not None)
    return found


@pytest.mark.parametrize(("workers", "config"), CONFIGS)
def test_training_is_that_of_a_cpu_worker(workers: int, config: Any) -> None:
    """Also when several workers share the one card."""
    np.testing.assert_allclose(trained(["cuda:0"] * workers, config), trained(["cpu"], None), rtol=2e-5)


@pytest.mark.parametrize("devices", [["cuda:0", "cpu"], ["cpu", "cuda:0"]])
def test_a_mixed_fleet_trains_as_one_worker(devices: list[str]) -> None:
    """Pieces pass between NumPy's arrays and the device's."""
    np.testing.assert_allclose(trained(devices, DATA_PARALLEL), trained(["cpu"], None), rtol=2e-5)


@pytest.mark.parametrize("seed", range(cases(30)))
def test_drawn_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law on GPU workers: under any config what one worker sees, and NumPy."""
    from law.test_law import case, holds

    monkeypatch.setattr(in_process, "DEFAULT_DEVICE", "cuda:0")
    holds(*case(seed), f"{seed} 1", "programs under a config, on GPU workers")


@pytest.mark.parametrize("seed", range(cases(6)))
def test_drawn_networks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from law.test_law import holds, network_case

    monkeypatch.setattr(in_process, "DEFAULT_DEVICE", "cuda:0")
    holds(*network_case(seed), f"{seed} 1 --networks", "networks trained, on GPU workers")


def test_random_numbers_are_those_of_a_cpu() -> None:
    """Bit for bit, any part of a tensor by itself."""
    computed = backend("cuda:0")
    for shape, box in (
        ((1000,), ((0, 1000),)),
        ((7, 33), ((2, 6), (5, 31))),
        ((3, 4, 5), ((1, 2), (0, 4), (3, 5))),
        ((), ()),
    ):
        made = computed.to_host(device_words(computed.xp, shape, box)(2**64 - 1, 3))
        np.testing.assert_array_equal(made, words(2**64 - 1, 3, shape, box))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_drawn_is_what_a_cpu_draws(dtype: str) -> None:
    found = []
    for device in ("cuda:0", "cpu"):
        connect([device])
        gt.manual_seed(5)
        found.append((gt.rand(50, dtype=getattr(gt, dtype)).float().numpy(), gt.randn(50, dtype=gt.float32).numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)


def test_an_error_names_the_line_and_others_go_on() -> None:
    """An index out of range on the device, found when it is looked at: op, shapes and the program's own line."""
    connect(["cuda:0"])
    x, index = gt.from_numpy(np.arange(5.0)), gt.from_numpy(np.array([0, 7]))
    wrong = gt.take_along_dim(x, index, 0) + 1
    right = x * 2
    with pytest.raises(IndexOutOfRange, match="index 7 is out of range for axis 0 of size 5") as caught:
        wrong.numpy()
    assert "test_workers.py" in str(caught.value)
    np.testing.assert_array_equal(right.numpy(), np.arange(5.0) * 2)


@pytest.mark.parametrize("op", ["floor_divide", "remainder"])
def test_integer_division_by_zero_raises(op: str) -> None:
    connect(["cuda:0"])
    x, zero = gt.from_numpy(np.array([4, 5])), gt.from_numpy(np.array([2, 0]))
    with pytest.raises(WorkerError, match=r"ZeroDivisionError: .*integer division by zero"):
        getattr(gt, op)(x, zero).numpy()


def test_what_is_dropped_is_freed() -> None:
    """A loop holds the same number of bytes after every turn."""
    (worker,) = connect(["cuda:0"]).workers.values()
    x = gt.ones(64, 64)
    held = []
    for _ in range(12):
        x = (x @ x).tanh() + 1
        x.sum().item()
        held.append(worker.stored.nbytes)
    assert len(set(held[4:])) == 1
