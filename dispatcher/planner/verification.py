"""Plans that check themselves: the same plan, with some instructions computed a second time by a single worker.

`gt.config.set({"verify": 0.01})` asks for it. An instruction with sharded operands or results gets three kinds of companions:
moves that gather its operands and its result on one worker, the instruction itself on what was gathered, and a `verify` that
compares. Nothing else in the plan changes, so the plan itself is what is checked. Which instructions a run checks is drawn by
counting, not by time: the same program checks the same ones. Pure functions only.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_INSTRUCTIONS
from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, VERIFY, Instruction, Plan, ref
from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.sharding.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Shard
from gt.turns import INSTRUCTIONS_PER_TURN

MAX_PARTS: Final = 8
"""The most parts into which a plan's instructions are divided for checking, and so the most variants of a plan."""
RECURRENT_FAMILIES: Final = frozenset({"recurrence", "recurrence_grad"})
ADDING_OPS: Final = frozenset(
    {"sum", "matmul", "linear_int8", "conv", "overlap_add", "max_pool_grad", "segment_sum", "scatter_add"}
)
"""Ops that add up many numbers: the size of rounding errors depends on the terms, not on their sum."""
MAX_COMPANIONS: Final = 16
"""The most instructions that one check adds, besides half as many for each operand."""


class Sample(NamedTuple):
    """Which of so many parts of a plan's instructions are checked."""

    part: int
    parts: int


def draw_sample(share: float, run: int) -> Sample | None:
    """What run number `run` of a session checks, so that on average this share of all instructions is; None for nothing."""
    if not share:
        return None
    parts = MAX_PARTS if share * MAX_PARTS <= 1 else int(1 / share)
    drawn = _mixed(run)
    if (drawn >> 11) * 2.0**-53 >= share * parts:
        return None
    return Sample(_mixed(drawn) % parts, parts)


def checks_in_turns(plan: Plan, mesh: Mesh, sample: Sample) -> Generator[None, None, Plan]:
    """The plan with checks, made in turns, or the plan itself if there is nothing to check."""
    return plan if len(mesh.members) == 1 else (yield from _Checking(plan, mesh).run(sample))


def _mixed(number: int) -> int:
    """A hash of 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014) on a counter."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    number = (number ^ number >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31


class _Checking:
    """A plan being rewritten: outputs are numbered as they are added."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.plan = plan
        self.mesh = mesh
        self.instructions: list[Instruction] = []
        self.values: list[Spec] = []
        self.layouts: list[Layout] = []
        self.numbers: dict[int, int] = {}
        """The new number of each output."""
        self.checks = 0

    def run(self, sample: Sample) -> Generator[None, None, Plan]:
        plan = self.plan
        for at, old in enumerate(plan.instructions):
            if at and not at % INSTRUCTIONS_PER_TURN:
                yield
            first = len(self.values)
            inputs = tuple(self.renamed(r) for r in old.inputs)
            outputs = range(first, first + len(old.outputs))
            self.instructions.append(old._replace(outputs=outputs, inputs=inputs))
            for number, new in zip(old.outputs, outputs, strict=True):
                self.numbers[number] = new
                self.values.append(plan.values[number])
                self.layouts.append(plan.layouts[number])
            room = MAX_INSTRUCTIONS - len(self.instructions) - (len(plan.instructions) - at)
            if (
                old.op != MOVE
                and _mixed(at) % sample.parts == sample.part
                and room > MAX_COMPANIONS + MAX_COMPANIONS // 2 * len(inputs)
            ):
                self.check(self.instructions[-1], at)
        if not self.checks:
            return plan
        return replace(
            plan,
            instructions=tuple(self.instructions),
            values=tuple(self.values),
            layouts=tuple(self.layouts),
            survivors=tuple((offset, self.numbers[number]) for offset, number in plan.survivors),
            relocated=tuple((position, self.numbers[number]) for position, number in plan.relocated),
        )

    def renamed(self, r: int) -> int:
        return ref(OUTPUT, self.numbers[r >> 2]) if r & 3 == OUTPUT else r

    def check(self, instruction: Instruction, at: int) -> None:
        """Add the companions of an instruction, unless it is replicated already."""
        (number,) = instruction.outputs
        made, tag = ref(OUTPUT, number), instruction.tag
        tensors = [r for r in instruction.inputs if r & 3 != SCALAR]
        where = self.gathered([self.layout(r) for r in (made, *tensors)], at)
        if where is None:
            return
        gathered = {r: self.moved(r, where, tag) for r in (made, *tensors)}
        inputs = [gathered.get(r, r) for r in instruction.inputs]
        again = self.add(instruction.op, inputs, instruction.attributes, tag, self.values[number], where)
        compared = [gathered[made], again, *self.bound(instruction, where, gathered)]
        self.add(VERIFY, compared, {"of": number}, tag, self.values[number], where)
        self.checks += 1

    def gathered(self, layouts: Sequence[Layout], at: int) -> Layout | None:
        """The layout at one worker where all of these are to be gathered, at their stage if they have one. None if nothing is
        sharded."""
        if not any(isinstance(placement, (Shard, Partial)) for layout in layouts for placement in layout):
            return None
        out: list[Placement] = []
        for axis, size in enumerate(self.mesh.sizes):
            there = {layout[axis] for layout in layouts}
            one = there.pop()
            out.append(one if isinstance(one, At) and not there else At(_mixed(at + axis) % size))
        return (*out, REPLICATE) if self.plan.pipeline else tuple(out)

    def bound(self, instruction: Instruction, where: Layout, gathered: dict[int, int]) -> list[int]:
        """What rounding errors are proportional to, if it is not the result: the same sum over the absolute values of the
        terms."""
        (number,) = instruction.outputs
        result, tag, family = self.values[number], instruction.tag, OPS[instruction.op].family
        if result.dtype.kind != "f" or self.plan.blocks:
            return []
        if family == "softmax":
            x = gathered[instruction.inputs[0]]
            return [self.add("abs", [x], {}, tag, self.spec(x), where)]
        if instruction.op == "attention":  # a mean with weights: that of the absolute values
            inputs = [gathered[r] for r in instruction.inputs]
            inputs[2] = self.add("abs", [inputs[2]], {}, tag, self.spec(inputs[2]), where)
            return [self.add("attention", inputs, instruction.attributes, tag, result, where)]
        if (
            instruction.op == "attention_grad" or family in RECURRENT_FAMILIES
        ):  # of which no sum of absolute values can be made: the largest of a matrix
            size = self.add("abs", [gathered[ref(OUTPUT, number)]], {}, tag, result, where)
            rows = spec(result.dtype, (*result.shape[:-1], 1))
            return [self.add("max", [size], {"axes": (result.ndim - 1,), "keepdims": True}, tag, rows, where)]
        partial = [r for r in instruction.inputs if r & 3 != SCALAR and _is_sum(self.layout(r))]
        if instruction.op not in ADDING_OPS and not partial:
            return []
        sizes = []
        for r in instruction.inputs:
            if r & 3 == SCALAR or self.spec(r).dtype.kind != "f":
                sizes.append(gathered.get(r, r))
            elif r in partial:
                sizes.append(self.moved(self.add("abs", [r], {}, tag, self.spec(r), self.layout(r)), where, tag))
            else:
                sizes.append(self.add("abs", [gathered[r]], {}, tag, self.spec(r), where))
        op = "add" if instruction.op == "sub" else instruction.op
        total = self.add(op, sizes, instruction.attributes, tag, result, where)
        return [self.add("abs", [total], {}, tag, result, where)]

    def moved(self, r: int, where: Layout, tag: int) -> int:
        """A value in another layout: microbatches are joined first; contributions of different kinds follow each other."""
        before, target = self.layout(r), where
        if self.plan.pipeline and before[-1] != REPLICATE:
            before = (*before[:-1], REPLICATE)
            r = self.add(MOVE, [r], {}, tag, self.spec(r), before)
        changed = zip(before, target, strict=True)
        kinds = dict.fromkeys(old.op for old, new in changed if isinstance(old, Partial) and old != new)
        for kind in kinds:
            step = tuple(
                new if isinstance(old, Partial) and old.op == kind else old
                for old, new in zip(self.layout(r), target, strict=True)
            )
            r = self.add(MOVE, [r], {}, tag, self.spec(r), target if len(kinds) == 1 else step)
        return r if self.layout(r) == target else self.add(MOVE, [r], {}, tag, self.spec(r), target)

    def add(
        self, op: str, inputs: Sequence[int], attributes: dict[str, Any], tag: int, spec: Spec, layout: Layout
    ) -> int:
        number = len(self.values)
        self.instructions.append(Instruction(op, range(number, number + 1), tuple(inputs), attributes, tag))
        self.values.append(spec)
        self.layouts.append(layout)
        return ref(OUTPUT, number)

    def spec(self, r: int) -> Spec:
        return self.plan.inputs[r >> 2] if r & 3 == INPUT else self.values[r >> 2]

    def layout(self, r: int) -> Layout:
        return self.plan.input_layouts[r >> 2] if r & 3 == INPUT else self.layouts[r >> 2]


def _is_sum(layout: Layout) -> bool:
    return any(isinstance(placement, Partial) and placement.op == "sum" for placement in layout)
