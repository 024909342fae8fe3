"""Cuts a plan into parts that should take no longer than its signals' `max_plan`: each is a plan of its own, and others may have
their turns between two of them.

What decides is the plan, the config and the cost model with the speeds that are frozen with the mesh, never the time. The parts
have the instructions and layouts of the whole plan in its order, so they compute the same bits. A value that a later part reads
lives in between under a number that no program uses, as it is: in any layout, also a partial one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from gt.bounds import MAX_INPUTS
from gt.dispatcher.cost.cost_model import VIEW_OPS, Speeds
from gt.dispatcher.cost.expected_run_time import expected_steps
from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Plan, Tag, ref
from gt.ir.spec import Spec
from gt.sharding.placement import Layout, Mesh

from .policy import Policy

MAX_PARTS: Final = 256
"""Into about how many parts a plan is cut at most. Those of one that needs more take longer than they should."""
PASSED_NUMBERS: Final = 1 << 62
"""From here on survivors of parts are numbered that only later parts read."""
INSTRUCTIONS_PER_TURN: Final = 32
"""How many instructions are looked at in one turn."""


STEPS_PER_TURN: Final = 256
"""The same where little is done with each."""


class PlanStep(NamedTuple):
    """What is never divided: where it begins, the seconds that it takes, and the most seconds of a part with it."""

    at: int
    seconds: float
    limit: float


class PlanPart(NamedTuple):
    """One part. Its `plan` numbers what survives from `base` on, which is to be added to the base of a run."""

    plan: Plan
    base: int
    inputs: tuple[int, ...]
    """Of each input its position among those of the whole plan, or, of what an earlier part has computed, ~its number, to which
    the base of a run is added."""
    scalars: tuple[int, ...]
    """The run-time scalars of the whole plan that it reads."""
    ends: tuple[int, ...]
    """The positions of those of its inputs that nobody reads afterwards, because they only pass between parts."""
    last: dict[int, int]
    """By position, those inputs of the whole plan that no later part reads: their positions here."""
    passed: tuple[int, ...]
    """The numbers of what it computes that only later parts read."""


def cut_plan(plan: Plan, policy: Policy, mesh: Mesh, speeds: Speeds) -> Generator[None, None, tuple[PlanPart, ...]]:
    """The parts of a plan, found in turns; none if it is not cut. A pipeline is never cut: its stages take turns."""
    if not policy.cuts or plan.pipeline is not None or len(plan.instructions) < 2:
        return ()
    limits = yield from _limits(plan, policy)
    if min(limits, default=inf) == inf:
        return ()
    seconds = yield from expected_steps(plan, mesh, speeds)
    steps = yield from _steps(plan, seconds, limits)
    starts = yield from part_starts(steps)
    if len(starts) < 2:
        return ()
    parts = yield from _Cutting(plan).run(starts)
    return parts if all(len(part.inputs) <= MAX_INPUTS for part in parts) else ()


def _limits(plan: Plan, policy: Policy) -> Generator[None, None, list[float]]:
    """For each tag the most seconds of a plan with work under it, found in turns."""
    known: dict[tuple[tuple[str, ...], str], float] = {}
    found = []
    for at, tag in enumerate(plan.tags, 1):
        if not at % INSTRUCTIONS_PER_TURN:
            yield
        key = tag.signal, tag.phase
        if key not in known:
            known[key] = policy.seconds_for(tag)
        found.append(known[key])
    return found


def _steps(plan: Plan, seconds: list[float], limits: list[float]) -> Generator[None, None, list[PlanStep]]:
    """What a cut keeps together, in turns: an instruction and what only looks at something after it, so that its result is read
    in the same way as in the whole plan."""
    steps: list[PlanStep] = []
    for at, (instruction, took) in enumerate(zip(plan.instructions, seconds, strict=True)):
        if not (at + 1) % STEPS_PER_TURN:
            yield
        if steps and instruction.op in VIEW_OPS:
            steps[-1] = steps[-1]._replace(seconds=steps[-1].seconds + took)
        else:
            steps.append(PlanStep(at, took, limits[instruction.tag]))
    return steps


def part_starts(steps: Sequence[PlanStep]) -> Generator[None, None, list[int]]:
    """Where parts begin, found in turns. A step that takes longer than it may is a part of its own, with what takes no time."""
    total = 0.0
    for count, step in enumerate(steps, 1):
        if not count % STEPS_PER_TURN:
            yield
        total += step.seconds
    least = 2 * total / MAX_PARTS
    starts, so_far, limit = [0], 0.0, inf
    for count, (at, took, most) in enumerate(steps, 1):
        if not count % STEPS_PER_TURN:
            yield
        if not took:
            continue
        if so_far and so_far + took > max(least, min(limit, most)):
            starts.append(at)
            so_far, limit = 0.0, inf
        so_far += took
        limit = min(limit, most)
    return starts


class _Cutting:
    """A plan that is being cut."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.survivors: dict[int, list[int]] = {}
        """By output, the numbers under which it survives the whole plan."""
        self.made_in: dict[int, int] = {}
        """By output, the part that computes it."""
        self.read_in: dict[int, int] = {}
        """By reference to a tensor, the last part that reads it."""
        self.moved_under: dict[int, int] = dict.fromkeys((index for _, index in plan.relocated), 0)
        """Of each output that takes the place of an input, the tag of what computes it."""

    def run(self, starts: list[int]) -> Generator[None, None, tuple[PlanPart, ...]]:
        plan, last = self.plan, len(starts) - 1
        for number, index in plan.survivors:
            self.survivors.setdefault(index, []).append(number)
        yield
        ranges = [range(a, b) for a, b in zip(starts, [*starts[1:], len(plan.instructions)], strict=True)]
        left = INSTRUCTIONS_PER_TURN
        for number, some in enumerate(ranges):
            for at in some:
                left -= 1
                if left < 0:
                    left = INSTRUCTIONS_PER_TURN
                    yield
                instruction = plan.instructions[at]
                for index in instruction.outputs:
                    self.made_in[index] = number
                    if index in self.moved_under:
                        self.moved_under[index] = instruction.tag
                self.read_in.update((r, number) for r in instruction.inputs if r & 3 != SCALAR)
        for position, index in plan.relocated:
            self.read_in[ref(INPUT, position)] = last
            if self.made_in[index] < last:
                self.read_in[ref(OUTPUT, index)] = last
        parts = []
        for number, some in enumerate(ranges):
            parts.append((yield from _PartBuilder(self, number, number == last).build(some)))
        return tuple(parts)

    def number_of(self, index: int) -> int:
        """The number under which an output survives its part."""
        found = self.survivors.get(index)
        return found[0] if found else PASSED_NUMBERS + index


class _PartBuilder:
    """One part that is being made: inputs, outputs, scalars and tags are numbered as they occur."""

    def __init__(self, cutting: _Cutting, number: int, is_last: bool) -> None:
        self.cutting = cutting
        self.whole = cutting.plan
        self.number = number
        self.is_last = is_last
        self.inputs: dict[int, int] = {}
        """By the whole plan's reference."""
        self.outputs: dict[int, int] = {}
        self.scalars: dict[int, int] = {}
        self.tags: dict[Tag, int] = {}
        self.instructions: list[Instruction] = []
        self.values: list[Spec] = []
        self.layouts: list[Layout] = []

    def build(self, some: range) -> Generator[None, None, PlanPart]:
        whole, cutting = self.whole, self.cutting
        for count, at in enumerate(some):
            if not (count + 1) % INSTRUCTIONS_PER_TURN:
                yield
            self.add(whole.instructions[at])
        relocated = [self.relocate(*each) for each in whole.relocated] if self.is_last else []
        yield
        survivors, passed = [], []
        for index, here in self.outputs.items():
            numbers = cutting.survivors.get(index, [])
            survivors += [(number, here) for number in numbers]
            if not numbers and cutting.read_in.get(ref(OUTPUT, index), -1) > self.number:
                passed.append(cutting.number_of(index))
                survivors.append((passed[-1], here))
        base = min((number for number, _ in survivors), default=0)
        yield
        references = [*self.inputs]
        sources = tuple([r >> 2 if r & 3 == INPUT else ~cutting.number_of(r >> 2) for r in references])
        over = [at for at, r in enumerate(references) if cutting.read_in[r] <= self.number]
        plan = Plan(
            whole.mesh, tuple([self.spec(r) for r in references]), tuple(map(whole.layout, references)),
            "".join([whole.kinds[index] for index in self.scalars]), tuple(self.tags), tuple(self.instructions),
            tuple(self.values), tuple(self.layouts), tuple([(number - base, here) for number, here in survivors]),
            tuple(relocated), None, whole.blocks, whole.tf32,
        )  # fmt: skip
        return PlanPart(
            plan, base, sources, tuple(self.scalars),
            tuple([at for at in over if sources[at] < 0 and ~sources[at] >= PASSED_NUMBERS]),
            {sources[at]: at for at in over if sources[at] >= 0}, tuple(passed),
        )  # fmt: skip

    def spec(self, reference: int) -> Spec:
        found = self.whole.operand(reference)
        assert isinstance(found, Spec), "an input is a tensor"
        return found

    def add(self, instruction: Instruction) -> None:
        """Add an instruction of the whole plan."""
        whole = self.whole
        tag = whole.tags[instruction.tag]
        if instruction.op == MOVE:
            asked = whole.comm(instruction)  # by what it moves, which an earlier part may have computed
            if asked and asked != tag.hints.comm:
                tag = replace(tag, hints=tag.hints._replace(comm=asked))
        inputs = tuple([self.renamed(r) for r in instruction.inputs])
        self.append(instruction, inputs, tag, [whole.values[n] for n in instruction.outputs],
                    [whole.layouts[n] for n in instruction.outputs])  # fmt: skip

    def append(
        self, instruction: Instruction, inputs: tuple[int, ...], tag: Tag, values: list[Spec], layouts: list[Layout]
    ) -> None:
        first = len(self.values)
        outputs = range(first, first + len(values))
        self.outputs.update(zip(instruction.outputs, outputs, strict=False))
        at = self.tags.setdefault(tag, len(self.tags))
        self.instructions.append(Instruction(instruction.op, outputs, inputs, instruction.attributes, at))
        self.values += values
        self.layouts += layouts

    def renamed(self, reference: int) -> int:
        """The part's reference to an operand of the whole plan."""
        kind, index = reference & 3, reference >> 2
        if kind == SCALAR:
            return ref(SCALAR, self.scalars.setdefault(index, len(self.scalars)))
        if kind == OUTPUT and index in self.outputs:
            return ref(OUTPUT, self.outputs[index])
        return ref(INPUT, self.inputs.setdefault(reference, len(self.inputs)))

    def relocate(self, position: int, index: int) -> tuple[int, int]:
        """An input that the plan moves, and the output that takes its place, which an earlier part may have computed."""
        at = self.inputs.setdefault(ref(INPUT, position), len(self.inputs))
        if index in self.outputs:
            return at, self.outputs[index]
        source = self.renamed(ref(OUTPUT, index))
        tag = self.whole.tags[self.cutting.moved_under[index]]
        here = len(self.values)
        self.append(
            Instruction(MOVE, range(0), (source,), {}, 0),
            (source,),
            tag,
            [self.whole.values[index]],
            [self.whole.layouts[index]],
        )
        return at, here
