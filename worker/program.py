"""From a plan to a flat program over slots: compiled once for one rank, then only run.

Slots hold, in order, the plan's inputs, its run-time scalars and its outputs; a step reads and writes slots by number, so
nothing is looked up by name on the hot path. Steps between two moves form a block. A value is dropped after its last
reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gt.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Plan, print_instruction, ref
from gt.partition import box, extent
from gt.placement import Mesh
from gt.spec import Spec, spec

from .backend import Backend
from .call import Call
from .exchange import Move, compile_move
from .kernels import KERNELS

Slots = list[Any]
Action = Callable[[Slots], None]


@dataclass(slots=True)
class Step:
    """One instruction, compiled. `action` does it at full speed; the rest serves the path on which something failed."""

    action: Action
    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    tensors: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]
    instruction: Instruction


@dataclass(slots=True)
class Program:
    """`blocks[i]` runs before `moves[i]`; the last block runs last. `template` is the slots of a run before it starts."""

    plan: Plan
    rank: int
    mesh: Mesh
    blocks: list[list[Step]]
    actions: list[list[Action]]
    moves: list[Move]
    slots: int
    survivors: list[tuple[int, int]]
    rehomed: list[tuple[int, int]]


def compile_plan(plan: Plan, mesh: Mesh, rank: int, backend: Backend) -> Program:
    """The program of `plan` for the worker at `rank` of `mesh`."""
    return _Compiler(plan, mesh, rank, backend).compile()


class _Compiler:
    def __init__(self, plan: Plan, mesh: Mesh, rank: int, backend: Backend) -> None:
        self.plan = plan
        self.mesh = mesh
        self.rank = rank
        self.backend = backend
        self.scalars = len(plan.inputs)
        self.outputs = self.scalars + len(plan.kinds)
        kept = {ref(OUTPUT, index) for _, index in (*plan.survivors, *plan.rehomed)}
        last: dict[int, int] = {}
        for at, instruction in enumerate(plan.instructions):
            for number in instruction.outputs:
                last[ref(OUTPUT, number)] = at
            for r in instruction.inputs:
                if r & 3 != SCALAR:
                    last[r] = at
        self.dead: dict[int, list[int]] = {}
        for r, at in last.items():
            if r not in kept:
                self.dead.setdefault(at, []).append(self.slot(r))

    def slot(self, reference: int) -> int:
        kind, index = reference & 3, reference >> 2
        return index + (0 if kind == INPUT else self.scalars if kind == SCALAR else self.outputs)

    def compile(self) -> Program:
        plan = self.plan
        blocks: list[list[Step]] = [[]]
        moves: list[Move] = []
        for at, instruction in enumerate(plan.instructions):
            if instruction.op == MOVE:
                moves.append(self.move(at, instruction))
                blocks.append([])
            else:
                blocks[-1].append(self.step(at, instruction))
        return Program(
            plan,
            self.rank,
            self.mesh,
            blocks,
            [[step.action for step in block] for block in blocks],
            moves,
            self.outputs + len(plan.values),
            [(offset, self.outputs + index) for offset, index in plan.survivors],
            [(position, self.outputs + index) for position, index in plan.rehomed],
        )

    def local(self, reference: int) -> Spec | str:
        """What this worker holds of an operand."""
        operand = self.plan.operand(reference)
        if isinstance(operand, str):
            return operand
        return spec(operand.dtype, extent(box(operand.shape, self.plan.layout(reference), self.mesh, self.rank)))

    def step(self, at: int, instruction: Instruction) -> Step:
        number = instruction.outputs[0]
        whole = self.plan.values[number]
        part = box(whole.shape, self.plan.layouts[number], self.mesh, self.rank)
        call = Call(
            self.backend.xp,
            instruction.op,
            instruction.attributes,
            tuple(self.local(r) for r in instruction.inputs),
            spec(whole.dtype, extent(part)),
            whole.shape,
            part,
        )
        kernel: Callable[..., Any]
        try:
            kernel = KERNELS[instruction.op](call)
        except Exception as error:  # noqa: BLE001 — it fails where it would run, and the plan still takes part in its moves
            kernel = _failing(error)
        reads = tuple(self.slot(r) for r in instruction.inputs)
        tensors = tuple(self.slot(r) for r in instruction.inputs if r & 3 != SCALAR)
        writes = self.slot(ref(OUTPUT, number))
        dead = tuple(self.dead.get(at, ()))
        return Step(_action(kernel, reads, writes, dead), kernel, reads, tensors, writes, dead, instruction)

    def move(self, at: int, instruction: Instruction) -> Move:
        (source,) = instruction.inputs
        number = instruction.outputs[0]
        before, after = self.plan.layout(source), self.plan.layouts[number]
        target = self.slot(ref(OUTPUT, number))
        dead = tuple(self.dead.get(at, ()))
        whole = self.plan.values[number]
        return compile_move(
            instruction, at, whole, before, after, self.mesh, self.rank, self.slot(source), target, dead
        )


def _action(kernel: Callable[..., Any], reads: tuple[int, ...], writes: int, dead: tuple[int, ...]) -> Action:
    """The step as one call without a loop, for the common numbers of operands and of values that die with it."""
    if len(reads) == 2:
        a, b = reads
        if not dead:

            def binary(slots: Slots) -> None:
                slots[writes] = kernel(slots[a], slots[b])

            return binary
        if len(dead) == 1:
            (x,) = dead

            def binary_last(slots: Slots) -> None:
                slots[writes] = kernel(slots[a], slots[b])
                slots[x] = None

            return binary_last
    elif len(reads) == 1:
        (a,) = reads
        if not dead:

            def unary(slots: Slots) -> None:
                slots[writes] = kernel(slots[a])

            return unary
        if len(dead) == 1:
            (x,) = dead

            def unary_last(slots: Slots) -> None:
                slots[writes] = kernel(slots[a])
                slots[x] = None

            return unary_last

    def general(slots: Slots) -> None:
        slots[writes] = kernel(*[slots[r] for r in reads])
        for x in dead:
            slots[x] = None

    return general


def _failing(error: Exception) -> Callable[..., Any]:
    """A kernel that could not be made."""

    def kernel(*_: Any) -> Any:
        raise error

    return kernel


def describe(program: Program, instruction: Instruction) -> str:
    """The failing instruction in the one printed form, with the user's line and signal."""
    tag = program.plan.tags[instruction.tag]
    operands = ", ".join(str(program.plan.operand(r)) for r in instruction.inputs)
    layout = program.plan.layout if len(program.mesh.members) > 1 else None
    signal = f" in signal {'/'.join(tag.signal)}" if tag.signal else ""
    printed = print_instruction(instruction, program.plan.values, layout)
    return f"{instruction.op} of {operands} at {tag.site}{signal} [{printed}]"
