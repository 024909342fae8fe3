"""How a mesh lies on hosts, and which bytes of a plan go from one host to another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gt.ir.instruction import OUTPUT, Plan, ref
from gt.sharding.partition import bytes_between_hosts

if TYPE_CHECKING:
    from gt.dispatcher.cost.cost_model import Speeds
    from gt.dispatcher.cost.plan_estimate import PlanEstimate
    from gt.sharding.placement import Mesh


class MeshOnHosts(NamedTuple):
    """How a mesh lies on several hosts: how many of its workers each host has, on how many hosts workers along each axis are at
    most, and the slowest link between two hosts in bytes/s and seconds."""

    workers: tuple[int, ...]
    axes: dict[str, int]
    bandwidth: float
    latency: float


def on_hosts(mesh: Mesh, speeds: Speeds) -> MeshOnHosts | None:
    """How a mesh lies on hosts; None if it is on one."""
    if not mesh.hosts:
        return None
    counts = Counter(mesh.hosts)
    axes = {axis: link.hosts for axis, link in zip(mesh.axes, speeds.links, strict=True)}
    bandwidth, latency = mesh.network
    return MeshOnHosts(tuple(counts[host] for host in sorted(counts)), axes, float(bandwidth), latency / 1e9)


def between_hosts(plan: Plan, mesh: Mesh, estimate: PlanEstimate) -> dict[int, int]:
    """For each move of a plan by its position, the bytes that go from one host to another; those without any are left out."""
    found = {}
    for move in estimate.moves if mesh.hosts else ():
        if not move.total:
            continue
        instruction = plan.instructions[move.position]
        before, after, grid = move.before, move.after, mesh
        if move.times > 1:
            before, after = plan.layout(instruction.inputs[0]), plan.layout(ref(OUTPUT, instruction.outputs[0]))
            grid = mesh.timed(move.times)
        spec = move.spec
        crossing = bytes_between_hosts(spec.shape, spec.dtype.itemsize, before, after, grid, plan.comm(instruction))
        if crossing:
            found[move.position] = crossing
    return found
