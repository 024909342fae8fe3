"""A worker on a new machine takes the place of a lost one, and sees none of its files: what peers hold, too, comes from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulation.network import Link
from simulation.service import ADDRESS, Service, simulated

import gt
from gt import nn
from gt.errors import GTError
from gt.worker.execution.tensor_store import ABSENT

STEPS = 8
KILLED_AT = 5
DATA_PARALLEL: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
GRID: dict[str, Any] = {
    "mesh": {"data": 2, "model": 2},
    "sharding_config": {
        "net": {"strategy": "data_parallel"},
        "layer0": {"strategy": "tensor_parallel", "dimension": 0},
        "layer1": {"strategy": "tensor_parallel", "dimension": 1},
    },
}
SHARDED: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}


def marked(service: Service) -> None:
    """Wait until a mark has all that was sent."""
    (client,) = service.dispatcher_shell.core.service.clients.values()
    while not client.recovery.marks:
        service.scheduler.wait([], 0.05)


def train(service: Service, happens: Callable[[], None]) -> list[bytes]:
    """The bits of losses and weights of a training, in which something happens between two steps."""
    gt.manual_seed(7)
    draw = np.random.default_rng(0)
    model = nn.Sequential()
    for at, (into, out) in enumerate([(6, 8), (8, 4)]):
        with gt.signal.context("net"), gt.signal.context(f"layer{at}"):
            model.append(nn.Linear(into, out))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    turned = gt.ones((4, 6)).T * 2
    bits = []
    for step in range(STEPS):
        with gt.signal.context("net"):
            x = gt.from_numpy(draw.standard_normal((8, 6), np.float32))
            labels = gt.from_numpy(draw.integers(0, 4, 8))
            for at, layer in enumerate(model):
                with gt.signal.context(f"layer{at}"):
                    x = layer(x).relu() if at < 1 else layer(x)
            loss = nn.functional.cross_entropy(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bits.append(loss.numpy().tobytes())
        if step == KILLED_AT:
            happens()
    bits.append(turned.sum(1).numpy().tobytes())
    bits += [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return bits


def run(config: dict[str, Any], workers: int, happens: Callable[[Service], None]) -> tuple[Any, Service]:
    """What comes of a training on workers each of which has a folder of its own, or the error."""
    found: list[Any] = []
    with simulated(1) as service:
        service.apart, service.mark_seconds = True, 0.05
        service.start_dispatcher(workers)
        for number in range(workers):
            service.start_worker(f"worker{number}", Link(0.001))

        def program() -> None:
            gt.connect(ADDRESS, config=config)
            try:
                found.append(train(service, lambda: happens(service)))
            except GTError as error:
                found.append(error)
            gt.disconnect()

        service.start_program("program0", Link(0.001), program)
        service.scheduler.run(600.0, lambda: service.programs["program0"].dead)
        service.scheduler.run(service.scheduler.now + 10.0)
        assert not service.scheduler.failures
        for shell in service.worker_shells.values():
            shell.core.check()
            assert not shell.core.stored.tensors, "nothing is left"
    return found[0], service


def nothing(_service: Service) -> None:
    pass


def worker_lost(service: Service) -> None:
    marked(service)
    service.restart_worker("worker1")


def all_lost(service: Service) -> None:
    marked(service)
    service.restart_worker("worker1")
    service.restart_dispatcher()


@pytest.mark.parametrize("happens", [worker_lost, all_lost], ids=["worker", "worker and dispatcher"])
@pytest.mark.parametrize(("config", "workers"), [(DATA_PARALLEL, 2), (GRID, 4)], ids=["data", "grid"])
def test_what_peers_hold_too_comes_from_them(
    config: dict[str, Any], workers: int, happens: Callable[[Service], None]
) -> None:
    """No program hears of it, and all that follows has the same bits."""
    undisturbed, _ = run(config, workers, nothing)
    found, service = run(config, workers, happens)
    assert found == undisturbed
    assert service.delivered > 0


@pytest.mark.parametrize(("config", "workers"), [(DATA_PARALLEL, 2), (GRID, 4)], ids=["data", "grid"])
def test_tensors_lie_in_memory_as_at_the_lost_worker(config: dict[str, Any], workers: int) -> None:
    """On their strides depends in which order NumPy adds up."""
    strides: list[dict[int, tuple[int, ...]]] = []

    def look(service: Service) -> None:
        ((_, tensors),) = service.worker_shells["worker1"].core.stored.tensors.items()
        strides.append({tensor: value.strides for tensor, value in tensors.items() if value is not ABSENT})

    def lost(service: Service) -> None:
        marked(service)
        look(service)
        service.restart_worker("worker1")
        while not service.dispatcher_shell.core.service.counters.recoveries:
            service.scheduler.wait([], 0.1)
        look(service)

    _, service = run(config, workers, lost)
    before, after = strides
    assert service.delivered > 0
    assert after == {tensor: before[tensor] for tensor in after}
    gone = before.keys() - after.keys()
    assert len(gone) < len(after) / 2, "most of it is replicated"
    assert any(found != tuple(sorted(found, reverse=True)) for found in after.values()), "some are turned"


def test_what_nobody_else_holds_is_lost() -> None:
    """With the error of the file that nobody sees."""
    found, _ = run(SHARDED, 2, worker_lost)
    assert isinstance(found, GTError)
    assert "cannot be had" in str(found)
