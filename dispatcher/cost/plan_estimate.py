"""The estimate of one plan before it runs: what it moves, computes and holds, and how long it should take.

It applies the cost model (`cost_model.py`) and the arithmetic of parts (`gt/sharding/partition.py`) to the plan that
the workers get. Each rank executes its instructions in the order of its schedule; a move begins when the last rank that
contributes to it has arrived. Nothing is chosen here: `gt explain` prints estimates, and tests compare plans with
textbook byte counts.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from gt.ir.instruction import MOVE, OUTPUT, Instruction, Plan, Tag, ref
from gt.ir.microbatch_schedule import Item, order, waves
from gt.ir.spec import Spec
from gt.sharding.collectives import HostSpread, all_reduce_algorithm, all_reduce_steps
from gt.sharding.partition import exchanging, moved_bytes, present
from gt.sharding.placement import Layout, Mesh, collective_name

from .cost_model import (
    DeviceProfile,
    InstructionWork,
    LinkProfile,
    Speeds,
    between_hosts_seconds,
    compute_seconds,
    exchange_seconds,
    instruction_work,
)
from .peak_memory import in_time, inputs_by_rank, largest_part, parts_of, peak_by_rank, repeated

RANKS_PER_TURN: Final = 64
"""Of how many ranks the seconds of an instruction are worked out in one turn."""


class MoveEstimate(NamedTuple):
    """One move of a plan. `position` is its index among the instructions; `axes` are the mesh axes along which workers
    exchange; `total` is the number of bytes sent in all, `most` the bytes that one worker receives, over all `times`
    microbatches. A move in which no worker needs data of another has no collective, bytes or seconds."""

    position: int
    collective: str
    axes: tuple[str, ...]
    spec: Spec
    before: Layout
    after: Layout
    total: int
    most: int
    times: int
    seconds: float
    tag: Tag


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """What a plan takes. `computing`, `finished` and `peak` have one figure per rank: seconds of computing, seconds from the
    start of the plan until the rank has finished, and the most bytes held at once (all inputs included; views take none)."""

    moves: tuple[MoveEstimate, ...]
    computing: tuple[float, ...]
    finished: tuple[float, ...]
    peak: tuple[int, ...]
    inputs: tuple[int, ...]
    """For each rank, the bytes of its parts of the inputs. They are included in `peak`."""
    steps: tuple[float, ...]
    """For each instruction, the seconds that the slowest rank spends on it, without waiting."""

    @property
    def seconds(self) -> float:
        """From the plan's start until the last rank has finished."""
        return max(self.finished)

    @property
    def moved(self) -> int:
        """The bytes that workers send each other."""
        return sum(move.total for move in self.moves)


def estimate_plan(plan: Plan, mesh: Mesh, speeds: Speeds) -> PlanEstimate:
    """The estimate of `plan` on workers of these speeds."""
    form = _PlanParts(plan, mesh)
    clock = _Clock(form, speeds)
    clock.run()
    peak, inputs = peak_by_rank(plan, mesh), inputs_by_rank(plan, mesh)
    moves = tuple(exchange.move for exchange in clock.exchanges.values())
    return PlanEstimate(
        moves, tuple(clock.computing), tuple(clock.now), tuple(peak.tolist()), tuple(inputs.tolist()),
        tuple(clock.steps()),
    )  # fmt: skip


def step_seconds(plan: Plan, mesh: Mesh, speeds: Speeds) -> Generator[None, None, list[float]]:
    """For each instruction, the seconds that the slowest rank spends on it, without waiting (as `PlanEstimate.steps`). Worked
    out in turns."""
    form = _PlanParts(plan, mesh)
    clock = _Clock(form, speeds, moves=False)
    found = [0.0] * len(plan.instructions)
    often = max(1, RANKS_PER_TURN // form.ranks)
    known = yield from waves(plan)
    for count, item in enumerate(order(plan, form.here[0], known)):
        if count and not count % often:
            yield
        at, instruction = item[0], plan.instructions[item[0]]
        if instruction.op == MOVE and at not in clock.exchanges:
            clock.exchanges[at] = _Exchange(form, speeds, at, instruction)
            found[at] = clock.exchanges[at].move.seconds
        if at not in clock.exchanges or not clock.exchanges[at].seconds:
            found[at] += max(clock.seconds(item))
    return found


# parts


class _PlanParts:
    """A plan on its mesh, with a rank for each microbatch: rank r of the workers is the ranks r·times, r·times + 1, … in time."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.plan = plan
        self.mesh = mesh
        self.ranks = len(mesh.members)
        self.times = plan.pipeline.microbatches if plan.pipeline else 1
        self.timed = mesh.timed(self.times)
        self.here = [mesh.coordinates(rank) for rank in range(self.ranks)]

    @cached_property
    def items(self) -> list[list[Item]]:
        """For each rank, what it does in which order; the ranks of one stage do the same."""
        stages = [here[self.plan.pipeline.axis] if self.plan.pipeline else 0 for here in self.here]
        orders = {stage: list(order(self.plan, self.here[stages.index(stage)])) for stage in set(stages)}
        return [orders[stage] for stage in stages]

    def parts(self, r: int) -> tuple[Spec | str | None, ...]:
        """What each rank holds of an operand: rank by rank, and for each rank microbatch by microbatch."""
        operand = self.plan.operand(r)
        if isinstance(operand, str):
            return (operand,) * (self.ranks * self.times)
        return parts_of(operand, self.plan.layout(r), self.timed)

    def space(self, layout: Layout) -> Layout:
        """A layout without its placement on the axis in time."""
        return layout[: len(self.mesh.sizes)]


# time


class _Exchange:
    """Which ranks wait for which in a move. Ranks that differ only along the changing axes form a group. A rank that holds
    part of the value before the move contributes it; a rank that holds part of it afterwards waits for its whole group."""

    def __init__(self, form: _PlanParts, speeds: Speeds, position: int, instruction: Instruction) -> None:
        plan, mesh = form.plan, form.mesh
        source, made = instruction.inputs[0], ref(OUTPUT, instruction.outputs[0])
        value = plan.values[made >> 2]
        whole_before, whole_after = plan.layout(source), plan.layout(made)
        before, after = form.space(whole_before), form.space(whole_after)
        self.times = form.times if repeated(plan, source) and repeated(plan, made) else 1
        if self.times > 1:
            total, most = _bytes(value, whole_before, whole_after, form.timed, plan.comm(instruction))
        else:
            total, most = _bytes(value, before, after, mesh, plan.comm(instruction))
        tag = plan.tags[instruction.tag]
        axes = exchanging(before, after, mesh)
        self.seconds = self.sending = 0.0
        name = ""
        if total:
            links = [speeds.links[axis] for axis in axes]
            slowest = LinkProfile(min(link.bandwidth for link in links), max(link.latency for link in links))
            name = collective_name(before, after) or "all-to-all"
            parts, steps = math.prod(mesh.sizes[axis] for axis in axes), 1
            self.seconds = -1.0
            if name == "all-reduce":
                largest, asked = largest_part(value, after, mesh), plan.comm(instruction)
                spreads = _spreads(mesh, axes)
                if spreads:
                    self.seconds = max(_apart(largest, parts, slowest, spread, asked) for spread in spreads)
                steps = all_reduce_steps(all_reduce_algorithm(largest, parts, asked=asked))
            if self.seconds < 0:
                self.seconds = exchange_seconds(most, parts, slowest, steps)
            self.sending = most / slowest.bandwidth
            groups = [tuple(-1 if axis in axes else at for axis, at in enumerate(here)) for here in form.here]
            self.group = groups
            self.gives = [present(before, here) for here in form.here]
            self.waits = [present(after, here) for here in form.here]
            self.givers: dict[tuple[int, ...], int] = dict.fromkeys(groups, 0)
            for group, gives in zip(groups, self.gives, strict=True):
                self.givers[group] += gives
        names = tuple(mesh.axes[axis] for axis in axes) if total else ()
        self.move = MoveEstimate(
            position, name, names, value, before, after,
            total, most * self.times, self.times, self.seconds * self.times, tag,
        )  # fmt: skip


def _spreads(mesh: Mesh, axes: list[int]) -> set[HostSpread]:
    """How the groups along these axes lie on hosts, of those that lie on several."""
    groups = {mesh.group(rank, axes) for rank in range(len(mesh.members))} if mesh.hosts else ()
    return {spread for group in groups if (spread := mesh.spread(group)) is not None}


def _apart(nbytes: int, parts: int, link: LinkProfile, spread: HostSpread, asked: str) -> float:
    algorithm = all_reduce_algorithm(nbytes, parts, spread, asked)
    return between_hosts_seconds(algorithm, nbytes, parts, link, spread)


class _Clock:
    """The time and the work of each rank as the plan proceeds."""

    def __init__(self, form: _PlanParts, speeds: Speeds, *, moves: bool = True) -> None:
        self.form = form
        self.speeds = speeds
        self.now = [0.0] * form.ranks
        self.computing = [0.0] * form.ranks
        self.cursors = [0] * form.ranks
        self.exchanges = {
            at: _Exchange(form, speeds, at, instruction)
            for at, instruction in enumerate(form.plan.instructions)
            if moves and instruction.op == MOVE
        }
        self.given: dict[tuple[int, int, tuple[int, ...]], list[float]] = {}
        """For each group of a move in progress, when each of its ranks contributed."""
        self.gave: set[tuple[Item, int]] = set()
        self.took: dict[Item, list[float]] = {}
        self.memo: dict[Any, float] = {}

    def run(self) -> None:
        """Run every rank until all have finished."""
        waiting = list(range(self.form.ranks))
        while waiting:
            before = sum(self.cursors)
            waiting = [rank for rank in waiting if not self.advance(rank)]
            assert not waiting or sum(self.cursors) > before, "in a plan nobody waits for ever"

    def advance(self, rank: int) -> bool:
        """Run one rank until it finishes (True) or has to wait for another (False)."""
        items = self.form.items[rank]
        for cursor in range(self.cursors[rank], len(items)):
            item = items[cursor]
            exchange = self.exchanges.get(item[0])
            if exchange is None or not exchange.seconds:
                took = self.seconds(item)[rank]
                self.now[rank] += took
                self.computing[rank] += took
            elif not self.exchange(item, exchange, rank):
                self.cursors[rank] = cursor
                return False
        self.cursors[rank] = len(items)
        return True

    def exchange(self, item: Item, exchange: _Exchange, rank: int) -> bool:
        group = exchange.group[rank]
        given = self.given.setdefault((*item, group), [])
        if exchange.gives[rank] and (item, rank) not in self.gave:
            self.gave.add((item, rank))
            given.append(self.now[rank])
        if not exchange.waits[rank]:
            self.now[rank] += exchange.sending if exchange.gives[rank] else 0.0
        elif len(given) < exchange.givers[group]:
            return False
        else:
            self.now[rank] = max(self.now[rank], max(given) + exchange.seconds)  # of those who give, it is one
        return True

    def seconds(self, item: Item) -> list[float]:
        """The seconds that one instruction takes on each rank."""
        found = self.took.get(item)
        if found is None:
            at, time = item
            form, instruction = self.form, self.form.plan.instructions[at]
            references = (*instruction.inputs, *(ref(OUTPUT, n) for n in instruction.outputs))
            # of most ranks the parts are alike: what one takes is worked out once
            columns = zip(*(form.parts(r)[time :: form.times] for r in references), strict=True)
            found = self.took[item] = [
                self.of(instruction, parts, device) for parts, device in zip(columns, self.speeds.devices, strict=True)
            ]
        return found

    def of(self, instruction: Instruction, parts: tuple[Spec | str | None, ...], device: DeviceProfile) -> float:
        """The seconds of one instruction on these parts of its operands and results."""
        key = (instruction.op, in_time(self.form.plan, instruction), len(instruction.outputs), parts, device)
        found = self.memo.get(key)
        if found is None:
            given = [x for x in parts[: len(instruction.inputs)] if x is not None]
            made = [x for x in parts[len(instruction.inputs) :] if isinstance(x, Spec)]
            whole = any(self.form.plan.values[n].size for n in instruction.outputs)
            if whole and not any(x.size for x in made):
                found = 0.0  # it has no part in this
            elif instruction.op != MOVE:
                found = compute_seconds(instruction_work(instruction.op, given, made), device)
            elif key[1] in ("join", "sum"):
                found = compute_seconds(InstructionWork(0.0, 2.0 * sum(x.nbytes for x in made)), device)
            else:
                found = 0.0  # another look at what is there
            self.memo[key] = found
        return found

    def steps(self) -> list[float]:
        """For each instruction, the seconds of the slowest rank."""
        found = [0.0] * len(self.form.plan.instructions)
        for (at, _), took in self.took.items():
            found[at] += max(took)
        for at, exchange in self.exchanges.items():
            found[at] += exchange.move.seconds
        return found


@lru_cache(maxsize=4096)
def _bytes(value: Spec, before: Layout, after: Layout, mesh: Mesh, asked: str) -> tuple[int, int]:
    return moved_bytes(value.shape, value.dtype.itemsize, before, after, mesh, asked)
