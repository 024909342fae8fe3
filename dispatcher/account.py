"""The account of one plan before it runs: what it moves, computes and holds, and how long it should take.

By the cost model (`cost.py`) and the arithmetic of parts (`gt/partition.py`), over the plan as the workers get it. Each
rank does the plan's instructions in order; a move begins when the last of those who exchange something in it is there.
Nothing here chooses anything: `gt explain` prints it, tests hold plans to textbook byte counts with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gt.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Plan, Tag, ref
from gt.partition import box, extent, moved_bytes
from gt.placement import Layout, Mesh, Replicate, collective_name
from gt.spec import Spec, spec

from .cost import VIEWS, Link, Speeds, compute_seconds, exchange_seconds, work

Vector = np.ndarray[Any, Any]
"""One figure for each rank."""


class Moved(NamedTuple):
    """One move of a plan. `position` is its place among the instructions; `axes` are those along which workers exchange;
    `total` the bytes that travel in all, `most` those that one worker receives. A move in which nobody needs what another
    holds has no collective, bytes or seconds."""

    position: int
    collective: str
    axes: tuple[str, ...]
    spec: Spec
    before: Layout
    after: Layout
    total: int
    most: int
    seconds: float
    tag: Tag


@dataclass(frozen=True, slots=True)
class Account:
    """What a plan takes. `computing`, `finished` and `peak` have a figure for each rank: seconds of work, seconds from
    the plan's start to its end, and the most bytes held at once (all inputs included, views taking none)."""

    moves: tuple[Moved, ...]
    computing: tuple[float, ...]
    finished: tuple[float, ...]
    peak: tuple[int, ...]
    inputs: tuple[int, ...]
    """For each rank the bytes of its part of the inputs, which are in `peak`."""
    steps: tuple[float, ...]
    """For each instruction, the seconds that the slowest rank spends on it, waiting not included."""

    @property
    def seconds(self) -> float:
        """From the plan's start until the last rank has finished."""
        return max(self.finished)

    @property
    def moved(self) -> int:
        """Bytes that travel between workers."""
        return sum(move.total for move in self.moves)


def account(plan: Plan, mesh: Mesh, speeds: Speeds) -> Account:
    """The account of `plan` on workers of these speeds."""
    clock = _Clock(mesh, speeds)
    moves: list[Moved] = []
    steps: list[float] = []
    for position, instruction in enumerate(plan.instructions):
        if instruction.op == MOVE:
            move = _moved(plan, mesh, speeds, position, instruction)
            moves.append(move)
            steps.append(move.seconds)
            if move.collective:
                clock.exchange(move)
        else:
            steps.append(clock.compute(plan, instruction))
    inputs = np.zeros(len(mesh.members), np.int64)
    for index, value in enumerate(plan.inputs):
        inputs += local_bytes(value, plan.input_layouts[index], mesh)
    return Account(
        tuple(moves), tuple(clock.computing.tolist()), tuple(clock.now.tolist()),
        tuple(_peak(plan, mesh, inputs).tolist()), tuple(inputs.tolist()), tuple(steps),
    )  # fmt: skip


# parts


@lru_cache(maxsize=4096)
def _parts(shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The shape of every rank's part; who holds none of it holds no elements."""
    parts = (box(shape, layout, mesh, rank) for rank in range(len(mesh.members)))
    return tuple((0,) if part is None else extent(part) for part in parts)


@lru_cache(maxsize=4096)
def local_bytes(value: Spec, layout: Layout, mesh: Mesh) -> Vector:
    """For each rank, the bytes of its part. Read only."""
    sizes = np.array([spec(value.dtype, shape).nbytes for shape in _parts(value.shape, layout, mesh)], np.int64)
    sizes.flags.writeable = False
    return sizes


# time


class _Clock:
    """Each rank's time and work, as the plan goes on."""

    def __init__(self, mesh: Mesh, speeds: Speeds) -> None:
        self.mesh = mesh
        self.speeds = speeds
        self.now = np.zeros(len(mesh.members))
        self.computing = np.zeros(len(mesh.members))
        self.alike = len(set(speeds.devices)) == 1

    def compute(self, plan: Plan, instruction: Instruction) -> float:
        """Every rank does its part of one instruction; the seconds of the slowest."""
        operands = [plan.operand(r) for r in instruction.inputs]
        forms = [
            (operand,) * len(self.now) if isinstance(operand, str) else self.local(operand, plan.layout(r))
            for operand, r in zip(operands, instruction.inputs, strict=True)
        ]
        results = [self.local(plan.values[n], plan.layouts[n]) for n in instruction.outputs]
        memo: dict[Any, float] = {}
        took = np.empty(len(self.now))
        for rank, device in enumerate(self.speeds.devices):
            given, made = tuple(form[rank] for form in forms), tuple(form[rank] for form in results)
            key = (given, made, None if self.alike else device)
            if key not in memo:
                idle = all(x.size == 0 for x in made) and any(plan.values[n].size for n in instruction.outputs)
                memo[key] = 0.0 if idle else compute_seconds(work(instruction.op, given, made), device)
            took[rank] = memo[key]
        self.now += took
        self.computing += took
        return float(took.max())

    def local(self, value: Spec, layout: Layout) -> tuple[Spec, ...]:
        return tuple(spec(value.dtype, shape) for shape in _parts(value.shape, layout, self.mesh))

    def exchange(self, move: Moved) -> None:
        """Those who differ along the move's axes only wait for each other."""
        grid = self.now.reshape(self.mesh.sizes)
        axes = tuple(self.mesh.axes.index(name) for name in move.axes)
        grid[...] = grid.max(axis=axes, keepdims=True) + move.seconds


def _moved(plan: Plan, mesh: Mesh, speeds: Speeds, position: int, instruction: Instruction) -> Moved:
    (source,) = instruction.inputs
    number = instruction.outputs[0]
    value, before, after = plan.values[number], plan.layout(source), plan.layouts[number]
    axes = [
        axis
        for axis, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new and not isinstance(old, Replicate) and mesh.sizes[axis] > 1
    ]
    tag = plan.tags[instruction.tag]
    total, most = _bytes(value, before, after, mesh)
    if not total:
        return Moved(position, "", (), value, before, after, 0, 0, 0.0, tag)
    parts = math.prod(mesh.sizes[axis] for axis in axes)
    links = [speeds.links[axis] for axis in axes]
    slowest = Link(min(link.bandwidth for link in links), max(link.latency for link in links))
    seconds = exchange_seconds(most, parts, slowest)
    names = tuple(mesh.axes[axis] for axis in axes)
    return Moved(position, collective_name(before, after), names, value, before, after, total, most, seconds, tag)


@lru_cache(maxsize=4096)
def _bytes(value: Spec, before: Layout, after: Layout, mesh: Mesh) -> tuple[int, int]:
    return moved_bytes(value.shape, value.dtype.itemsize, before, after, mesh)


# memory


def _peak(plan: Plan, mesh: Mesh, inputs: Vector) -> Vector:
    """The most bytes that each rank holds at once: a value lives from its instruction to its last reader."""
    root: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, instruction in enumerate(plan.instructions):
        for r in instruction.inputs:
            if r & 3 != SCALAR:
                last[root.get(r, r)] = at
        for n in instruction.outputs:
            r = ref(OUTPUT, n)
            source = instruction.inputs[0] if instruction.op in VIEWS else r
            root[r] = root.get(source, source)
            last[root[r]] = at
    kept = {root[ref(OUTPUT, n)] for _, n in (*plan.survivors, *plan.rehomed)}
    dying: dict[int, list[int]] = {}
    for r, at in last.items():
        if r & 3 != INPUT and r not in kept:
            dying.setdefault(at, []).append(r)
    live = inputs.copy()
    peak = inputs.copy()
    for at, instruction in enumerate(plan.instructions):
        for n in instruction.outputs:
            if root[ref(OUTPUT, n)] == ref(OUTPUT, n):
                live += local_bytes(plan.values[n], plan.layouts[n], mesh)
        np.maximum(peak, live, out=peak)
        for r in dying.get(at, ()):
            live -= local_bytes(plan.values[r >> 2], plan.layouts[r >> 2], mesh)
    return peak
