"""Compiles a plan into a flat program over slots: once per rank, after which it only runs.

Slots hold the plan's inputs, its run-time scalars and its outputs, in this order. Steps read and write slots by number, so
the hot path looks up nothing by name. The steps between two moves form a block. A value is dropped after its last reader.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, VERIFY, Instruction, Plan, print_instruction, ref, sources
from gt.ir.microbatch_schedule import order, repeats
from gt.ir.spec import Spec, spec
from gt.sharding.partition import Box, box, extent, receives, relative
from gt.sharding.placement import Mesh, Partial
from gt.worker.base.backend import Backend
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.device.cublas import Gemm
from gt.worker.device.exclusive_array import take_exclusive
from gt.worker.kernels.compare import comparison
from gt.worker.kernels.matmul import SharedMatmul, exchanged
from gt.worker.op_table.op_table import IN_PLACE_KERNELS, workspace
from gt.worker.op_table.package_kernel import kernel_factory
from gt.worker.spill.memory_accounting import SignalsByOffset, signals_of
from gt.worker.transfer.move import Move, compile_move, local_result, reducer

from .simplify import simplified

LAYOUT_OPS: Final = frozenset(("expand", "permute", "reshape"))
"""Ops whose results look at their operands' memory, as far as they can."""

MOVES_AHEAD_BYTES: Final = 1 << 20
"""Bytes of the results of moves that are begun before the one in front of them is over."""

Slots = list[Any]
Action = Callable[[Slots], None]


@dataclass(slots=True)
class ProgramStep:
    """One instruction, compiled. `action` does it at full speed; the rest serves the path on which something failed."""

    action: Action
    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    tensors: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]
    instruction: Instruction
    call: KernelCall | None = None
    """What its kernel was told, if that is all there is to know of it."""
    scope: str = ""
    """The phase that it belongs to."""
    into: Callable[..., Any] | None = None
    """A kernel that does the same in its first operand."""
    needs: int = 0
    """Bytes of its result, at most; a view has none of its own."""
    scratch: int = 0
    """Bytes that its kernel uses beside that while it computes, as far as that is known."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The slots of the tensors that its result is computed from: poison in them is poison in it."""
        return sources(self.instruction.op, self.tensors)


@dataclass(slots=True)
class Program:
    """A compiled plan. `blocks[i]` runs before `moves[i]`; the last block runs last.

    `actions[i]` do what the steps of `blocks[i]` do: one an action, or those of a chain; `starts[i]` says with which step
    each begins. `runs` counts until the program is hot. `need`: the most bytes that what it makes takes at once, and
    `scratch`: how many more with what kernels use meanwhile. `begun[i]`: how many moves may have been begun when `moves[i]`
    is waited for.
    """

    plan: Plan
    rank: int
    mesh: Mesh
    blocks: list[list[ProgramStep]]
    actions: list[list[Action]]
    moves: list[Move]
    slots: int
    survivors: list[tuple[int, int]]
    relocated: list[tuple[int, int]]
    starts: list[Sequence[int]]
    begun: list[int]
    need: int = 0
    scratch: int = 0
    runs: int = 0
    checked: dict[int, ProgramStep] = field(default_factory=dict)
    """Steps by the call that their kernels were told, and for a slot those that are computed from it
    (`worker/execution/deferred_checks.py`)."""
    reached: dict[int, frozenset[int]] = field(default_factory=dict)
    signals: SignalsByOffset = field(default_factory=dict)
    """In which each of its survivors was made."""
    answers: dict[int, Any] = field(default_factory=dict)
    """By output, where its value is there before the program ends (`worker/execution/early_answer.py`)."""


def compile_plan(plan: Plan, mesh: Mesh, rank: int, backend: Backend, cards: Sequence[int] = ()) -> Program:
    """The program of `plan` for the worker at `rank` of `mesh`, whose workers have these `cards`
    (`worker/nccl/collective_moves.py`)."""
    return _Compiler(plan, mesh, rank, backend, cards).compile()


@dataclass(slots=True)
class _DraftedStep:
    """A step of which it is not known yet which values die with it."""

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    tensors: tuple[int, ...]
    writes: int
    instruction: Instruction
    call: KernelCall | None = None
    into: Callable[..., Any] | None = None
    needs: int = 0
    scratch: int = 0


class _StepKernel(NamedTuple):
    """The function that runs a step, and what is known of that."""

    run: Callable[..., Any]
    call: KernelCall | None = None
    into: Callable[..., Any] | None = None
    scratch: int = 0


class _Compiler:
    """Compiles instructions in the order of this rank's schedule; what this rank has no part in is left out.

    Of a value that is there once for each microbatch every microbatch has a slot of its own, one after the other.
    """

    def __init__(self, plan: Plan, mesh: Mesh, rank: int, backend: Backend, cards: Sequence[int]) -> None:
        self.whole = plan
        self.plan = plan = simplified(plan)
        self.rank = rank
        self.cards = cards
        self.space = mesh
        self.times = plan.pipeline.microbatches if plan.pipeline else 1
        self.mesh = mesh.timed(self.times)
        self.backend = backend
        self.scalars = len(plan.inputs)
        self.outputs = self.scalars + len(plan.kinds)
        self.turned = _turned(plan)
        self.torch_kernel = _torch_kernels(backend) if backend.torch is not None else None
        """Chooses the kernel of a call on a device of PyTorch."""
        self.first: list[int] = []
        self.slots = self.outputs
        for layout in plan.layouts:
            self.first.append(self.slots)
            self.slots += self.times if plan.pipeline and repeats(layout) else 1

    def slot(self, reference: int, time: int = 0) -> int:
        kind, index = reference & 3, reference >> 2
        if kind == OUTPUT:
            return self.first[index] + (time if self.repeated(reference) else 0)
        return index if kind == INPUT else self.scalars + index

    def repeated(self, reference: int) -> bool:
        return reference & 3 == OUTPUT and self.times > 1 and repeats(self.plan.layout(reference))

    def compile(self) -> Program:
        plan = self.plan
        drafted: list[_DraftedStep | Move] = []
        for at, time in order(plan, self.space.coordinates(self.rank)):
            instruction = plan.instructions[at]
            rank = self.rank * self.times + time
            if instruction.op == VERIFY:
                drafted += self.verify(instruction, rank, time)
            elif instruction.op != MOVE:
                drafted += self.step(instruction, rank, time)
            elif self.in_time(instruction):
                drafted += self.gather(instruction, time)
            else:
                drafted += self.move(at, instruction, rank, time)
        survivors = [(offset, self.first[index]) for offset, index in plan.survivors]
        relocated = [(position, self.first[index]) for position, index in plan.relocated]
        blocks: list[list[ProgramStep]] = [[]]
        moves: list[Move] = []
        for draft, dead in zip(drafted, _deaths(drafted, {slot for _, slot in survivors + relocated}), strict=True):
            if isinstance(draft, Move):
                draft.dead = dead
                if draft.apart is not None:
                    draft.apart.dead = dead
                moves.append(draft)
                blocks.append([])
            else:
                action = action_of(draft.kernel, draft.reads, draft.writes, dead, draft.into)
                tag = plan.tags[draft.instruction.tag]
                step = ProgramStep(
                    action, draft.kernel, draft.reads, draft.tensors, draft.writes, dead, draft.instruction, draft.call,
                    tag.phase, draft.into, draft.needs, draft.scratch,
                )  # fmt: skip
                blocks[-1].append(step)
        actions = [[step.action for step in block] for block in blocks]
        starts: list[Sequence[int]] = [range(len(block)) for block in blocks]
        begun = _started_early(blocks, moves) if plan.pipeline is None else [*range(1, len(moves) + 1)]
        need, beside = _need(blocks, moves, begun)
        return Program(
            self.whole, self.rank, self.space, blocks, actions, moves, self.slots, survivors, relocated, starts, begun, need,
            beside, signals=signals_of(plan),
        )  # fmt: skip

    def part(self, reference: int, rank: int) -> Box | None:
        """Which part of a tensor operand a rank of the timed mesh holds."""
        operand = self.plan.operand(reference)
        assert isinstance(operand, Spec), "a scalar has no parts"
        return box(operand.shape, self.plan.layout(reference), self.mesh, rank)

    def local(self, reference: int, rank: int) -> Spec | str:
        """What this worker holds of an operand."""
        operand = self.plan.operand(reference)
        if isinstance(operand, str):
            return operand
        part = self.part(reference, rank)
        assert part is not None, "whoever has a part in a result has one in its operands"
        return spec(operand.dtype, extent(part))

    def nbytes(self, reference: int, time: int = 0) -> int:
        """What this worker's part of a tensor takes."""
        held = self.local(reference, self.rank * self.times + time)
        assert isinstance(held, Spec), "a scalar takes nothing"
        return held.nbytes

    def held(self, reference: int, rank: int) -> OperandPart | None:
        """The whole of an operand, and which part of it this worker holds; None for a run-time scalar."""
        operand = self.plan.operand(reference)
        if isinstance(operand, str):
            return None
        part = self.part(reference, rank)
        return None if part is None else OperandPart(operand.shape, part)

    def step(self, instruction: Instruction, rank: int, time: int) -> list[_DraftedStep | Move]:
        output = ref(OUTPUT, instruction.outputs[0])
        plan = self.plan
        whole = plan.values[output >> 2]
        part = self.part(output, rank)
        if part is None:
            return []
        result = spec(whole.dtype, extent(part))
        reads = tuple(self.slot(r, time) for r in instruction.inputs)
        tensors = tuple(self.slot(r, time) for r in instruction.inputs if r & 3 != SCALAR)
        needs = 0 if instruction.op in ("expand", "permute") else result.nbytes
        try:
            kernel = self.kernel(instruction, whole.shape, part, result, rank)
        except Exception as error:  # noqa: BLE001 — it fails where it would run, and the plan still takes part in its moves
            kernel = _StepKernel(partial(_failing, error))
        known = kernel.call, kernel.into, needs, kernel.scratch
        return [_DraftedStep(kernel.run, reads, tensors, self.slot(output, time), instruction, *known)]

    def kernel(
        self, instruction: Instruction, shape: tuple[int, ...], part: Box, result: Spec, rank: int
    ) -> _StepKernel:
        """The kernel of a step that makes `part` of a value of this `shape`."""
        plan = self.plan
        call = KernelCall(
            self.backend.xp,
            instruction.op,
            instruction.attributes,
            tuple(self.local(r, rank) for r in instruction.inputs),
            result,
            shape,
            part,
            tuple(self.held(r, rank) for r in instruction.inputs),
            plan.blocks,
            None if plan.blocks else self.backend.thread_pool,
            self.backend.direct,
            None if self.backend.checks is None else self.backend.checks.append,
            plan.tf32,
        )
        if self.torch_kernel is not None:
            run = self.torch_kernel(call)
            if call.op == "matmul" and not plan.blocks and instruction.outputs[0] in self.turned:
                run = _transposed(run)
            over_numpy = replace(call, xp=np)  # as chains see it, and who reckons what memory it needs
            return _StepKernel(run, over_numpy, None, workspace(over_numpy))
        run = kernel_factory(instruction.op, plan.blocks)(call)
        if instruction.outputs[0] in self.turned:
            if run is exchanged:
                run = self.backend.xp.matmul
            if run is self.backend.xp.matmul or isinstance(run, (SharedMatmul, Gemm)):
                run = _transposed(run)
        into = IN_PLACE_KERNELS[instruction.op](call) if instruction.op in IN_PLACE_KERNELS else None
        return _StepKernel(run, call, into, workspace(call))

    def move(self, at: int, instruction: Instruction, rank: int, time: int) -> list[_DraftedStep | Move]:
        """What this rank does in a move; a step when it needs nobody else, nothing when it has no part in it."""
        (source,) = instruction.inputs
        output = ref(OUTPUT, instruction.outputs[0])
        before, after = self.plan.layout(source), self.plan.layout(output)
        whole = self.plan.values[output >> 2]
        reads, writes = self.slot(source, time), self.slot(output, time)
        number = at * self.times + time
        move = compile_move(
            instruction, number, whole, before, after, self.mesh, rank, reads, writes, (), times=self.times,
            algorithm=self.plan.comm(instruction), paired=bool(self.plan.blocks), cards=self.cards,
        )  # fmt: skip
        if not move.local:
            return [move]
        if move.wanted is None:
            return []
        xp = self.backend.xp
        return [
            _DraftedStep(
                lambda held: local_result(move, held, xp), (reads,), (reads,), writes, instruction, needs=move.nbytes
            )
        ]

    def verify(self, instruction: Instruction, rank: int, time: int) -> list[_DraftedStep | Move]:
        """A comparison, at the one worker that has what is compared."""
        output = ref(OUTPUT, instruction.outputs[0])
        part = self.part(output, rank)
        if part is None:
            return []
        xp, dtype = self.backend.xp, self.plan.values[output >> 2].dtype
        kernel = comparison(xp, dtype, extent(part), exact=bool(self.plan.blocks))
        reads = tuple(self.slot(r, time) for r in instruction.inputs)
        return [_DraftedStep(kernel, reads, reads, self.slot(output, time), instruction)]

    def in_time(self, instruction: Instruction) -> bool:
        """Whether a move is one along the axis in time: within a worker, between microbatches."""
        (source,) = instruction.inputs
        return self.times > 1 and self.plan.layout(source)[-1] != self.plan.layouts[instruction.outputs[0]][-1]

    def gather(self, instruction: Instruction, time: int) -> list[_DraftedStep | Move]:
        """Cut a value into microbatches, or join them; contributions are added one by one, as they come."""
        (source,) = instruction.inputs
        output = ref(OUTPUT, instruction.outputs[0])
        before, after = self.plan.layout(source), self.plan.layout(output)
        if self.part(output, self.rank * self.times + time) is None:
            return []
        if isinstance(before[-1], Partial):
            piece, total = self.slot(source, time), self.slot(output)
            if time == 0:
                return [_DraftedStep(lambda first: first, (piece,), (piece,), total, instruction)]
            add = reducer(before[-1].op, self.backend.xp)
            return [_DraftedStep(add, (total, piece), (total, piece), total, instruction, needs=self.nbytes(output))]
        whole, rank = self.plan.values[output >> 2], self.rank * self.times + time
        transfers = receives(whole.shape, before, after, self.mesh, rank)
        reads = tuple(self.slot(source, t.source - self.rank * self.times) for t in transfers)
        held = [self.part(source, t.source) for t in transfers]
        wanted = self.part(output, rank)
        kernel = _joined(self.backend.xp, whole, wanted, [(t.part, h) for t, h in zip(transfers, held, strict=True)])
        needs = self.nbytes(output, time)
        return [_DraftedStep(kernel, reads, reads, self.slot(output, time), instruction, needs=needs)]


def _torch_kernels(backend: Backend) -> Callable[[KernelCall], Callable[..., Any]]:
    """What chooses kernels on a device of PyTorch, which is loaded for that alone."""
    chosen: Any = importlib.import_module("gt.worker.torch_kernels.kernel_choice")
    found: Callable[[KernelCall], Callable[..., Any]] = chosen.TorchKernels(backend.torch).kernel
    return found


def _turned(plan: Plan) -> set[int]:
    """The products that are read only by `permute`s that exchange their rows and columns, as gradients of weights are."""
    made = {i.outputs[0] for i in plan.instructions if i.op == "matmul"}
    made.difference_update(index for _, index in plan.survivors + plan.relocated)
    read: set[int] = set()
    for instruction in plan.instructions:
        for reference in instruction.inputs:
            if reference & 3 == OUTPUT and reference >> 2 in made:
                read.add(reference >> 2)
                ndim = plan.values[reference >> 2].ndim
                if instruction.attributes.get("axes") != (*range(ndim - 2), ndim - 1, ndim - 2):
                    made.discard(reference >> 2)
    return made & read


def _transposed(matmul: Callable[..., Any]) -> Callable[..., Any]:
    """a·b as the transpose of bᵀ·aᵀ: who reads the transpose finds it row by row in memory, as everything is that it meets."""
    return lambda a, b: matmul(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)


def _joined(xp: Any, whole: Spec, wanted: Any, parts: list[tuple[Box, Any]]) -> Callable[..., Any]:
    """A kernel that makes the box `wanted` of a value from (the part that is taken, the box that it is taken from)."""
    if len(parts) == 1 and parts[0][0] == wanted:
        at = relative(*parts[0])
        return lambda held: held[at]
    shape, dtype = extent(wanted), whole.dtype.numpy
    places = [(relative(part, wanted), relative(part, held)) for part, held in parts]

    def kernel(*values: Any) -> Any:
        out = xp.empty(shape, dtype)
        for (to, at), value in zip(places, values, strict=True):
            out[to] = value[at]
        return out

    return kernel


def _deaths(drafted: list[_DraftedStep | Move], kept: set[int]) -> list[tuple[int, ...]]:
    """For each step and move the slots that nobody reads after it."""
    seen, found = set(kept), []
    for draft in reversed(drafted):
        touched = (draft.source, draft.target) if isinstance(draft, Move) else (*draft.tensors, draft.writes)
        dead = tuple(slot for slot in dict.fromkeys(touched) if slot not in seen)
        seen.update(touched)
        found.append(dead)
    return found[::-1]


def _started_early(blocks: list[list[ProgramStep]], moves: list[Move]) -> list[int]:
    """For each move how many may have been begun when it is waited for: itself, and those behind it whose values are there by
    then, as far as their results are not more than `MOVES_AHEAD_BYTES` bytes. So many that follow each other, as those of
    gradients do at the end of a backward pass, are waited for once and not each by itself."""
    made = {step.writes: number for number, block in enumerate(blocks) for step in block}
    made.update((move.target, number + 1) for number, move in enumerate(moves))
    begun: list[int] = []
    for number, move in enumerate(moves):
        room, behind = MOVES_AHEAD_BYTES, number + 1
        while move.joint is None and behind < len(moves) and moves[behind].joint is None:
            room -= moves[behind].nbytes
            if room < 0 or made.get(moves[behind].source, 0) > number:
                break
            behind += 1
        begun.append(behind)
    return begun


def _need(blocks: list[list[ProgramStep]], moves: list[Move], begun: list[int]) -> tuple[int, int]:
    """The most bytes that results hold at once, with each there until nobody reads it any more; how many more there are at once
    with what kernels use."""
    held = most = used = 0
    sizes: dict[int, int] = {}
    for number, block in enumerate(blocks):
        lives = [(step.writes, step.needs, step.dead, step.scratch) for step in block]
        if number < len(moves):
            lives += [(move.target, move.nbytes, (), 0) for move in moves[number : begun[number]]]
            lives.append((moves[number].target, moves[number].nbytes, moves[number].dead, 0))
        for slot, nbytes, dead, beside in lives:
            held += nbytes - sizes.get(slot, 0)
            sizes[slot] = nbytes
            most = max(most, held)
            used = max(used, held + beside)
            held -= sum(sizes.pop(each, 0) for each in dead)
    return most, used - most


def action_of(
    kernel: Callable[..., Any],
    reads: tuple[int, ...],
    writes: int,
    dead: tuple[int, ...],
    into: Callable[..., Any] | None = None,
) -> Action:
    """The step as one call without a loop, for the common numbers of operands and of values that die with it."""
    if into is not None and reads[0] in dead and reads.count(reads[0]) == 1:
        return _in_place(kernel, into, reads, writes, dead)
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


def _in_place(
    kernel: Callable[..., Any], into: Callable[..., Any], reads: tuple[int, ...], writes: int, dead: tuple[int, ...]
) -> Action:
    """A step that writes into its first operand, which dies with it, if nobody else can see that."""
    first, *rest = reads

    def action(slots: Slots) -> None:
        others = [slots[r] for r in rest]
        own = take_exclusive(slots, first)
        slots[writes] = kernel(slots[first], *others) if own is None else into(own, *others)
        for slot in dead:
            slots[slot] = None

    return action


def _failing(error: Exception, *_: Any) -> Any:
    """Stands for a kernel that could not be made. At each run the error begins a traceback anew, or that would grow."""
    raise error.with_traceback(None)


def describe(program: Program, instruction: Instruction) -> str:
    """Prints the failing instruction, or what a failing check was of, in the one printed form, with the user's line and
    signal."""
    if instruction.op == VERIFY:
        of = instruction.attributes["of"]
        instruction = next(each for each in program.plan.instructions if of in each.outputs)
    tag = program.plan.tags[instruction.tag]
    operands = ", ".join(str(program.plan.operand(r)) for r in instruction.inputs)
    layout = program.plan.layout if len(program.mesh.members) > 1 else None
    signal = f" in signal {'/'.join(tag.signal)}" if tag.signal else ""
    printed = print_instruction(instruction, program.plan.values, layout)
    return f"{instruction.op} of {operands} at {tag.site}{signal} [{printed}]"
