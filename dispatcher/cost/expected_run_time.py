"""How long a plan keeps its workers busy, roughly: what is predicted of it before it has ever run (`dispatcher/pacing`).

Costs far less than an estimate (`plan_estimate.py`), because every new plan is predicted: nothing is scheduled, each
instruction counts with its share of the slowest worker, and a move with its latency and what travels.
"""

from __future__ import annotations

from collections.abc import Generator
from math import prod
from typing import Final

from gt.ir.instruction import MOVE, Plan
from gt.sharding.placement import Mesh, Shard

from .cost_model import Speeds, compute_seconds, instruction_work

OPERANDS_PER_TURN: Final = 192
"""How many operands and results are looked at in one turn."""
MAX_OPERANDS: Final = 64
"""Of one instruction, so many count."""


def expected_seconds(plan: Plan, mesh: Mesh, speeds: Speeds) -> Generator[None, None, float]:
    """The seconds that a plan is expected to take, found in turns."""
    device, found, left = speeds.slowest, 0.0, OPERANDS_PER_TURN
    latency = sum(link.latency for link in speeds.links)
    bandwidth = min((link.bandwidth for link in speeds.links), default=1.0)
    for instruction in plan.instructions:
        some, results = (
            instruction.inputs[:MAX_OPERANDS],
            [*map(plan.values.__getitem__, instruction.outputs[:MAX_OPERANDS])],
        )
        left -= len(some) + len(results)
        if left < 0:
            left = OPERANDS_PER_TURN
            yield
        layout = plan.layouts[instruction.outputs[0]]
        share = 1.0 / prod(
            size for size, placed in zip(mesh.sizes, layout, strict=False) if isinstance(placed, Shard)
        )  # fmt: skip
        if instruction.op == MOVE:
            before = plan.layout(instruction.inputs[0])[: len(mesh.sizes)]
            if before != layout[: len(mesh.sizes)]:
                found += latency + share * results[0].nbytes / bandwidth
            continue
        operands = [plan.operand(each) for each in some]
        found += compute_seconds(instruction_work(instruction.op, operands, results), device, share)
    return found
