"""Leaves out of a plan what this worker need not do: instructions that nobody reads, and layouts of layouts.

A front end that others wrote emits such: PyTorch's gradients of linear layers transpose a weight that was transposed, and its
operators give results that the program never looks at. Values do not change: `permute` and `reshape` are local to each worker,
so two of them are one, and one that gives back what it was given is nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gt.ir.instruction import MOVE, OUTPUT, VERIFY, Instruction, Plan, ref

KEPT_OPS: Final = frozenset((MOVE, VERIFY))
"""Ops that all workers take part in, or that may end a run, whoever reads their results."""


def simplified(plan: Plan) -> Plan:
    """The plan with fewer instructions, whose results are numbered as before; a pipelined one as it is."""
    if plan.pipeline is not None:
        return plan
    instructions = _read(plan, _composed(plan))
    return plan if instructions == plan.instructions else replace(plan, instructions=instructions)


def _composed(plan: Plan) -> list[Instruction]:
    """The instructions, of which each reads through permutes of permutes, reshapes of reshapes, and those that change nothing."""
    same: dict[int, int] = {}
    layouts: dict[int, Instruction] = {}
    out: list[Instruction] = []
    for instruction in plan.instructions:
        inputs = tuple([same.get(reference, reference) for reference in instruction.inputs])
        attributes = instruction.attributes
        if instruction.op in ("permute", "reshape"):
            made = ref(OUTPUT, instruction.outputs[0])
            inner = layouts.get(inputs[0])
            if inner is not None and inner.op == instruction.op:
                inputs = inner.inputs
                if instruction.op == "permute":
                    attributes = {"axes": tuple([inner.attributes["axes"][axis] for axis in attributes["axes"]])}
            idle = instruction.op == "reshape" or [*attributes["axes"]] == sorted(attributes["axes"])
            if idle and plan.operand(made) == plan.operand(inputs[0]) and plan.layout(made) == plan.layout(inputs[0]):
                same[made] = inputs[0]
            layouts[made] = instruction = instruction._replace(inputs=inputs, attributes=attributes)
        out.append(instruction if inputs == instruction.inputs else instruction._replace(inputs=inputs))
    return out


def _read(plan: Plan, instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """Those whose results are read, by the session or by one that is."""
    read = {number for _, number in (*plan.survivors, *plan.relocated)}
    kept: list[Instruction] = []
    for instruction in reversed(instructions):
        if instruction.op in KEPT_OPS or not read.isdisjoint(instruction.outputs):
            read.update(reference >> 2 for reference in instruction.inputs if reference & 3 == OUTPUT)
            kept.append(instruction)
    return tuple(kept[::-1])
