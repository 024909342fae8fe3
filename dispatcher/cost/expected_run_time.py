"""How long a plan keeps its workers busy, roughly: what is predicted of it before it has ever run (`dispatcher/pacing`), and how
that divides among signals (`dispatcher/usage`).

Costs far less than an estimate (`plan_estimate.py`), because every new plan is predicted: nothing is scheduled, each
instruction counts with its share of the slowest worker, and a move with its latency and what travels.
"""

from __future__ import annotations

from collections.abc import Generator
from math import prod
from typing import Final, NamedTuple

from gt.dispatcher.usage.ledger import MAX_SIGNALS, OTHER
from gt.dispatcher.usage.tally import UNKNOWN_PARTS, SignalPart
from gt.ir.instruction import MOVE, Instruction, Plan
from gt.sharding.placement import Layout, Mesh, Shard

from .cost_model import Speeds, compute_seconds, instruction_work, move_bytes

OPERANDS_PER_TURN: Final = 128
"""How many operands and results are looked at in one turn."""
MAX_OPERANDS: Final = 64
"""Of one instruction, so many count."""


class PlanExpectation(NamedTuple):
    """What one run of a plan is expected to take, and what of it belongs to which top-level signal."""

    seconds: float
    parts: tuple[SignalPart, ...]


def expected_use(plan: Plan, mesh: Mesh, speeds: Speeds) -> Generator[None, None, PlanExpectation]:
    """What a run of a plan is expected to take, found in turns."""
    step, left, sums = _StepTime(plan, mesh, speeds), OPERANDS_PER_TURN, dict[str, list[float]]()
    for instruction in plan.instructions:
        left -= _counted(instruction)
        if left < 0:
            left = OPERANDS_PER_TURN
            yield
        signal = plan.tags[instruction.tag].signal
        name = signal[0] if signal else ""
        found = sums.get(name) or sums.setdefault(name if len(sums) < MAX_SIGNALS else OTHER, [0, 0.0, 0.0])
        seconds, moved = step.of(instruction)
        found[0] += 1
        found[1] += moved
        found[2] += seconds
    seconds = sum([each[2] for each in sums.values()])
    return PlanExpectation(seconds, _parts(sums, seconds))


def expected_steps(plan: Plan, mesh: Mesh, speeds: Speeds) -> Generator[None, None, list[float]]:
    """What each instruction of a plan is expected to take, in seconds, found in turns."""
    step, left, found = _StepTime(plan, mesh, speeds), OPERANDS_PER_TURN, list[float]()
    for instruction in plan.instructions:
        left -= _counted(instruction)
        if left < 0:
            left = OPERANDS_PER_TURN
            yield
        found.append(step.of(instruction)[0])
    return found


def _counted(instruction: Instruction) -> int:
    """How many operands and results of an instruction count."""
    return min(MAX_OPERANDS, len(instruction.inputs)) + min(MAX_OPERANDS, len(instruction.outputs))


class _StepTime:
    """What single instructions of a plan are expected to take."""

    def __init__(self, plan: Plan, mesh: Mesh, speeds: Speeds) -> None:
        self.plan = plan
        self.sizes = mesh.sizes
        self.device = speeds.slowest
        self.latency = sum(link.latency for link in speeds.links)
        self.bandwidth = min((link.bandwidth for link in speeds.links), default=1.0)

    def of(self, instruction: Instruction) -> tuple[float, float]:
        """The seconds of an instruction, and the bytes that it moves between workers."""
        plan, sizes = self.plan, self.sizes
        results = [*map(plan.values.__getitem__, instruction.outputs[:MAX_OPERANDS])]
        layout = plan.layouts[instruction.outputs[0]]
        share = 1.0 / prod(size for size, placed in zip(sizes, layout, strict=False) if isinstance(placed, Shard))
        if instruction.op == MOVE:
            before = plan.layout(instruction.inputs[0])[: len(sizes)]
            if before == layout[: len(sizes)]:
                return 0.0, 0.0
            seconds = self.latency + share * results[0].nbytes / self.bandwidth
            return seconds, _moved_bytes(before, layout, results[0].nbytes, sizes)
        operands = [plan.operand(each) for each in instruction.inputs[:MAX_OPERANDS]]
        return compute_seconds(instruction_work(instruction.op, operands, results), self.device, share), 0.0


def _parts(sums: dict[str, list[float]], seconds: float) -> tuple[SignalPart, ...]:
    """The instructions, bytes moved and seconds of each signal as parts of a whole; by instructions if no time is expected."""
    if len(sums) == 1:
        ((name, (instructions, moved, _)),) = sums.items()
        return (SignalPart(name, int(instructions), round(moved), 1.0),)
    count = sum([each[0] for each in sums.values()])
    return tuple(
        [
            SignalPart(name, int(instructions), round(moved), spent / seconds if seconds > 0 else instructions / count)
            for name, (instructions, moved, spent) in sums.items()
        ]
    ) or UNKNOWN_PARTS  # fmt: skip


def _moved_bytes(before: Layout, after: Layout, nbytes: int, sizes: tuple[int, ...]) -> float:
    """The bytes that all workers together receive in a move of a value, one axis after the other."""
    found = 0.0
    for axis, size in enumerate(sizes):
        others = prod(
            s
            for n, (s, placed) in enumerate(zip(sizes, before, strict=False))
            if n != axis and isinstance(placed, Shard)
        )
        found += move_bytes(before[axis], after[axis], nbytes / others, size)
    return found * prod(sizes)
