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
from typing import Any, Final, NamedTuple

from gt.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Pipeline, Plan, Segment, ref
from gt.interned import Interned
from gt.placement import REPLICATE, Layout, Mesh, Partial, Placement, Shard
from gt.schedule import hindrance, turns
from gt.spec import Spec

from .choice import (
    DATA,
    PARAMETER,
    Choice,
    Owner,
    Question,
    Stages,
    State,
    batch_dimension,
    choices,
    parameter_placement,
    path,
    whole,
)
from .cost import Speeds, move_seconds, speeds_of
from .policy import Policy, Wish, Wishes
from .search import better_plan
from .stages import stages_of

MAX_MEMO: Final = 1 << 14
MAX_SEARCHED: Final = 1 << 11
"""Instructions of the longest segment that is planned as a whole."""
NOWHERE: Final = -1
"""The layout of a run-time scalar."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Home(metaclass=Interned):
    """Where a tensor lives between plans, whether it is a parameter, whether a rule has claimed it, and what it comes from."""

    layout: Layout
    param: bool = False
    claimed: bool = False
    origin: int = DATA


class Planned(NamedTuple):
    """A plan, and the homes of its survivors (in their order) and of all its inputs after it.

    `hindered` says why what was asked to run as 1f1b runs as gpipe.
    """

    plan: Plan
    survivors: tuple[Home, ...]
    inputs: tuple[Home, ...]
    hindered: str = ""


class Decision(NamedTuple):
    """A `Choice` with layouts and states by their numbers."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    asked: tuple[int, ...]
    states: tuple[int, ...]
    seconds: float
    """Of moves and of computing."""
    faithful: bool


class Tables:
    """Everything that was ever chosen on one mesh: layouts and states by number, and choices by what they depend on."""

    def __init__(self, mesh: Mesh, speeds: Speeds, stages: Stages, timed: bool, blocks: int = 0) -> None:
        self.mesh = mesh
        self.blocks = blocks
        self.speeds = speeds
        self.stages = stages
        self.timed = timed
        self.clear()

    def clear(self) -> None:
        """Forget everything; numbers given before mean nothing any more."""
        self.layouts: list[Layout] = []
        self.layout_numbers: dict[Layout, int] = {}
        self.contributed: set[int] = set()
        """The layouts in which something is partial."""
        self.states: list[State] = []
        self.state_numbers: dict[State, int] = {}
        self.keys: dict[Any, int] = {}
        self.decisions: dict[tuple[int, ...], tuple[Decision, ...]] = {}
        self.copies: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def layout(self, layout: Layout) -> int:
        """The number of a layout."""
        found = self.layout_numbers.get(layout)
        if found is None:
            found = self.layout_numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            if any(isinstance(placement, Partial) for placement in layout):
                self.contributed.add(found)
        return found

    def state(self, state: State) -> int:
        """The number of a state."""
        found = self.state_numbers.get(state)
        if found is None:
            found = self.state_numbers[state] = len(self.states)
            self.states.append(state)
        return found

    def key(self, instruction: Instruction, results: tuple[Spec, ...], kinds: str) -> int:
        """The number of everything about an instruction but its tensors."""
        key = (instruction.op, tuple(instruction.attributes.values()), results, kinds)
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = len(self.keys)
        return found

    def copied(self, state: int, layout: int) -> tuple[int, tuple[int, ...]]:
        """The state of a value after it was moved to a layout, and the layouts on the way from the nearest copy."""
        found = self.copies.get((state, layout))
        if found is None:
            old, target = self.states[state], self.layouts[layout]
            source = min(old.copies, key=lambda copy: self.seconds(old.spec, copy, target))
            way = [source, *path(old.spec, source, target, self.timed)]
            way = way[max(at for at, step in enumerate(way) if step in old.copies) :]
            new = self.state(old._replace(copies=(*old.copies, *way[1:])))
            found = self.copies[state, layout] = (new, tuple(map(self.layout, way)))
        return found

    def seconds(self, spec: Spec, before: Layout, after: Layout) -> float:
        """What moving a value costs, axis by axis."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            total += move_seconds(old, new, spec.nbytes, self.mesh.sizes[axis], self.speeds.links[axis])
        return total

    def decide(self, question: Question) -> tuple[Decision, ...]:
        """The choices for a question, by number."""
        return tuple(
            self._numbered(choice, question)
            for choice in choices(question, self.mesh, self.speeds, self.stages, self.blocks)
        )

    def _numbered(self, choice: Choice, question: Question) -> Decision:
        states = (
            self.state(State(spec, layout, (layout,), choice.origin, choice.owner, choice.batch))
            for spec, layout in zip(question.results, choice.results, strict=True)
        )
        return Decision(
            tuple(NOWHERE if layout is None else self.layout(layout) for layout in choice.operands),
            tuple(map(self.layout, choice.results)),
            tuple(map(self.layout, choice.asked)),
            tuple(states),
            choice.seconds + choice.work,
            choice.faithful,
        )


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


BATCH: Final = Wish("data_parallel", "<pipeline>")
"""What a pipeline rule asks for on the axis in time: activations cut along their first dimension."""


class Pass:
    """One planning pass: states of all values by the segment's reference, and the plan as far as it is made."""

    def __init__(
        self, policy: Policy, tables: Tables, segment: Segment, homes: tuple[Home, ...], piped: tuple[int, Wish] | None,
        script: Sequence[int] = (), ends: Sequence[Home] | None = None,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.tables = tables
        self.segment = segment
        self.homes = homes
        self.script = script
        """For each instruction which of its choices to take; the best where nothing is said."""
        self.ends = ends
        """The homes that survivors must have in the end; where their plan leaves them, if nothing is said."""
        self.seconds = 0.0
        self.dry = False
        """Whether only states and costs are of interest."""
        self.values: list[Spec] = []
        self.placed: list[int] = []
        self.instructions: list[Instruction] = []
        self.states: dict[int, int] = {}
        self.references: dict[int, dict[int, int]] = {}
        """For each value its copies: by the layout's number the plan's reference."""
        self.unclaimed: set[int] = set()
        self.backward = False
        self.time: Layout = (REPLICATE,) if tables.timed else ()
        for index, home in enumerate(homes):
            r, layout = ref(INPUT, index), (*home.layout, *self.time)
            spec = segment.inputs[index]
            owner = Owner(spec, layout, home.claimed) if home.param else None
            origin = PARAMETER if home.param else home.origin
            self.states[r] = tables.state(State(spec, layout, (layout,), origin, owner, batch_dimension(spec, origin)))
            self.references[r] = {tables.layout(layout): r}
            if home.param and not home.claimed:
                self.unclaimed.add(r)
        self.wishes = [self.wished(tag.signal, tag.phase == "backward") for tag in segment.tags]
        self.wish_keys = [tables.keys.setdefault(wishes, len(tables.keys)) for wishes in self.wishes]
        self.forgets = any(wish is not None and wish.strategy == "fully_sharded" for w in self.wishes for wish in w)
        self.piped = piped
        """The mesh axis of the pipeline that some of the segment is under, and its rule."""
        self.stages = self.staged() if piped else None

    def wished(self, signal: tuple[str, ...], backward: bool) -> Wishes:
        """What a signal asks for on each axis, that in time among them."""
        wishes = tuple(
            None if wish is not None and wish.strategy == "auto" else wish
            for wish in self.policy.wishes(signal, backward=backward)
        )
        if not self.tables.timed:
            return wishes
        piped = any(wish is not None and wish.strategy == "pipeline_parallel" for wish in wishes)
        return (*wishes, BATCH if piped else None)

    def staged(self) -> list[int | None]:
        """The position of the pipeline's axis for each instruction that a rule puts on a stage."""
        states = {r: self.tables.states[number] for r, number in self.states.items()}
        return stages_of(self.segment, self.policy, states)

    def run(self) -> Planned:
        for index, instruction in enumerate(self.segment.instructions):
            self.place(index, instruction)
        return self.finish()

    def turns(self) -> Generator[None, None, Planned]:
        """The same, a little at each turn."""
        for index, instruction in enumerate(self.segment.instructions):
            self.place(index, instruction)
            yield
        return self.finish()

    def place(self, index: int, instruction: Instruction) -> None:
        """Put one instruction into the plan, with the moves that it needs."""
        script = self.script
        decisions = self.decisions(index, instruction)
        self.take(instruction, decisions[min(script[index], len(decisions) - 1) if script else 0])

    def decisions(self, index: int, instruction: Instruction) -> tuple[Decision, ...]:
        """What there is to choose for an instruction, the best first."""
        tables, states = self.tables, self.states
        inputs, tag = instruction.inputs, instruction.tag
        if self.forgets and not self.backward and self.segment.tags[tag].phase == "backward":
            self.forget()
        if self.unclaimed:
            self.claim(index, instruction)
        values = self.segment.values
        results = tuple([values[n] for n in instruction.outputs])
        kinds = "".join([self.segment.kinds[r >> 2] for r in inputs if r & 3 == SCALAR])
        stage = -1 if self.stages is None or self.stages[index] is None else self.stages[index]
        backward = self.segment.tags[tag].phase == "backward"
        key = (
            tables.key(instruction, results, kinds), self.wish_keys[tag] if not backward else ~self.wish_keys[tag], stage,
            *[NOWHERE if r & 3 == SCALAR else states[r] for r in inputs],
        )  # fmt: skip
        decisions = tables.decisions.get(key)  # type: ignore[arg-type]
        if decisions is None:
            decisions = tables.decisions[key] = tables.decide(self.question(index, instruction, results))  # type: ignore[index]
        return decisions

    def take(self, instruction: Instruction, decision: Decision) -> None:
        """Carry out one decision."""
        tables, states, references = self.tables, self.states, self.references
        inputs, tag = instruction.inputs, instruction.tag
        values = self.segment.values
        results = [values[n] for n in instruction.outputs]
        self.seconds += decision.seconds
        read = []
        for r, layout in zip(inputs, decision.operands, strict=True):
            if layout == NOWHERE:
                read.append(r)
            else:
                found = references[r].get(layout)
                read.append(self.moved(r, layout, tag) if found is None else found)
        first = len(self.values)
        if not self.dry:
            outputs = range(first, first + len(results))
            self.instructions.append(Instruction(instruction.op, outputs, tuple(read), instruction.attributes, tag))
            self.values += results
            self.placed += decision.results
        for offset, number in enumerate(instruction.outputs):
            r = ref(OUTPUT, number)
            references[r] = {decision.results[offset]: ref(OUTPUT, first + offset)}
            states[r] = decision.states[offset]
            if decision.results[offset] in tables.contributed and r in self.segment.read_often:
                states[r] = tables.state(tables.states[states[r]]._replace(shared=True))
            if decision.asked[offset] != decision.results[offset]:
                self.settle(r, decision.asked[offset], tag)
        if instruction.op == "tag" and instruction.attributes["param"]:
            owner = tables.states[states[r]].owner
            if owner is not None and not owner.claimed:
                self.unclaimed.add(r)

    def question(self, index: int, instruction: Instruction, results: tuple[Spec, ...]) -> Question:
        """What there is to choose for an instruction."""
        states, tables = self.states, self.tables
        operands = tuple(
            self.segment.kinds[r >> 2] if r & 3 == SCALAR else tables.states[states[r]] for r in instruction.inputs
        )
        return Question(
            instruction.op, instruction.attributes, operands, results, self.wishes[instruction.tag],
            self.stages[index] if self.stages else None, self.segment.tags[instruction.tag].phase == "backward",
        )  # fmt: skip

    # values that move

    def moved(self, r: int, layout: int, tag: int) -> int:
        """The plan's reference to a value in a layout in which there is no copy of it yet."""
        self.states[r], (source, *steps) = self.tables.copied(self.states[r], layout)
        references = self.references[r] = dict(self.references[r])
        at = references[source]
        spec = self.tables.states[self.states[r]].spec
        for step in steps:
            if not self.dry:
                number = len(self.values)
                self.instructions.append(Instruction(MOVE, range(number, number + 1), (at,), {}, tag))
                self.values.append(spec)
                self.placed.append(step)
            at = references[step] = ref(OUTPUT, len(self.values) - 1)
        return references[layout]

    def settle(self, r: int, layout: int, tag: int) -> None:
        """Take a value to where it is to stay."""
        tables = self.tables
        if layout not in self.references[r]:
            state = tables.states[self.states[r]]
            self.seconds += tables.seconds(state.spec, state.at, tables.layouts[layout])
            self.moved(r, layout, tag)
        self.states[r] = tables.state(tables.states[self.states[r]]._replace(at=tables.layouts[layout]))

    def forget(self) -> None:
        """From the backward sweep on, gather parameters again rather than keep what was gathered for the forward one."""
        self.backward = True
        tables = self.tables
        for r, references in self.references.items():
            state = tables.states[self.states[r]]
            if state.origin == PARAMETER and len(references) > 1:
                at = tables.layout(state.at)
                self.references[r] = {at: references[at]}
                self.states[r] = tables.state(state._replace(copies=(state.at,)))

    def claim(self, index: int, instruction: Instruction) -> None:
        """Give every unclaimed parameter among the operands the placement that its signal asks for."""
        wishes = self.wishes[instruction.tag]
        if not any(wishes):
            return
        stage = self.stages[index] if self.stages else None
        for r in instruction.inputs:
            if r not in self.unclaimed:
                continue
            state = self.tables.states[self.states[r]]
            asked: list[Placement] = list(state.at)
            for axis, wish in enumerate(wishes):
                if wish is not None and wish.strategy == "pipeline_parallel" and stage is None:
                    return  # which stage is known only where it is used
                dimension = 0 if wish is None or wish.dimension is not None else self.open_dimension(instruction, axis)
                placement = parameter_placement(state.spec, wish, dimension, stage)
                if placement is not None and self.tables.mesh.sizes[axis] > 1:
                    asked[axis] = placement
            self.unclaimed.discard(r)
            layout, home = self.tables.layout(tuple(asked)), tuple(asked)
            self.settle(r, layout, instruction.tag)
            # the copy that it had elsewhere is gone: from now on it costs what it will always cost
            self.references[r] = {layout: self.references[r][layout]}
            owner = Owner(state.spec, home, True)
            self.states[r] = self.tables.state(State(state.spec, home, (home,), state.origin, owner))

    def open_dimension(self, instruction: Instruction, axis: int) -> int:
        """0 (columns), or 1 (rows) when the activation that meets the weight is already cut along what they contract."""
        reach = set(instruction.inputs) | {ref(OUTPUT, n) for n in instruction.outputs}
        for other in self.segment.instructions:
            if other.op == "matmul" and reach & set(other.inputs):
                for r in other.inputs:
                    number = self.states.get(r)
                    if number is not None and r not in reach:
                        state = self.tables.states[number]
                        return 1 if state.at[axis] == Shard(state.spec.ndim - 1) else 0
        return 0

    # the end

    def finish(self) -> Planned:
        tables, segment = self.tables, self.segment
        survivors, homes = [], []
        made = {number: instruction.tag for instruction in segment.instructions for number in instruction.outputs}
        for position, number in enumerate(segment.survivors):
            r = ref(OUTPUT, number)
            self.settle(r, self.rest(r, position), made[number])
            state = tables.states[self.states[r]]
            survivors.append((number, self.references[r][tables.layout(state.at)] >> 2))
            owner = state.owner if state.owner is not None and state.owner.spec is state.spec else None
            homes.append(self.home(state, owner is not None, owner))
        inputs, rehomed = [], []
        for index, home in enumerate(self.homes):
            r = ref(INPUT, index)
            state = tables.states[self.states[r]]
            inputs.append(self.home(state, home.param, state.owner))
            if inputs[-1].layout != home.layout:
                rehomed.append((index, self.references[r][tables.layout(state.at)] >> 2))
        plan = Plan(
            tables.mesh.number,
            segment.inputs,
            tuple((*home.layout, *self.time) for home in self.homes),
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

    def rest(self, r: int, position: int) -> int:
        """Where a survivor stays between plans: whole, and joined in time."""
        if self.ends is not None:
            return self.tables.layout((*self.ends[position].layout, *self.time))
        layout = whole(self.tables.states[self.states[r]].at)
        return self.tables.layout((*layout[:-1], REPLICATE) if self.tables.timed else layout)

    def settle_survivors(self, ends: Sequence[Home]) -> None:
        """Take survivors to these homes, as a dry pass does in the end."""
        for number, home in zip(self.segment.survivors, ends, strict=True):
            self.settle(ref(OUTPUT, number), self.tables.layout((*home.layout, *self.time)), 0)

    def forget_value(self, r: int) -> None:
        """Drop a value that nobody reads any more."""
        self.states.pop(r, None)
        self.references.pop(r, None)

    def again(self, script: Sequence[int], ends: Sequence[Home]) -> Pass:
        """The same pass from the start, with these choices and ends."""
        return Pass(self.policy, self.tables, self.segment, self.homes, self.piped, script, ends)

    def copy(self) -> Pass:
        """A dry pass that goes on from here by itself."""
        made: Pass = object.__new__(Pass)
        made.__dict__.update(self.__dict__)
        made.states, made.references = dict(self.states), dict(self.references)
        made.unclaimed = set(self.unclaimed)
        made.dry = True
        return made

    def home(self, state: State, param: bool, owner: Owner | None) -> Home:
        layout = state.at[:-1] if self.tables.timed else state.at
        claimed = param and owner is not None and owner.claimed
        return Home(layout, param, claimed, DATA if param else state.origin)

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
