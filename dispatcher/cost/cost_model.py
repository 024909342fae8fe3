"""The cost model: the seconds that computing and moving take, by which sharding options are chosen and plans estimated.

The time of a move is bytes / bandwidth plus a latency for each exchange; that of an instruction is flops or bytes / the
worker's speed plus a fixed overhead. The figures are `Speeds`: workers report them when they join
(`worker/lifecycle/calibrate.py` measures them). They are rounded, equal for equal workers of one host, and frozen with
their mesh, so plans do not depend on time. Pure functions only.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median_low
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gt.ir.ops import OPS
from gt.ir.spec import Spec
from gt.sharding.block_grid import deal
from gt.sharding.collectives import HostSpread, all_reduce_algorithm, all_reduce_steps, wire_bytes
from gt.sharding.placement import Mesh, Partial, Placement, Replicate, Shard

from .nccl_cards import cards_of

IMPOSSIBLE_SECONDS: Final = float("inf")
VIEW_OPS: Final = frozenset({"permute", "reshape", "expand", "slice", "windows", "tag", "follow"})
"""Ops whose result is a view of the first operand on a worker: they read, write and take no memory."""


class DeviceProfile(NamedTuple):
    """One worker: flops/s of a matrix product, bytes/s of element-wise work (read and written), the fixed overhead of an
    instruction in seconds, and the bytes that it may hold (0: unknown)."""

    flops: float
    memory: float
    overhead: float
    capacity: int = 0
    pool: int = -1
    """Devices with the same number share one memory: together they may hold what each of them may hold alone."""


class LinkProfile(NamedTuple):
    """A link between workers: bytes/s that one of them receives, and the latency of one exchange in seconds."""

    bandwidth: float
    latency: float
    hosts: int = 1
    most: int = 1
    """The most hosts over which the workers along an axis are spread, and the most of these workers on one host."""

    @property
    def spread(self) -> HostSpread | None:
        """How the workers along an axis lie on hosts; None if they are all on one."""
        return HostSpread(self.hosts, self.most, *network_of(self)) if self.hosts > 1 else None


#: By kind of worker, for those that nobody measured: a core or two of a server, and a data-centre GPU of some years ago.
TYPICAL_DEVICES: Final[Mapping[str, DeviceProfile]] = {
    "cpu": DeviceProfile(50e9, 10e9, 2e-6),
    "cuda": DeviceProfile(10e12, 800e9, 8e-6),
    "torch:cpu": DeviceProfile(50e9, 10e9, 5e-6),
    **dict.fromkeys(("torch:cuda", "torch:mps", "torch:xpu"), DeviceProfile(10e12, 800e9, 12e-6)),
}
NETWORK_LINK: Final = LinkProfile(1e9, 150e-6)
"""The assumed link between two hosts: ten-gigabit Ethernet."""
HOST_LATENCY: Final = 100e-6
"""The latency of an exchange within one host, in seconds."""
NVLINK: Final = LinkProfile(200e9, 20e-6)
"""Between GPUs of a group (`nvlink_groups.py`): third-generation NVLink has 300 GB/s each way, of which collectives
reach two thirds. The rendezvous of the members takes longer than this latency, but hosts run ahead of their GPUs."""
PCIE: Final = LinkProfile(20e9, HOST_LATENCY)
"""Between other GPUs of one host: PCI Express 4.0 has 32 GB/s each way, of which collectives reach two thirds."""
STAGED_LINK: Final = LinkProfile(4e9, 2 * HOST_LATENCY)
"""To or from a GPU in pieces, within a host: through pageable host memory, copied four times. Assumed, not measured."""
HOST_COPIES: Final = 4
"""Within a host, each byte that moves is read and written once by its sender and once by its receiver."""
MAX_WEIGHT: Final = 999_999
WEIGHT_QUARTERS: Final = 4


@dataclass(frozen=True)
class Speeds:
    """The links of a mesh, one per axis, and its devices, one per rank."""

    links: tuple[LinkProfile, ...]
    devices: tuple[DeviceProfile, ...]

    @cached_property
    def slowest(self) -> DeviceProfile:
        """For each figure the worst of all devices, because the others wait for the slowest."""
        columns = list(zip(*self.devices, strict=True))
        return DeviceProfile(min(columns[0]), min(columns[1]), max(columns[2]), min(columns[3]))


# what instructions cost


class InstructionWork(NamedTuple):
    """The work of one instruction: flops of matrix products, and bytes read and written."""

    flops: float
    nbytes: float


def _matmul_flops(operands: Sequence[Spec | str], result: Spec) -> float:
    a = operands[0]
    return 2.0 * result.size * (a.shape[-1] if isinstance(a, Spec) and a.ndim else 1)


def _conv_flops(operands: Sequence[Spec | str], result: Spec) -> float:
    w = operands[1]
    return 2.0 * result.size * (math.prod(w.shape[2:]) if isinstance(w, Spec) else 1)


def _attention_flops(operands: Sequence[Spec | str], result: Spec) -> float:
    """The flops of two products; for a gradient (whose result is flat) those of the weights again and of four products."""
    q, v = operands[0], operands[2]
    assert isinstance(q, Spec), "queries are a tensor"
    assert isinstance(v, Spec), "values are a tensor"
    scores = 2.0 * math.prod(q.shape[:-1]) * v.shape[-2]
    return scores * (q.shape[-1] + v.shape[-1] if result.ndim == q.ndim else 3 * q.shape[-1] + 2 * v.shape[-1])


def _recurrence_flops(operands: Sequence[Spec | str], result: Spec) -> float:
    """The flops of a product with each weight at each step."""
    first, *weights = operands[:3] if result.ndim == 4 else operands[:2]
    assert isinstance(first, Spec), "what is fed, or what was kept, is a tensor"
    steps_and_rows = first.shape[:2] if first.ndim == 3 else first.shape[1:3]
    return 2.0 * math.prod(steps_and_rows) * sum(weight.size for weight in weights if isinstance(weight, Spec))


#: By family: the flops of what is bound by arithmetic. Everything else is bound by memory.
FLOPS: Final[Mapping[str, Callable[[Sequence[Spec | str], Spec], float]]] = {
    "matmul": _matmul_flops,
    "int8_product": _matmul_flops,
    "conv": _conv_flops,
    "attention": _attention_flops,
    "attention_grad": _attention_flops,
    "recurrence": _recurrence_flops,
    "recurrence_grad": _recurrence_flops,
}


def instruction_work(op: str, operands: Sequence[Spec | str], results: Sequence[Spec]) -> InstructionWork:
    """The work of one instruction on operands and results of these shapes, which may be whole or one worker's parts."""
    if op in VIEW_OPS:
        return InstructionWork(0.0, 0.0)
    flops = FLOPS.get(OPS[op].family)
    touched = sum(x.nbytes for x in operands if isinstance(x, Spec)) + sum(x.nbytes for x in results)
    return InstructionWork(flops(operands, results[0]) if flops else 0.0, float(touched))


def compute_seconds(amount: InstructionWork, device: DeviceProfile, share: float = 1.0) -> float:
    """The seconds that a device needs for its `share` of some work."""
    return device.overhead + share * max(amount.flops / device.flops, amount.nbytes / device.memory)


# what moves cost


def exchange_seconds(nbytes: float, parts: int, link: LinkProfile, steps: int = 1) -> float:
    """The seconds of an exchange among `parts` workers, each of which receives `nbytes` bytes, in `steps` steps along trees."""
    return steps * link.latency * max(1, (parts - 1).bit_length()) + nbytes / link.bandwidth


def move_bytes(before: Placement, after: Placement, nbytes: float, parts: int) -> float:
    """The bytes that each of `parts` workers along an axis receives in a move of a value with `nbytes` bytes per position."""
    if before == after or parts == 1 or isinstance(before, Replicate):
        return 0.0
    others = nbytes * (parts - 1) / parts
    if isinstance(before, Partial):
        if isinstance(after, Shard):
            return others
        two_steps = isinstance(after, Replicate) and all_reduce_algorithm(int(nbytes), parts) != "direct"
        return 2.0 * others if two_steps else nbytes * (parts - 1)
    return others / parts if isinstance(after, Shard) else others


@lru_cache(maxsize=1 << 13)
def move_seconds(before: Placement, after: Placement, nbytes: float, parts: int, link: LinkProfile) -> float:
    """The seconds of moving a value of `nbytes` bytes per position from `before` to `after` along an axis of `parts` workers."""
    if before == after or parts == 1 or isinstance(before, Replicate):
        return 0.0 if before == after or not isinstance(after, Partial) else IMPOSSIBLE_SECONDS
    if isinstance(after, Partial):
        return IMPOSSIBLE_SECONDS
    steps = 1
    if isinstance(before, Partial) and isinstance(after, Replicate):
        algorithm = all_reduce_algorithm(int(nbytes), parts, link.spread)
        if link.spread is not None:
            return between_hosts_seconds(algorithm, int(nbytes), parts, link, link.spread)
        steps = all_reduce_steps(algorithm)
    return exchange_seconds(move_bytes(before, after, nbytes, parts), parts, link, steps)


def between_hosts_seconds(algorithm: str, nbytes: int, parts: int, link: LinkProfile, spread: HostSpread) -> float:
    """The seconds of an all-reduce among workers of several hosts: the bytes of the busiest host over the slowest link, and the
    steps that wait for each other, of which `hierarchical` has two within hosts."""
    steps = (1 if algorithm == "direct" else 2) * max(1, (spread.hosts - 1).bit_length())
    near = 2 * max(1, (spread.most - 1).bit_length()) if algorithm == "hierarchical" else 0
    return steps * link.latency + near * HOST_LATENCY + wire_bytes(algorithm, nbytes, parts, spread) / link.bandwidth


# speeds, from what workers say of themselves


def rounded(value: float) -> float:
    """Rounded to two significant digits, so that a machine measured twice gives the same figures."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 4) / 4, exponent)


def network_of(link: LinkProfile) -> tuple[int, int]:
    """A link in bytes/s and nanoseconds, as meshes say it."""
    return max(1, int(link.bandwidth)), round(link.latency * 1e9)


def host_of(facts: Mapping[str, Any]) -> str:
    """The host of a worker: its `machine`, within which processes read each other's memory, or else its name."""
    return str(facts.get("machine") or facts.get("host"))


def _device(facts: Mapping[str, Any], sharing: int, pool: int) -> DeviceProfile:
    """The device that a worker's facts describe. Missing or implausible figures are replaced by typical ones of its kind.

    `sharing` workers share the host's memory, which is `pool`.
    """
    known = TYPICAL_DEVICES.get(str(facts.get("kind")), TYPICAL_DEVICES["cpu"])
    said = facts.get("speed")
    if not (isinstance(said, (list, tuple)) and len(said) == 2 and all(map(_sensible, said))):
        said = known[:2]
    own, shared = facts.get("memory"), facts.get("host_memory")
    capacity = own if type(own) is int else shared // sharing if type(shared) is int and sharing else 0
    return DeviceProfile(rounded(float(said[0])), rounded(float(said[1])), known.overhead, max(0, capacity), pool)


def _sensible(figure: object) -> bool:
    return type(figure) in (int, float) and 1e6 <= figure <= 1e18  # type: ignore[operator]


def devices_of(facts: Sequence[Mapping[str, Any]]) -> tuple[DeviceProfile, ...]:
    """One device for each worker.

    Workers of one kind on one host share the median of their figures, so that a worker that measured while the others kept the
    machine busy does not count as slower. Workers without memory of their own share the host's.
    """
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, said in enumerate(facts):
        groups[host_of(said), *(str(said.get(name)) for name in ("kind", "model", "cores"))].append(index)
    hosts = [host_of(said) if said.get("host_memory") and "memory" not in said else "" for said in facts]
    sharing = Counter(hosts)
    pools = {host: pool for pool, host in enumerate(host for host in sharing if host)}
    found = [_device(said, sharing[host], pools.get(host, -1)) for said, host in zip(facts, hosts, strict=True)]
    for members in groups.values():
        alike = DeviceProfile(
            median_low([found[i].flops for i in members]), median_low([found[i].memory for i in members]),
            found[members[0]].overhead, min(found[i].capacity for i in members), found[members[0]].pool,
        )  # fmt: skip
        for index in members:
            found[index] = alike
    return tuple(found)


def speeds_of(
    sizes: tuple[int, ...],
    facts: Sequence[Mapping[str, Any]],
    links: Mapping[tuple[str, str], LinkProfile] = MappingProxyType({}),
) -> Speeds:
    """The speeds of a mesh, from the facts that its workers reported, in order of rank.

    `links` are those measured between two hosts, in either direction. The fact `group` says which workers NVLink joins, if
    both use NCCL (`nccl_cards.py`). An axis is as slow as its slowest link.
    """
    devices = devices_of(facts)
    hosts = [host_of(said) for said in facts]
    groups = [str(said.get("group", "")) for said in facts]
    numbers = cards_of(facts) or (0,) * len(facts)
    on_gpu = [said.get("kind") == "cuda" for said in facts]
    places = list(zip(hosts, groups, numbers, on_gpu, strict=True))
    slowest = min((device.memory for device, gpu in zip(devices, on_gpu, strict=True) if not gpu), default=math.inf)
    within = LinkProfile(rounded(slowest / HOST_COPIES), HOST_LATENCY) if slowest < math.inf else STAGED_LINK
    shared = LinkProfile(rounded(min(device.memory for device in devices) / HOST_COPIES), 2 * HOST_LATENCY)
    between = LinkProfile(min(NETWORK_LINK.bandwidth, within.bandwidth), NETWORK_LINK.latency)

    def link(one: tuple[str, str, int, bool], other: tuple[str, str, int, bool]) -> LinkProfile:
        (here, group, card, gpu), (there, another, its, its_gpu) = one, other
        if here != there:
            return links.get((here, there)) or links.get((there, here)) or between
        if card and its and card != its:
            return NVLINK if group and group == another else PCIE
        if card and card == its:
            return shared
        return STAGED_LINK if gpu or its_gpu else within

    axes = []
    stride = len(places)
    for size in sizes:
        stride //= size
        steps = (rank for rank in range(len(places) - stride) if rank // stride % size != size - 1)
        used = [link(*pair) for pair in {(places[rank], places[rank + stride]) for rank in steps}] or [within]
        found = LinkProfile(min(link.bandwidth for link in used), max(link.latency for link in used))
        axes.append(found._replace(**_spread_along(hosts, stride, size)))
    return Speeds(tuple(axes), devices)


def _spread_along(hosts: Sequence[str], stride: int, size: int) -> dict[str, int]:
    """On how many hosts the groups along an axis are at most, and how many workers of a group on one."""
    if len(set(hosts)) == 1:
        return {}
    starts = [rank for rank in range(len(hosts)) if rank // stride % size == 0]
    found = [Counter(hosts[start : start + size * stride : stride]) for start in starts]
    several = [counts for counts in found if len(counts) > 1]
    return {
        "hosts": max(map(len, several), default=1), "most": max((max(c.values()) for c in several), default=1)
    }  # fmt: skip


def paces(devices: Sequence[DeviceProfile]) -> list[float]:
    """One speed for each device: the geometric mean of its speeds of arithmetic and of memory."""
    return [math.sqrt(device.flops * device.memory) for device in devices]


@lru_cache(maxsize=64)
def weights_of(sizes: tuple[int, ...], devices: tuple[DeviceProfile, ...]) -> tuple[tuple[int, ...], ...]:
    """The weights of the positions along each axis, in proportion to the mean speed (`paces`) of the workers there.

    Positions of equal speed have equal weights; all weights are 1 when all speeds are equal.
    """
    pace = paces(devices)
    weights = []
    stride = len(devices)
    for size in sizes:
        stride //= size
        sums = [0.0] * size
        for rank, speed in enumerate(pace):
            sums[rank // stride % size] += speed
        least = min(sums)
        quarters = [min(MAX_WEIGHT, round(WEIGHT_QUARTERS * total / least)) for total in sums]
        common = math.gcd(*quarters)
        weights.append(tuple(quarter // common for quarter in quarters))
    return tuple(weights)


def measured_mesh(
    number: int,
    axes: Mapping[str, int],
    members: tuple[int, ...],
    facts: Sequence[Mapping[str, Any]],
    blocks: int = 0,
    links: Mapping[tuple[str, str], LinkProfile] = MappingProxyType({}),
) -> tuple[Mesh, Speeds]:
    """A mesh of workers with shards in proportion to their speeds. `facts` are those of the workers, in order of rank; `links`
    are as for `speeds_of`.

    In a deterministic session each position has a number of the `blocks` instead, all as equal as possible.
    """
    sizes = tuple(axes.values())
    speeds = speeds_of(sizes, facts, links)
    weights = tuple(deal(blocks, size) for size in sizes) if blocks else weights_of(sizes, speeds.devices)
    return Mesh(number, tuple(axes), sizes, members, weights, *_hosts_of(facts, links, speeds)), speeds


def _hosts_of(
    facts: Sequence[Mapping[str, Any]], links: Mapping[tuple[str, str], LinkProfile], speeds: Speeds
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A number for the host of each worker, in order of their first ranks, and the slowest link between two of these; both empty
    if there is one host. A link that was not measured is as fast as the slowest of an axis between hosts."""
    numbers: dict[str, int] = {}
    hosts = tuple(numbers.setdefault(host_of(said), len(numbers)) for said in facts)
    if len(numbers) == 1:
        return (), ()
    known = [link for (one, other), link in links.items() if one in numbers and other in numbers]
    known += [link for link in speeds.links if link.hosts > 1]
    slowest = LinkProfile(min(link.bandwidth for link in known), max(link.latency for link in known))
    return hosts, network_of(slowest)
