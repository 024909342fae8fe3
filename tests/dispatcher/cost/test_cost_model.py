"""The cost model: seconds worked out by hand, speeds from what workers say, and shards in proportion to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.daemon.host import CONNECT_TIMEOUT
from gt.dispatcher.cost.cost_model import (
    HOST_COPIES,
    HOST_LATENCY,
    IMPOSSIBLE_SECONDS,
    NETWORK_LINK,
    NVLINK,
    PCIE,
    STAGED_LINK,
    TYPICAL_DEVICES,
    DeviceProfile,
    LinkProfile,
    compute_seconds,
    devices_of,
    instruction_work,
    measured_mesh,
    move_seconds,
    network_of,
    rounded,
    speeds_of,
    weights_of,
)
from gt.dispatcher.cost.nvlink_groups import side_by_side
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.placement import REPLICATE, Partial, Placement, Shard

SUM = Partial("sum")
ROWS, COLUMNS = Shard(0), Shard(1)
LINK = LinkProfile(1000.0, 2.0)


def said(flops: float, memory: float, host: str = "a", kind: str = "cpu") -> dict[str, Any]:
    return {"host": host, "kind": kind, "speed": [flops, memory]}


def gpu(bus: str, host: str = "a") -> dict[str, Any]:
    return {**said(1e13, 8e11, host, "cuda"), "bus": bus, "nccl": 22501}


# seconds


@pytest.mark.parametrize(
    ("before", "after", "parts", "seconds"),
    [
        (ROWS, ROWS, 4, 0.0),
        (ROWS, COLUMNS, 1, 0.0),
        (REPLICATE, ROWS, 4, 0.0),  # who holds the whole takes its part
        (ROWS, REPLICATE, 2, 2.0 + 2.0),  # half of 4,000 bytes, one exchange
        (ROWS, REPLICATE, 4, 4.0 + 3.0),  # three quarters, by a tree of depth two
        (ROWS, COLUMNS, 4, 4.0 + 0.75),
        (SUM, ROWS, 4, 4.0 + 3.0),
        (SUM, REPLICATE, 2, 2.0 + 4.0),  # all of it from the other is one exchange; half twice would be two
        (SUM, REPLICATE, 16, 16.0 + 7.5),  # reduce-scatter and all-gather
        (REPLICATE, SUM, 4, IMPOSSIBLE_SECONDS),
        (ROWS, SUM, 4, IMPOSSIBLE_SECONDS),
    ],
)
def test_a_move_takes_the_bytes_of_one_worker_and_a_latency_each_exchange(
    before: Placement, after: Placement, parts: int, seconds: float
) -> None:
    assert move_seconds(before, after, 4000.0, parts, LINK) == pytest.approx(seconds)


def test_a_product_is_bound_by_arithmetic_and_the_rest_by_memory() -> None:
    device = DeviceProfile(1e3, 1e2, 0.5)
    a, b, c = spec(float32, (2, 3)), spec(float32, (3, 5)), spec(float32, (2, 5))
    assert instruction_work("matmul", (a, b), (c,)) == (2 * 2 * 3 * 5, 4 * (6 + 15 + 10))
    assert compute_seconds(instruction_work("matmul", (a, b), (c,)), DeviceProfile(10.0, 1e9, 0.5)) == 0.5 + 60 / 10
    assert instruction_work("add", (c, "f"), (c,)) == (0, 80)
    assert compute_seconds(instruction_work("add", (c, "f"), (c,)), device) == 0.5 + 0.8
    assert compute_seconds(instruction_work("add", (c, "f"), (c,)), device, 0.25) == 0.5 + 0.2


def test_another_look_at_a_tensor_costs_only_the_instruction() -> None:
    x = spec(float32, (1000, 1000))
    assert compute_seconds(instruction_work("permute", (x,), (x,)), DeviceProfile(1.0, 1.0, 0.5)) == 0.5


# speeds


@pytest.mark.parametrize(("value", "shown"), [(1.2, 1.0), (1.3, 1.5), (1.7, 1.5), (1.8, 2.0), (5e9, 2.0**32)])
def test_speeds_have_two_significant_bits(value: float, shown: float) -> None:
    assert rounded(value) == rounded(shown) == shown


def test_equal_workers_on_one_host_are_equal_however_busy_it_was_when_they_started() -> None:
    devices = devices_of([said(4e10, 1e10), said(1e10, 1e10), said(4e10, 2e9), said(4e10, 1e10)])
    assert len(set(devices)) == 1
    assert devices[0][:2] == (rounded(4e10), rounded(1e10))


def test_unlike_kinds_and_hosts_stand_for_themselves() -> None:
    devices = devices_of(
        [said(4e10, 1e10), said(4e10, 1e10, "b"), said(1e13, 1e12, kind="cuda"), said(2e10, 1e10, "b")]
    )
    assert devices[1] == devices[3] == DeviceProfile(rounded(2e10), rounded(1e10), TYPICAL_DEVICES["cpu"].overhead)
    assert devices[2] == DeviceProfile(rounded(1e13), rounded(1e12), TYPICAL_DEVICES["cuda"].overhead)
    assert devices[0].flops == rounded(4e10)


@pytest.mark.parametrize(
    "speed", [None, "fast", [1e10], [0.0, 1e10], [float("nan"), 1e10], [True, True], [1e10, 1e300]]
)
def test_nonsense_counts_as_typical(speed: Any) -> None:
    (device,) = devices_of([{"kind": "cpu", "speed": speed}])
    assert device == DeviceProfile(
        rounded(TYPICAL_DEVICES["cpu"].flops), rounded(TYPICAL_DEVICES["cpu"].memory), TYPICAL_DEVICES["cpu"].overhead
    )


def test_an_axis_is_as_slow_as_its_slowest_link() -> None:
    facts = [said(4e10, 8e9, host) for host in "aabb"]
    near = speeds_of((4,), facts[:2] * 2).links
    data, model = speeds_of((2, 2), facts).links
    assert near == (model,)
    assert model == LinkProfile(rounded(8e9) / 4, HOST_LATENCY)
    assert data == NETWORK_LINK._replace(hosts=2)
    assert speeds_of((4,), facts).links == (NETWORK_LINK._replace(hosts=2, most=2),)


def test_a_link_that_was_measured_is_as_it_was_measured() -> None:
    """Either way round; within a host nothing changes, and what nobody measured is typical."""
    facts = [said(4e10, 8e9, host) for host in "aabb"]
    slow = LinkProfile(1e6, 0.01)
    for key in (("a", "b"), ("b", "a")):
        data, model = speeds_of((2, 2), facts, {key: slow}).links
        assert data == slow._replace(hosts=2)
        assert model == LinkProfile(rounded(8e9) / 4, HOST_LATENCY)
    assert speeds_of((4,), facts, {("a", "b"): slow}).links == (slow._replace(hosts=2, most=2),)
    assert speeds_of((2,), facts[::2], {("a", "c"): slow}).links == (NETWORK_LINK._replace(hosts=2),)


def test_a_mesh_keeps_its_hosts_and_the_slowest_link_between_them() -> None:
    """Hosts are told apart by the memory that their processes share, not by name; one host needs no network."""
    facts = [{**said(4e10, 8e9, "web"), "machine": machine} for machine in ("x", "x", "y", "z")]
    slow = LinkProfile(rounded(1e6), rounded(0.01))
    mesh, speeds = measured_mesh(1, {"data": 4}, (5, 6, 7, 8), facts, links={("x", "y"): slow})
    assert (mesh.hosts, mesh.network) == ((0, 0, 1, 2), network_of(slow))
    assert speeds.links == (slow._replace(hosts=3, most=2),)
    assert mesh.spread((0, 1, 2, 3)) == (3, 2, *network_of(slow))
    renamed = [{**said(4e10, 8e9, name), "machine": "x"} for name in "ab"]
    mesh, speeds = measured_mesh(1, {"data": 2}, (5, 6), renamed)
    assert (mesh.hosts, mesh.network, speeds.links[0].hosts) == ((), (), 1)
    assert side_by_side([0, 1, 2, 3], dict(enumerate(facts[i] for i in (2, 0, 3, 1))), {}) == [1, 3, 0, 2]


def test_an_all_reduce_over_hosts_costs_what_crosses_once() -> None:
    """So a plan prefers to reduce over hosts by way of each host, also where the planner compares it with other moves."""
    link = LinkProfile(1.25e8, 1e-4, hosts=2, most=2)
    flat = link._replace(hosts=4, most=1)
    nbytes = 1 << 24
    assert move_seconds(Partial(), REPLICATE, nbytes, 4, link) == pytest.approx(nbytes / 1.25e8 + 4e-4)
    assert move_seconds(Partial(), REPLICATE, nbytes, 4, flat) == pytest.approx(1.5 * nbytes / 1.25e8 + 4e-4)


def test_links_within_a_group_are_those_of_nvlink_and_between_groups_of_a_host_those_of_pcie() -> None:
    """Two hosts of two groups of two GPUs: three axes, three prices. A group says nothing about another host."""
    facts = [
        {**gpu(f"{group}{index}", host), "group": f"{host}/{group}"}
        for host in "ab"
        for group in (0, 1)
        for index in "01"
    ]
    assert speeds_of((2, 2, 2), facts).links == (NETWORK_LINK._replace(hosts=2), PCIE, NVLINK)
    assert speeds_of((4, 2), facts).links == (NETWORK_LINK._replace(hosts=2, most=2), NVLINK)
    assert speeds_of((2, 4), facts).links == (NETWORK_LINK._replace(hosts=2), PCIE)
    assert speeds_of((8,), facts).links == (NETWORK_LINK._replace(hosts=2, most=4),)
    assert speeds_of((4,), facts[:4]).links == (PCIE,)
    assert speeds_of((2,), facts[:2]).links == (NVLINK,)
    slow = [{**said(4e10, 8e9), "group": group} for group in "aab"]
    assert speeds_of((3,), slow).links == (LinkProfile(rounded(8e9) / HOST_COPIES, HOST_LATENCY),), (
        "NVLink joins no CPUs"
    )


def test_gpus_without_nccl_between_them_are_as_slow_as_the_way_through_the_host() -> None:
    """Two workers on one card, one that has none, another version, and a CPU worker beside."""
    cards = [gpu("0"), gpu("1")]
    assert speeds_of((2,), cards).links == (PCIE,)
    without = {key: value for key, value in cards[1].items() if key != "nccl"}
    assert speeds_of((2,), [gpu("0")] * 2).links == (LinkProfile(rounded(8e11) / HOST_COPIES, 2 * HOST_LATENCY),), (
        "by its own memory"
    )
    for other in (without, gpu("1") | {"nccl": 22700}, said(4e10, 8e9)):
        assert speeds_of((2,), [cards[0], other]).links == (STAGED_LINK,)
    assert speeds_of((2, 2), [said(4e10, 8e9), said(4e10, 8e9), *cards]).links[0] == STAGED_LINK


# weights


def devices(*flops: float) -> tuple[DeviceProfile, ...]:
    return tuple(DeviceProfile(each, each, 0.0) for each in flops)


def test_equal_workers_weigh_one() -> None:
    assert weights_of((2, 3), devices(*[7e9] * 6)) == ((1, 1), (1, 1, 1))


def test_weights_are_in_proportion_to_speed() -> None:
    assert weights_of((3,), devices(2e9, 4e9, 3e9)) == ((2, 4, 3),)


def test_on_each_axis_a_position_counts_as_the_mean_of_its_ranks() -> None:
    # ranks 0 and 1 stand at data 0, ranks 0 and 2 at model 0
    assert weights_of((2, 2), devices(1e9, 1e9, 3e9, 3e9)) == ((1, 3), (1, 1))
    assert weights_of((2, 2), devices(1e9, 3e9, 1e9, 3e9)) == ((1, 1), (1, 3))


def test_a_measured_mesh_is_the_same_mesh_when_it_is_measured_again() -> None:
    first = measured_mesh(1, {"data": 2}, (0, 1), [said(4.0e10, 1.0e10), said(3.9e10, 1.05e10, "b")])
    again = measured_mesh(1, {"data": 2}, (0, 1), [said(4.2e10, 0.98e10), said(4.1e10, 1.01e10, "b")])
    assert first == again
    assert first[0].weights == ((1, 1),)


# the whole service


def test_unlike_workers_get_shards_in_proportion_and_values_stay() -> None:
    """One worker three times as fast as the other three: it holds half of the batch."""
    config = gt.Config.from_plain({"mesh": {"data": 4}, "sharding_config": {"batch": {"strategy": "data_parallel"}}})
    facts = [said(3 * 2.0**33, 3 * 2.0**31, "a"), *(said(2.0**33, 2.0**31, host) for host in "bcd")]
    fabric = Fabric(4, config, facts=facts)
    session = Session(InprocLink(fabric), "unlike", idle_flush=False)
    session.open({"bulk": b""}, CONNECT_TIMEOUT)
    sessions.adopt(session)
    try:
        x = np.arange(48.0, dtype=np.float32).reshape(12, 4)
        with gt.signal.context("batch"):
            tensor = gt.from_numpy(x)
            product = (tensor @ tensor.T).relu()
        np.testing.assert_array_equal(product.numpy(), np.maximum(x @ x.T, 0))
        (record,) = fabric.dispatcher.service.meshes.values()
        assert record.mesh.weights == ((3, 1, 1, 1),)
        (client,) = fabric.dispatcher.service.clients.values()
        assert client.planner is not None
        assert client.planner.speeds == record.speeds
        stored = [next(iter(worker.stored.tensors.values())) for worker in fabric.workers.values()]
        assert [min(array.shape[0] for array in store.values()) for store in stored] == [6, 2, 2, 2]
    finally:
        gt.disconnect()
