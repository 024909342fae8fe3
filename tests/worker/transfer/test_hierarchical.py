"""The all-reduce between hosts: each element is counted once, in one order, and crosses once from each host."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from builders import Array
from effort import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_move import compiled, exchanged

from gt.ir.dtypes import float32, float64
from gt.ir.spec import spec
from gt.sharding.collectives import ALGORITHMS, HostSpread, all_reduce_algorithm, wire_bytes
from gt.sharding.partition import bytes_between_hosts, extent, moved_bytes
from gt.sharding.placement import REPLICATE, Mesh, Partial, Shard, uniform_mesh
from gt.worker.transfer.move import Move
from gt.worker.transfer.move_schedule import MoveSchedule, by_host, hierarchical

TEN_GIGABIT = (1_250_000_000, 100_000)
"""bytes/s and nanoseconds of a link between hosts."""


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of at most 16 bytes: so small values go in many."""
    monkeypatch.setattr("gt.sharding.collectives.MAX_CHUNK_BYTES", 16)


def on_hosts(hosts: tuple[int, ...], sizes: dict[str, int] | None = None) -> Mesh:
    """A mesh of equal workers, with the host of each rank."""
    mesh = uniform_mesh(1, sizes or {"workers": len(hosts)}, tuple(range(len(hosts))))
    return replace(mesh, hosts=hosts, network=TEN_GIGABIT)


def moves_of(mesh: Mesh, shape: tuple[int, ...], algorithm: str = "hierarchical") -> list[Move]:
    whole = spec(float64, shape)
    everywhere = (REPLICATE,) * len(mesh.sizes)
    return [
        compiled(whole, (Partial(),) * len(mesh.sizes), everywhere, mesh, r, algorithm)
        for r in range(len(mesh.members))
    ]


def as_documented(held: list[Array], schedules: list[MoveSchedule], near: list[tuple[int, ...]]) -> Array:
    """The sum in the documented order: the root's host by rank, then the sum by rank of every other host, in order."""
    total = np.empty_like(held[0])
    for rank, schedule in enumerate(schedules):
        home = next(at for at, members in enumerate(near) if rank in members)
        for made in schedule.made:
            if len(made.sources) == len(near[home]) + len(near) - 1:  # this rank is the root of the piece
                at = tuple(slice(*pair) for pair in made.part)
                sums = [
                    np.add.reduce([held[source][at] for source in other])
                    for place, other in enumerate(near)
                    if place != home
                ]
                total[at] = np.add.reduce([*(held[source][at] for source in near[home]), *sums])
    return total


hosts_of_ranks = st.lists(st.integers(0, 3), min_size=2, max_size=7).map(tuple)


@given(hosts_of_ranks, st.lists(st.integers(0, 9), max_size=3).map(tuple), st.integers(0, 1000))
@settings(max_examples=cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("_small_chunks")
def test_every_element_is_counted_once(hosts: tuple[int, ...], shape: tuple[int, ...], seed: int) -> None:
    """However ranks lie on hosts, whatever the shape and whatever overtakes what: NumPy's sum, and one result everywhere."""
    mesh = on_hosts(hosts)
    held = [
        np.random.default_rng((seed, rank)).integers(1, 1 << 20, shape).astype(np.float64) for rank in range(len(hosts))
    ]
    found = [each.result() for each in exchanged(moves_of(mesh, shape), held, seed=seed, lend=bool(seed % 2))]
    for each in found:
        np.testing.assert_array_equal(each, sum(held))
        assert each.tobytes() == found[0].tobytes()


@given(hosts_of_ranks, st.integers(0, 200), st.integers(0, 1000))
@settings(max_examples=cases(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("_small_chunks")
def test_the_order_of_addition_is_the_documented_one(hosts: tuple[int, ...], size: int, seed: int) -> None:
    """To the bit, so that neither time nor traffic has a part in it."""
    mesh, group = on_hosts(hosts), tuple(range(len(hosts)))
    near = by_host(group, hosts)
    schedules = [hierarchical(((0, size),), 8, near, rank) for rank in group]
    held = [np.random.default_rng((seed, rank)).standard_normal(size) for rank in group]
    wanted = as_documented(held, schedules, near)
    for each in exchanged(moves_of(mesh, (size,)), held, seed=seed):
        assert each.result().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 1, 1, 1)])
def test_each_element_crosses_once_from_each_host(hosts: tuple[int, ...]) -> None:
    """What each host sends to others and gets of them is what the cost model counts, and all hosts have the same."""
    size, count = 4 << 10, len(set(hosts))
    group = tuple(range(len(hosts)))
    near = by_host(group, hosts)
    out, into = dict.fromkeys(range(count), 0), dict.fromkeys(range(count), 0)
    for rank in group:
        schedule = hierarchical(((0, size),), 4, near, rank)
        sent = [(math.prod(extent(each.part)), each.targets) for each in (*schedule.sent, *schedule.made)]
        for elements, target in ((elements, target) for elements, targets in sent for target in targets):
            if hosts[target] != hosts[rank]:
                out[hosts[rank]] += 4 * elements
                into[hosts[target]] += 4 * elements
    spread = on_hosts(hosts).spread(group)
    assert spread is not None
    priced = wire_bytes("hierarchical", 4 * size, len(hosts), spread)
    assert set(out.values()) | set(into.values()) == {priced}
    assert priced * spread.most == wire_bytes("two-step", 4 * size, len(hosts), spread), (
        "that sends as often as a host has workers"
    )


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 1), (0, 0, 1, 2, 2)])
@pytest.mark.usefixtures("_small_chunks")
def test_a_fault_or_a_lost_host_reaches_everybody(hosts: tuple[int, ...]) -> None:
    """One rank has a fault instead of its contribution: nobody waits for ever, and every rank learns of it."""
    mesh = on_hosts(hosts)
    held = [np.ones((7, 5)) for _ in hosts]
    for bad in range(len(hosts)):
        fault = ("WorkerError", f"rank {bad}")
        values = [None if rank == bad else value for rank, value in enumerate(held)]
        found = exchanged(moves_of(mesh, (7, 5)), values, faults={bad: fault}, seed=bad, lend=True)
        assert [each.fault for each in found] == [fault] * len(hosts)


def test_what_crosses_hosts_chooses_and_hosts_alone_decide() -> None:
    """Small values go at once, large ones through hosts; the slower the link, the earlier. One host is as ever."""
    gigabit, ten = HostSpread(2, 2, 125_000_000, 100_000), HostSpread(2, 2, *TEN_GIGABIT)
    sizes = [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 24]
    chosen = {link.bandwidth: [all_reduce_algorithm(size, 4, link) for size in sizes] for link in (gigabit, ten)}
    assert chosen[gigabit.bandwidth] == ["direct", *["hierarchical"] * 4]
    assert chosen[ten.bandwidth] == ["direct", "direct", "direct", "hierarchical", "hierarchical"]
    assert all_reduce_algorithm(1 << 24, 4, HostSpread(4, 1, *TEN_GIGABIT)) == "two-step"
    assert all_reduce_algorithm(1 << 24, 64, HostSpread(8, 8, *TEN_GIGABIT)) == "hierarchical"
    assert all_reduce_algorithm(8, 64, HostSpread(8, 8, *TEN_GIGABIT)) == "tree"
    assert on_hosts((0, 0, 1, 1)).spread((0, 1)) is None


def test_an_axis_within_hosts_is_reduced_as_on_one_host() -> None:
    """On data × model, with a host for each position of data, only sums along data cross hosts."""
    mesh = on_hosts((0, 0, 1, 1), {"data": 2, "model": 2})
    whole = spec(float32, (1 << 20,))
    along_model = [compiled(whole, (REPLICATE, Partial()), (REPLICATE, REPLICATE), mesh, rank) for rank in range(4)]
    assert [move.targets for move in along_model] == [(1,), (0,), (3,), (2,)]
    both = [compiled(whole, (Partial(), Partial()), (REPLICATE, REPLICATE), mesh, rank) for rank in range(4)]
    crossing = [(rank, target) for rank, move in enumerate(both) for target in move.targets if rank // 2 != target // 2]
    assert all(rank % 2 == target % 2 for rank, target in crossing), "owners of one piece alone speak over the network"
    total, most = moved_bytes(whole.shape, 4, (Partial(), Partial()), (REPLICATE, REPLICATE), mesh)
    assert (total, most) == (2 * 3 * whole.nbytes, 2 * 3 * whole.nbytes // 4)
    assert sum(move.expected(move.awaited) for move in both) == total


def test_microbatches_reduce_through_the_same_hosts() -> None:
    """A plan's ranks count each worker once a microbatch; its hosts are those of the workers."""
    timed = on_hosts((0, 0, 1, 1)).timed(3)
    assert timed.hosts == tuple(itertools.chain.from_iterable([host] * 3 for host in (0, 0, 1, 1)))
    assert timed.spread([0, 3, 6, 9]) == HostSpread(2, 2, *TEN_GIGABIT)


@given(hosts_of_ranks, st.sampled_from(ALGORITHMS))
def test_the_bytes_between_hosts_are_those_that_ranks_send(hosts: tuple[int, ...], algorithm: str) -> None:
    """As `gt explain` counts them, of every algorithm, and of a gather besides."""
    mesh, whole = on_hosts(hosts), spec(float64, (840,))
    for before, after in ((Partial(), REPLICATE), (Shard(0), REPLICATE), (Partial(), Shard(0))):
        moves = [compiled(whole, (before,), (after,), mesh, rank, algorithm) for rank in range(len(hosts))]
        sent = 0
        for rank, move in enumerate(moves):
            pieces = [(each.number, each.targets) for each in (*move.sendings, *move.portions)]
            for number, targets in pieces:
                for target in targets:
                    if hosts[target] != hosts[rank]:
                        sent += 8 * math.prod(moves[target].portions[moves[target].awaited[rank, number]].shape)
        asked = algorithm if before == Partial() and after == REPLICATE else ""
        assert sent == bytes_between_hosts((840,), 8, (before,), (after,), replace(mesh, hosts=hosts), asked)
