"""The planner: from a segment and where its inputs are to a plan. A pure function; its results are cached by the core.

Instruction by instruction it takes the best legal choice (`choice.py`), remembered by what the choice may depend on, and
puts moves before the instruction where operands are elsewhere. What that means:

* A *parameter* is an input that was marked at creation, or what followed from one. The first rule that meets it places
  it and becomes its claim: the new placement is its home from then on. Everything else is an *activation*.
* What is computed element-wise from one parameter, in its shape, goes where the parameter is.
* A value that outlives the plan is never partial: its contributions are reduced at the end of the plan, and
  those that several instructions read before the first of them.
* An unasked-for shard is avoided when it saves no traffic, so a program without rules stays as it is.
* Under a pipeline rule the mesh gets an axis in time (`gt/schedule.py`), to which the same rows apply.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gt.instruction import INPUT, MOVE, OUTPUT, Instruction, Pipeline, Plan, Segment, ref
from gt.placement import REPLICATE, Mesh
from gt.schedule import hindrance, turns
from gt.spec import Spec

from .cost import Speeds, speeds_of
from .policy import Policy, Wish
from .search import better_plan
from .tables import NOWHERE, Decision, Home, Tables
from .walk import Walk

MAX_MEMO: Final = 1 << 14
MAX_SEARCHED: Final = 1 << 11
"""Instructions of the longest segment that is planned as a whole."""


LAYOUT_BITS: Final = 20
named = tuple.__new__
"""A named tuple out of its fields, in half the time."""


def copy_of(r: int, layout: int) -> int:
    """The key of a value's copy in a layout."""
    return r << LAYOUT_BITS | layout


class Planned(NamedTuple):
    """A plan, and the homes of its survivors (in their order) and of all its inputs after it.

    `hindered` says why what was asked to run as 1f1b runs as gpipe.
    """

    plan: Plan
    survivors: tuple[Home, ...]
    inputs: tuple[Home, ...]
    hindered: str = ""


@dataclass
class Planner:
    """Plans for one session: its mesh, its policy, and tables of choices already made. No other state."""

    mesh: Mesh
    policy: Policy
    speeds: Speeds | None = None
    tables: Tables = field(init=False)
    timed: Tables = field(init=False)
    searching: int = 0
    """Searches under way: they hold numbers of the tables."""

    def __post_init__(self) -> None:
        speeds = self.speeds or speeds_of(self.mesh.sizes, [{}] * len(self.mesh.members))
        self.speeds, stages = speeds, self.policy.stages()
        self.tables = self.timed = Tables(self.mesh, speeds, stages, timed=False, blocks=self.policy.deterministic)
        if self.policy.microbatches > 1:
            in_memory = replace(speeds, links=(*speeds.links, speeds.links[-1]))
            self.timed = Tables(self.mesh.timed(self.policy.microbatches), in_memory, stages, timed=True)

    @property
    def known_speeds(self) -> Speeds:
        """The speeds of the mesh, measured or typical."""
        assert self.speeds is not None, "they are filled in at the start"
        return self.speeds

    def plan(self, segment: Segment, homes: tuple[Home, ...]) -> Planned:
        """Place every value of `segment`, whose inputs are at `homes`."""
        return self.start(self.policy, segment, homes).run()

    def start(self, policy: Policy, segment: Segment, homes: tuple[Home, ...]) -> Pass:
        """A pass that plans it, under any policy."""
        piped = next(
            (
                (axis, wish)
                for tag in segment.tags
                for axis, wish in enumerate(policy.wishes(tag.signal))
                if wish is not None and wish.strategy == "pipeline_parallel"
            ),
            None,
        )
        tables = self.timed if piped else self.tables
        if len(tables.decisions) > MAX_MEMO and not self.searching:
            tables.clear()
        return Pass(policy, tables, segment, homes, piped)

    def searchable(self, segment: Segment, known: Planned) -> bool:
        """Whether looking for a better plan may find one: several workers, and no order of microbatches to keep."""
        return (
            len(self.mesh.members) > 1
            and 1 < len(segment.instructions) <= MAX_SEARCHED
            and known.plan.pipeline is None
            and not self.policy.deterministic
        )

    def search(self, segment: Segment, homes: tuple[Home, ...], known: Planned) -> Iterator[Planned | None]:
        """Look for a plan that is better than `known` as a whole, a little at each turn; last comes what was found."""
        self.searching += 1
        try:
            yield from better_plan(Pass(self.policy, self.tables, segment, homes, None), known)
        finally:
            self.searching -= 1


class Pass(Walk):
    """A walk that writes the plan."""

    def __init__(
        self, policy: Policy, tables: Tables, segment: Segment, homes: tuple[Home, ...], piped: tuple[int, Wish] | None,
        script: Sequence[int] = (), ends: Sequence[Home] | None = None,
    ) -> None:  # fmt: skip
        self.script = script
        """For each instruction which of its choices to take; the best where nothing is said."""
        self.ends = ends
        """The homes that survivors must have in the end; where their plan leaves them, if nothing is said."""
        self.values: list[Spec] = []
        self.placed: list[int] = []
        self.instructions: list[Instruction] = []
        self.references: dict[int, int] = {}
        """The plan's references to copies, by `copy_of` value and layout."""
        super().__init__(policy, tables, segment, homes, piped)

    def begin(self, r: int, layout: int) -> None:
        self.references[copy_of(r, layout)] = r

    def run(self) -> Planned:
        """The whole plan."""
        for index, instruction in enumerate(self.segment.instructions):
            self.take(instruction, self.decisions(index, instruction)[0])
        return self.finish()

    def turns(self) -> Generator[None, None, Planned]:
        """The same by the script, a little at each turn."""
        script = self.script or [0] * len(self.segment.instructions)
        for index, (instruction, branch) in enumerate(zip(self.segment.instructions, script, strict=True)):
            self.take(instruction, self.decisions(index, instruction)[branch])
            yield
        return self.finish()

    def again(self, script: Sequence[int], ends: Sequence[Home]) -> Pass:
        """The same pass from the start, with these choices and ends."""
        return Pass(self.policy, self.tables, self.segment, self.homes, self.piped, script, ends)

    def take(self, instruction: Instruction, decision: Decision) -> None:
        """Put an instruction into the plan, with the moves that it needs."""
        references, values, segment = self.references, self.values, self.segment.values
        op, outputs, inputs, attributes, tag = instruction
        operands, results, _, states, seconds, _, plain = decision
        read = []
        for at, r in enumerate(inputs):
            layout = operands[at]
            if layout != NOWHERE:
                found = references.get(r << LAYOUT_BITS | layout)
                read.append(self.move(r, layout, tag) if found is None else found)
            else:
                read.append(r)
        at = len(values)
        self.instructions.append(named(Instruction, (op, range(at, at + len(outputs)), tuple(read), attributes, tag)))
        if plain:
            number, layout = outputs.start, results[0]
            r = number << 2 | OUTPUT
            values.append(segment[number])
            self.placed.append(layout)
            references[r << LAYOUT_BITS | layout] = at << 2 | OUTPUT
            self.states[r] = states[0]
            self.seconds += seconds
            return
        for number, layout in zip(outputs, results, strict=True):
            references[copy_of(number << 2 | OUTPUT, layout)] = at << 2 | OUTPUT
            values.append(segment[number])
            self.placed.append(layout)
            at += 1
        self.give(instruction, decision)

    def move(self, r: int, layout: int, tag: int) -> int:
        """The plan's reference to a value in a layout in which there is no copy of it yet."""
        source, *steps = self.go(r, layout)
        at = self.references[copy_of(r, source)]
        spec = self.tables.states[self.states[r]].spec
        for step in steps:
            number = len(self.values)
            self.instructions.append(Instruction(MOVE, range(number, number + 1), (at,), {}, tag))
            at = self.references[copy_of(r, step)] = ref(OUTPUT, number)
            self.values.append(spec)
            self.placed.append(step)
        return self.references[copy_of(r, layout)]

    def stays(self, r: int) -> None:
        at = self.tables.layout(self.tables.states[self.states[r]].at)
        for layout in range(len(self.tables.layouts)):
            if layout != at:
                self.references.pop(copy_of(r, layout), None)

    def finish(self) -> Planned:
        tables, segment = self.tables, self.segment
        survivors, homes = [], []
        made = {number: instruction.tag for instruction in segment.instructions for number in instruction.outputs}
        for position, number in enumerate(segment.survivors):
            r = ref(OUTPUT, number)
            if self.ends is None:
                layout = tables.rest(self.states[r])
            else:
                end = self.ends[position].layout
                layout = tables.layout((*end, REPLICATE) if tables.timed else end)
            self.settle(r, layout, made[number])
            survivors.append((number, self.references[copy_of(r, layout)] >> 2))
            homes.append(tables.home(self.states[r]))
        inputs, rehomed = [], []
        for index, home in enumerate(self.homes):
            r = ref(INPUT, index)
            state = self.states[r]
            inputs.append(tables.home(state, home.param))
            if inputs[-1].layout != home.layout:
                rehomed.append((index, self.references[copy_of(r, tables.layout(tables.states[state].at))] >> 2))
        plan = Plan(
            tables.mesh.number,
            segment.inputs,
            tuple([(*home.layout, REPLICATE) if tables.timed else home.layout for home in self.homes]),
            segment.kinds,
            segment.tags,
            tuple(self.instructions),
            tuple(self.values),
            tuple([tables.layouts[number] for number in self.placed]),
            tuple(survivors),
            tuple(rehomed),
            blocks=tables.blocks,
        )
        hindered = ""
        if tables.timed:
            plan, hindered = self.piped_plan(plan)
        return Planned(plan, tuple(homes), tuple(inputs), hindered)

    def piped_plan(self, plan: Plan) -> tuple[Plan, str]:
        """The plan in microbatches, and why it cannot run as 1f1b where it should."""
        assert self.piped is not None, "only what is under a pipeline is in microbatches"
        axis, wish = self.piped
        pipeline = Pipeline(self.policy.microbatches, axis, wish.stages or (), self.policy.schedule)
        plan = replace(plan, pipeline=pipeline)
        if pipeline.schedule != "1f1b" or not any(turn.repeated for turn in turns(plan)):
            return plan, ""
        hindered = hindrance(plan)
        return (replace(plan, pipeline=pipeline._replace(schedule="gpipe")) if hindered else plan), hindered
