"""Workers that NVLink joins: who they are, where they stand in meshes, and what that does to prices and to plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import CONNECT_TIMEOUT
from gt.dispatcher.cost.cost_model import NVLINK, PCIE, Speeds
from gt.dispatcher.cost.nvlink_groups import groups_of, side_by_side
from gt.dispatcher.cost.plan_estimate import estimate_plan
from gt.ir.instruction import Plan
from gt.service.in_process import Fabric, InprocLink
from gt.service.session import _read
from gt.sharding.placement import Mesh


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def card(index: int, size: int = 2, host: str = "a") -> dict[str, Any]:
    return {
        "host": host, "kind": "cuda", "device": f"cuda:{index}", "nvlink_group_size": size, "speed": [1e13, 8e11],
        "bus": f"0000:{index:02x}:00.0", "nccl": 22501,
        "memory": 80 << 30,
    }  # fmt: skip


def test_runs_of_gpus_by_their_numbers() -> None:
    """In whatever order workers joined, and whoever is missing, a GPU is in the group of its number."""
    workers = dict(enumerate([card(3), card(0), card(5), card(1), card(2, host="b"), card(2)]))
    assert groups_of(workers) == {
        1: "a/cuda/0", 3: "a/cuda/0", 5: "a/cuda/1", 0: "a/cuda/1", 2: "a/cuda/2", 4: "b/cuda/1",
    }  # fmt: skip
    cpus = {number: {"host": "a", "kind": "cpu", "device": "cpu", "nvlink_group_size": 2} for number in (4, 7, 9)}
    assert groups_of(cpus) == {4: "a/cpu/0", 7: "a/cpu/0", 9: "a/cpu/1"}


@pytest.mark.parametrize("said", [{}, {"nvlink_group_size": 0}, {"nvlink_group_size": "4"}, {"nvlink_group_size": -1}])
def test_who_says_nothing_is_in_no_group(said: dict[str, Any]) -> None:
    """Nor whoever says nonsense; such workers stay where they were."""
    assert groups_of({0: said, 1: said}) == {}
    assert side_by_side([0, 1], {0: said, 1: said}, {}) == [0, 1]


def test_those_of_a_group_stand_beside_each_other_and_the_largest_group_first() -> None:
    """So a mesh of two takes the whole group, not one worker of each."""
    workers = dict(enumerate([card(0), card(3), card(6), card(2)]))
    assert side_by_side([0, 1, 2, 3], workers, groups_of(workers)) == [3, 1, 0, 2]


def session(facts: list[dict[str, Any]], config: Any) -> Fabric:
    """A session on in-memory workers that say these facts."""
    fabric = Fabric(len(facts), None, facts=facts)
    link = InprocLink(fabric)
    here = Session(link, "inproc", idle_flush=False)
    here.open({"bulk": b""}, CONNECT_TIMEOUT)
    sessions.adopt(here)
    here.configure(_read(config).to_wire())
    return fabric


MESH = {
    "mesh": {"data": 2, "model": 2},
    "sharding_config": {"net": {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "model"}},
}


def test_the_last_axis_of_a_mesh_stays_in_a_group() -> None:
    """Workers joined across the groups; the axis that exchanges most is over NVLink all the same, and predicted so."""
    seconds = []
    for size in (2, 0):
        cards = [card(index, size) for index in (0, 2, 1, 3)]
        fabric = session(cards, MESH)
        with gt.signal.context("net"):
            w = gt.nn.Parameter(gt.zeros(256, 256))
            y = (gt.ones(256, 256) @ w.t()).sum()
        assert y.item() == 0
        (record,) = fabric.dispatcher.service.meshes.values()
        if size:
            assert record.mesh.members == (0, 2, 1, 3), "cuda:0 and cuda:1, cuda:2 and cuda:3"
            assert record.speeds.links == (PCIE, NVLINK)
        else:
            assert record.mesh.members == (0, 1, 2, 3)
        (client,) = fabric.dispatcher.service.by_number.values()
        plans = [cached.planned.plan for cached in client.plans.by_residents.values()]
        seconds.append(sum(estimate_plan(plan, record.mesh, record.speeds).seconds for plan in plans))
        fabric.check()
        gt.disconnect()
    assert seconds[0] != seconds[1]


def planned(size: int) -> tuple[list[Plan], Mesh, Speeds, float]:
    """A training step under `auto` on two GPUs: its plans, on what, and the weight's sum after it."""
    config = {"mesh": {"workers": 2}, "sharding_config": {"net": {"strategy": "auto"}}}
    fabric = session([card(0, size), card(1, size)], config)
    with gt.signal.context("net"):
        w = gt.nn.Parameter(gt.ones(512, 512))
        ((gt.ones(1024, 512) @ w.t()).relu() / 512).sum().backward()
        with gt.no_grad():
            w -= 0.125 * w.grad
    value = w.sum().item()
    (client,) = fabric.dispatcher.service.by_number.values()
    (record,) = fabric.dispatcher.service.meshes.values()
    plans = [cached.planned.plan for cached in client.plans.by_residents.values()]
    gt.disconnect()
    return plans, record.mesh, record.speeds, value


def test_plans_go_by_what_joins_the_workers() -> None:
    """Where NVLink joins two GPUs another plan is chosen than where it does not. Each is the quicker one at its own prices,
    and the values are the same."""
    near, _, fast, value = planned(2)
    far, mesh, slow, same = planned(1)
    assert (fast.links, slow.links) == ((NVLINK,), (PCIE,))
    assert list(map(str, near)) != list(map(str, far))
    for chosen, other, speeds in ((near, far, fast), (far, near, slow)):
        seconds, instead = (sum(estimate_plan(plan, mesh, speeds).seconds for plan in some) for some in (chosen, other))
        assert seconds < instead
    assert value == same
