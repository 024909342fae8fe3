"""The planner: a pure function from a segment and the placements of its inputs to a plan. The core caches its results.

For each instruction it takes the best legal choice (`choices.py`), memoised by everything the choice may depend on, and
inserts moves where operands are placed differently. Its policy:

* A *parameter* is an input that was marked as one at its creation, or that was computed from one. The first rule that
  applies to it is bound to it: the rule's placement becomes its resident placement from then on. All other tensors are
  *activations*.
* A value that is computed element-wise from one parameter, and has its shape, gets the parameter's placement.
* A value that outlives the plan is never partial: it is reduced at the end of the plan. A partial value with several
  readers is reduced before the first of them.
* The planner avoids sharding that nobody asked for unless it saves traffic, so a program without rules stays unsharded.
* A pipeline rule gives the mesh an axis in time (`gt/ir/microbatch_schedule.py`), to which the same options apply.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from gt.dispatcher.cost.cost_model import Speeds, speeds_of
from gt.ir.instruction import INPUT, MOVE, OUTPUT, Instruction, Pipeline, Plan, Segment
from gt.ir.microbatch_schedule import hindrance
from gt.ir.spec import Spec
from gt.sharding.placement import REPLICATE, Layout, Mesh
from gt.turns import ITEMS_PER_TURN, NAMES_PER_TURN, finish

from .choice_cache import NO_LAYOUT, ChoiceCache, NumberedChoice, ResidentPlacement
from .placement_walk import PlacementWalk
from .plan_search import better_plan
from .policy import Policy, RequestedPlacement

MAX_MEMO: Final = 1 << 14
MANY_OPERANDS: Final = 64
"""An instruction with more operands begins a turn."""
MAX_SEARCHED: Final = 1 << 11
"""Instructions of the longest segment that is planned as a whole."""


TURN_INSTRUCTIONS: Final = 16
"""Instructions that are planned in one turn."""
OUTPUT_RANGES: Final = [range(n, n + 1) for n in range(MAX_SEARCHED)]
"""The outputs of an instruction that has one, made once."""
LAYOUT_BITS: Final = 20
new_tuple = tuple.__new__
"""Makes a named tuple out of a tuple of its fields, in half the time that its class takes."""


def copy_of(r: int, layout: int) -> int:
    """The key of a value's copy in a layout."""
    return r << LAYOUT_BITS | layout


class Planned(NamedTuple):
    """A plan, and the resident placements of its survivors (in their order) and of all its inputs after it.

    `hindered` says why a pipeline runs as GPipe that its config asks to run as 1F1B; empty where that is not so.
    """

    plan: Plan
    survivors: tuple[ResidentPlacement, ...]
    inputs: tuple[ResidentPlacement, ...]
    hindered: str = ""


@dataclass
class Planner:
    """Plans for one session: its mesh, its policy, and tables of choices already made. No other state."""

    mesh: Mesh
    policy: Policy
    speeds: Speeds | None = None
    tables: ChoiceCache = field(init=False)
    timed: ChoiceCache = field(init=False)
    searching: int = 0
    """Searches and plans under way: they hold numbers of the tables."""

    def __post_init__(self) -> None:
        speeds = self.speeds or speeds_of(self.mesh.sizes, [{}] * len(self.mesh.members))
        self.speeds, stages = speeds, self.policy.stages()
        self.tables = self.timed = ChoiceCache(self.mesh, speeds, stages, timed=False, blocks=self.policy.deterministic)
        if self.policy.microbatches > 1:
            in_memory = replace(speeds, links=(*speeds.links, speeds.links[-1]))
            self.timed = ChoiceCache(self.mesh.timed(self.policy.microbatches), in_memory, stages, timed=True)

    @property
    def known_speeds(self) -> Speeds:
        """The speeds of the mesh, measured or typical."""
        assert self.speeds is not None, "they are filled in at the start"
        return self.speeds

    def plan(self, segment: Segment, residents: tuple[ResidentPlacement, ...]) -> Planned:
        """A plan of `segment`: a layout for every value, and the moves between layouts. `residents` has for each input its spec
        and resident placement."""
        return finish(self.plan_in_turns(segment, residents))

    def plan_in_turns(
        self, segment: Segment, residents: tuple[ResidentPlacement, ...]
    ) -> Generator[None, None, Planned]:
        """The same, a little at each turn."""
        yield from segment.prepare()
        plan = yield from self.start(self.policy, segment, residents)
        self.searching += 1
        try:
            return (yield from plan.in_turns())
        finally:
            self.searching -= 1

    def start(
        self, policy: Policy, segment: Segment, residents: tuple[ResidentPlacement, ...]
    ) -> Generator[None, None, PlanningPass]:
        """A pass that plans it, under any policy, prepared in turns."""
        piped, names = None, 0
        for tag in segment.tags:
            names += 1 + len(tag.signal)
            if names > NAMES_PER_TURN:
                names = 0
                yield
            for axis, request in enumerate(policy.requests(tag.signal)):
                if request is not None and request.strategy == "pipeline_parallel":
                    piped = piped or (axis, request)
        tables = self.timed if piped else self.tables
        if len(tables.decisions) + len(tables.branches) > MAX_MEMO and not self.searching:
            tables.clear()
        made = PlanningPass(policy, tables, segment, residents, piped)
        self.searching += 1  # what it refers to stays
        try:
            yield from made.prepare()
        finally:
            self.searching -= 1
        return made

    def searchable(self, segment: Segment, known: Planned) -> bool:
        """Whether looking for a better plan may find one: several workers, and no order of microbatches to keep."""
        return (
            len(self.mesh.members) > 1
            and 1 < len(segment.instructions) <= MAX_SEARCHED
            and known.plan.pipeline is None
            and not self.policy.deterministic
        )

    def search(
        self, segment: Segment, residents: tuple[ResidentPlacement, ...], known: Planned
    ) -> Iterator[Planned | None]:
        """Look for a plan that is better than `known` as a whole, a little at each turn; last comes what was found."""
        self.searching += 1
        try:
            start = PlanningPass(self.policy, self.tables, segment, residents, None)
            for _ in start.prepare():
                yield None
            yield from better_plan(start, known)
        finally:
            self.searching -= 1


class PlanningPass(PlacementWalk):
    """A walk that writes the plan."""

    def __init__(
        self, policy: Policy, tables: ChoiceCache, segment: Segment, residents: tuple[ResidentPlacement, ...],
        piped: tuple[int, RequestedPlacement] | None, script: Sequence[int] = (), ends: Sequence[ResidentPlacement] | None = None,
    ) -> None:  # fmt: skip
        self.script = script
        """For each instruction the number of the choice to take; empty: the best one of each."""
        self.ends = ends
        """The resident placements that survivors must have in the end; where their plan leaves them, if nothing is said."""
        self.values: list[Spec] = []
        self.placed: list[Layout] = []
        self.instructions: list[Instruction] = []
        self.copies: dict[int, int] = {}
        """The plan's references to copies elsewhere, by `copy_of` value and layout."""
        super().__init__(policy, tables, segment, residents, piped)
        self.here: dict[int, int] = {}
        """For each reference in the segment the plan's: to the value in its resident placement, or to a run-time scalar."""

    def begin(self) -> None:
        super().begin()
        self.here = dict(zip(self.states, self.states, strict=True))

    def in_turns(self) -> Generator[None, None, Planned]:
        """The whole plan, `TURN_INSTRUCTIONS` instructions at each turn.

        An instruction with one result, which stays where it is computed, takes one look-up if the choice for such operands was
        made before (`ChoiceCache.plain`). All others go through `decision` and `take`.
        """
        states, here, plain, request_keys = self.states, self.here, self.tables.plain, self.request_keys
        instructions, values, placed, unbound = self.instructions, self.values, self.placed, self.unbound
        often = self.segment.read_often
        careful = self.stages is not None or self.forgets
        key: tuple[Any, ...]
        for index, instruction in enumerate(self.segment.instructions):
            if index and not index % TURN_INSTRUCTIONS:
                yield
            op, outputs, inputs, attributes, tag = instruction
            count = len(inputs)
            if count == 2 and not attributes:  # the usual cases, without a loop
                one, other = inputs
                key = (op, request_keys[tag], states[one], states[other])
            elif count == 1:
                (one,) = inputs
                key = (op, *attributes.values(), request_keys[tag], states[one])
            else:
                if count > MANY_OPERANDS:
                    yield
                count = 0
                key = (op, *attributes.values(), request_keys[tag], *[states[r] for r in inputs])
            found = None if careful or unbound else plain.get(key)
            if found is None:
                self.take(instruction, self.decision(index, instruction))
                careful = self.stages is not None or (self.forgets and not self.backward)
                continue
            spec, layout, state, shared, moved = found
            if moved:
                read = self.read(inputs, moved, tag)
            elif count == 2:
                read = (here[one], here[other])
            else:
                read = (here[one],) if count else tuple([here[r] for r in inputs])
            at = len(values)
            number = OUTPUT_RANGES[at] if at < MAX_SEARCHED else range(at, at + 1)
            instructions.append(new_tuple(Instruction, (op, number, read, attributes, tag)))
            values.append(spec)
            placed.append(layout)
            r = outputs.start << 2 | OUTPUT
            here[r] = at << 2 | OUTPUT
            states[r] = shared if r in often else state
        return (yield from self.ended())

    def turns(self) -> Generator[None, None, Planned]:
        """The same by the script, a little at each turn."""
        script = self.script or [0] * len(self.segment.instructions)
        for index, (instruction, branch) in enumerate(zip(self.segment.instructions, script, strict=True)):
            self.take(instruction, self.branches(index, instruction)[branch])
            yield
        return (yield from self.ended())

    def restarted(self, script: Sequence[int], ends: Sequence[ResidentPlacement]) -> PlanningPass:
        """The same pass from the start, with these choices and ends."""
        made = PlanningPass(self.policy, self.tables, self.segment, self.residents, self.piped, script, ends)
        made.requests, made.request_keys, made.forgets = self.requests, self.request_keys, self.forgets
        made.stages, made.started, made.products = self.stages, self.started, self.products
        made.begin()
        return made

    def take(self, instruction: Instruction, decision: NumberedChoice) -> None:
        """Put an instruction into the plan, with the moves that it needs."""
        values, segment, layouts = self.values, self.segment.values, self.tables.layouts
        op, outputs, inputs, attributes, tag = instruction
        read = self.read(inputs, decision.operands, tag)
        at = len(values)
        self.instructions.append(Instruction(op, range(at, at + len(outputs)), read, attributes, tag))
        for number, layout in zip(outputs, decision.results, strict=True):
            self.here[number << 2 | OUTPUT] = at << 2 | OUTPUT
            values.append(segment[number])
            self.placed.append(layouts[layout])
            at += 1
        self.give(instruction, decision)

    def read(self, inputs: tuple[int, ...], operands: tuple[int, ...], tag: int) -> tuple[int, ...]:
        """The plan's references to operands in their layouts, moved there if need be."""
        resident, states, read = self.tables.at, self.states, []
        for r, layout in zip(inputs, operands, strict=True):
            if layout == NO_LAYOUT or layout == resident[states[r]]:
                read.append(self.here[r])
            else:
                found = self.copies.get(r << LAYOUT_BITS | layout)
                read.append(self.move(r, layout, tag) if found is None else found)
        return tuple(read)

    def move(self, r: int, layout: int, tag: int) -> int:
        """The plan's reference to a value in a layout in which there is no copy of it yet."""
        tables, values, copies = self.tables, self.values, self.copies
        before = self.states[r]
        source, *steps = self.go(r, layout)
        at = self.here[r] if source == tables.at[before] else copies[copy_of(r, source)]
        spec = tables.states[before].spec
        for step in steps:
            number = len(values)
            outputs = OUTPUT_RANGES[number] if number < MAX_SEARCHED else range(number, number + 1)
            self.instructions.append(new_tuple(Instruction, (MOVE, outputs, (at,), {}, tag)))
            at = copies[copy_of(r, step)] = number << 2 | OUTPUT
            values.append(spec)
            self.placed.append(tables.layouts[step])
        return at

    def settle(self, r: int, layout: int, tag: int) -> None:
        before = self.tables.at[self.states[r]]
        if before != layout:
            super().settle(r, layout, tag)
            self.copies[copy_of(r, before)] = self.here[r]
            self.here[r] = self.copies.pop(copy_of(r, layout))

    def stays(self, r: int) -> None:
        for layout in range(len(self.tables.layouts)):
            self.copies.pop(copy_of(r, layout), None)

    def ended(self) -> Generator[None, None, Planned]:
        """The plan, once all instructions are in it; some of its survivors and inputs at each turn."""
        tables, segment, states, here = self.tables, self.segment, self.states, self.here
        survivors, residents = [], []
        time: Layout = (REPLICATE,) if tables.timed else ()
        for position, number in enumerate(segment.survivors):
            if position and not position % ITEMS_PER_TURN:
                yield
            r = number << 2 | OUTPUT
            layout, resident = tables.rest(states[r])
            if resident is None or self.ends is not None:
                if self.ends is not None:
                    layout = tables.layout((*self.ends[position].layout, *time))
                self.settle(r, layout, segment.made_under[number])
                resident = tables.resident(states[r])
            survivors.append((number, here[r] >> 2))
            residents.append(resident)
        inputs, relocated = [], []
        for index, before in enumerate(self.residents):
            if index and not index % ITEMS_PER_TURN:
                yield
            r = index << 2 | INPUT
            resident = tables.resident(states[r], before.param)
            inputs.append(resident)
            if resident.layout != before.layout:
                relocated.append((index, here[r] >> 2))
        plan = Plan(
            tables.mesh.number,
            segment.inputs,
            tuple(
                [(*resident.layout, *time) for resident in self.residents]
                if time
                else [resident.layout for resident in self.residents]
            ),
            segment.kinds,
            segment.tags,
            tuple(self.instructions),
            tuple(self.values),
            tuple(self.placed),
            tuple(survivors),
            tuple(relocated),
            blocks=tables.blocks,
        )
        hindered = ""
        if tables.timed:
            plan, hindered = yield from self.piped_plan(plan)
        return Planned(plan, tuple(residents), tuple(inputs), hindered)

    def piped_plan(self, plan: Plan) -> Generator[None, None, tuple[Plan, str]]:
        """The plan in microbatches, and why it cannot run as 1f1b where it should. Found out in turns."""
        assert self.piped is not None, "only what is under a pipeline is in microbatches"
        axis, request = self.piped
        pipeline = Pipeline(self.policy.microbatches, axis, request.stages or (), self.policy.schedule)
        plan = replace(plan, pipeline=pipeline)
        if pipeline.schedule != "1f1b":
            return plan, ""
        hindered = yield from hindrance(plan)
        return (replace(plan, pipeline=pipeline._replace(schedule="gpipe")) if hindered else plan), hindered
