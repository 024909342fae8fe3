"""A walk along a segment: it takes one choice after the other, and tracks the state of every value and the seconds spent.

A search (`plan_search.py`) needs no more; `planner.py` also writes the plan.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import merge
from typing import Any, Final

from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Segment, ref
from gt.sharding.placement import REPLICATE, Layout, Placement, Shard
from gt.turns import ITEMS_PER_TURN, NAMES_PER_TURN

from .choice_cache import NO_LAYOUT, ChoiceCache, NumberedChoice, ResidentPlacement
from .choice_key import PARAMETER, ChoiceKey, FollowedParameter, ValueState, parameter_placement
from .pipeline_stages import stages_of
from .policy import Policy, RequestedPlacement, RequestedPlacements

PIPELINE_BATCH: Final = RequestedPlacement("data_parallel", "<pipeline>")
"""What a pipeline rule asks for on the axis in time: activations sharded along their first dimension."""


class PlacementWalk:
    """The states of all values, by the segment's reference. (The state of a scalar is a negative number that gives its kind.)"""

    def __init__(
        self,
        policy: Policy,
        tables: ChoiceCache,
        segment: Segment,
        residents: tuple[ResidentPlacement, ...],
        piped: tuple[int, RequestedPlacement] | None,
    ) -> None:
        self.policy = policy
        self.tables = tables
        self.segment = segment
        self.residents = residents
        self.piped = piped
        """The mesh axis of the pipeline that applies to part of the segment, and its rule."""
        self.seconds = 0.0
        self.moved = 0.0
        """The bytes that each worker has received so far."""
        self.started: dict[int, int] = {}
        """The states of inputs and scalars at the start (`prepare` finds them)."""
        self.states: dict[int, int] = {}
        self.unbound = {
            index << 2 | INPUT for index, resident in enumerate(residents) if resident.param and not resident.bound
        }
        self.products: dict[int, list[int]] = {}
        """By the segment's reference, the matrix products that read a value, in order, if a parameter may be bound here."""
        self.backward = False
        self.requests: list[RequestedPlacements] = []
        """What each tag asks for, and a number by which the choices under it are remembered (`prepare` finds them)."""
        self.request_keys: list[int] = []
        self.forgets = False
        self.stages: list[int | None] | None = None
        """For each instruction that a rule puts on a stage, its position on the pipeline's axis; None without one."""

    def prepare(self) -> Generator[None, None, None]:
        """Find out in turns where inputs are, what tags ask for, and the stages of a pipeline. Whoever walks does that first."""
        yield from self._find_inputs()
        self.begin()
        if self.unbound:
            yield from self._find_products()
        names = 0
        for tag in self.segment.tags:
            names += 1 + len(tag.signal)
            if names > NAMES_PER_TURN:
                names = 0
                yield
            backward = tag.phase == "backward"
            requests = self.requested(tag.signal, backward)
            self.requests.append(requests)
            self.request_keys.append(self.tables.key((requests, backward)))
            self.forgets = self.forgets or any(
                request is not None and request.strategy == "fully_sharded" for request in requests
            )
        if self.piped:
            self.stages = yield from self.staged()

    def _find_inputs(self) -> Generator[None, None, None]:
        for index, kind in enumerate(self.segment.kinds, 1):
            if not index % ITEMS_PER_TURN:
                yield
            self.started[ref(SCALAR, index - 1)] = -ord(kind)
        known, start = self.tables.starts, self.tables.start
        for index, at_home in enumerate(zip(self.segment.inputs, self.residents, strict=True), 1):
            if not index % ITEMS_PER_TURN:
                yield
            state = known.get(at_home)
            self.started[ref(INPUT, index - 1)] = start(*at_home) if state is None else state

    def _find_products(self) -> Generator[None, None, None]:
        for index, instruction in enumerate(self.segment.instructions):
            if index and not index % ITEMS_PER_TURN:
                yield
            if instruction.op == "matmul":
                for r in instruction.inputs:
                    self.products.setdefault(r, []).append(index)

    def begin(self) -> None:
        """Go to the start, where nothing but inputs and scalars has a state."""
        self.states = self.started.copy()

    def copy(self) -> PlacementWalk:
        """An independent walk that goes on from here."""
        made: PlacementWalk = object.__new__(PlacementWalk)
        made.__dict__.update(self.__dict__)
        made.states = self.states.copy()
        made.unbound = set(self.unbound)
        return made

    def requested(self, signal: tuple[str, ...], backward: bool) -> RequestedPlacements:
        """What a signal asks for on each axis, including that in time."""
        requests = tuple(
            None if request is not None and request.strategy == "auto" else request
            for request in self.policy.requests(signal, backward=backward)
        )
        if not self.tables.timed:
            return requests
        piped = any(request is not None and request.strategy == "pipeline_parallel" for request in requests)
        return (*requests, PIPELINE_BATCH if piped else None)

    def staged(self) -> Generator[None, None, list[int | None]]:
        """The positions that `stages` is to have, found in turns."""
        states = {r: self.tables.states[number] for r, number in self.states.items() if number >= 0}
        return (yield from stages_of(self.segment, self.policy, states))

    # one instruction

    def decision(self, index: int, instruction: Instruction) -> NumberedChoice:
        """The best choice for an instruction."""
        key = self.asked(index, instruction)
        return self.tables.decisions.get(key) or self.tables.decide(key, self.choice_key(index, instruction))

    def branches(self, index: int, instruction: Instruction) -> tuple[NumberedChoice, ...]:
        """The choices for an instruction, the best first."""
        key = self.asked(index, instruction)
        return self.tables.branches.get(key) or self.tables.branch(key, self.choice_key(index, instruction))

    def asked(self, index: int, instruction: Instruction) -> tuple[Any, ...]:
        """What the choices for an instruction depend on, once parameters are where it wants them."""
        states, tag = self.states, instruction.tag
        if self.forgets and not self.backward and self.segment.tags[tag].phase == "backward":
            self.forget()
        if self.unbound:
            self.bind(index, instruction)
        op, _, inputs, attributes, _ = instruction
        key: tuple[Any, ...] = (op, *attributes.values(), self.request_keys[tag], *[states[r] for r in inputs])
        if self.stages is not None:
            stage = self.stages[index]
            key = (-1 if stage is None else stage, *key)
        return key

    def take(self, instruction: Instruction, decision: NumberedChoice) -> None:
        """Carry out a choice."""
        for r, layout in zip(instruction.inputs, decision.operands, strict=True):
            if layout != NO_LAYOUT:
                self.move(r, layout, instruction.tag)
        self.give(instruction, decision)

    def give(self, instruction: Instruction, decision: NumberedChoice) -> None:
        """Set the states of the results of a choice."""
        tables, states = self.tables, self.states
        self.seconds += decision.seconds
        for number, result, state, asked in zip(
            instruction.outputs, decision.results, decision.states, decision.asked, strict=True
        ):
            r = number << 2 | OUTPUT
            states[r] = tables.shared(state, result) if r in self.segment.read_often else state
            if asked != result:
                self.settle(r, asked, instruction.tag)
        if instruction.op == "tag" and instruction.attributes["param"]:
            owner = tables.states[states[r]].owner
            if owner is not None and not owner.bound:
                self.unbound.add(r)

    def choice_key(self, index: int, instruction: Instruction) -> ChoiceKey:
        """The choice key for an instruction."""
        states, tables = self.states, self.tables
        results = tuple([self.segment.values[n] for n in instruction.outputs])
        operands = tuple(
            self.segment.kinds[r >> 2] if r & 3 == SCALAR else tables.states[states[r]] for r in instruction.inputs
        )
        return ChoiceKey(
            instruction.op, instruction.attributes, operands, results, self.requests[instruction.tag],
            self.stages[index] if self.stages else None, self.segment.tags[instruction.tag].phase == "backward",
        )  # fmt: skip

    # values that move

    def move(self, r: int, layout: int, tag: int) -> object:
        """Make a copy of a value in a layout."""
        return self.go(r, layout)

    def go(self, r: int, layout: int) -> tuple[int, ...]:
        """Move a value. Returns the layouts on its way, from first to last."""
        key = self.states[r], layout
        self.states[r], layouts, seconds, moved = self.tables.copies.get(key) or self.tables.copied(*key)
        self.seconds += seconds
        self.moved += moved
        return layouts

    def settle(self, r: int, layout: int, tag: int) -> None:
        """Move a value to where it stays."""
        tables, states = self.tables, self.states
        if tables.at[states[r]] != layout:
            if tables.layouts[layout] not in tables.states[states[r]].copies:
                self.move(r, layout, tag)
            states[r] = tables.settled(states[r], layout)

    def stays(self, r: int) -> None:
        """Keep only the copy of a value at its resident placement."""

    def forget(self) -> None:
        """From the backward sweep on, gather parameters again, rather than keep what was gathered for the forward sweep."""
        self.backward = True
        tables = self.tables
        for r, number in self.states.items():
            if number >= 0 and tables.states[number].origin == PARAMETER and len(tables.states[number].copies) > 1:
                state = tables.states[number]
                self.states[r] = tables.state(state._replace(copies=(state.at,)))
                self.stays(r)

    def bind(self, index: int, instruction: Instruction) -> None:
        """Give every unbound parameter among the operands the placement that its signal asks for."""
        requests = self.requests[instruction.tag]
        if not any(requests):
            return
        stage = self.stages[index] if self.stages else None
        for r in instruction.inputs:
            if r not in self.unbound:
                continue
            state = self.tables.states[self.states[r]]
            asked: list[Placement] = list(state.at)
            for axis, request in enumerate(requests):
                if request is not None and request.strategy == "pipeline_parallel" and stage is None:
                    return  # which stage is known only where it is used
                dimension = (
                    0 if request is None or request.dimension is not None else self.open_dimension(instruction, axis)
                )
                placement = parameter_placement(state.spec, request, dimension, stage)
                if placement is not None and self.tables.mesh.sizes[axis] > 1:
                    asked[axis] = placement
            self.unbound.discard(r)
            layout, resident = self.tables.layout(tuple(asked)), tuple(asked)
            self.settle(r, layout, instruction.tag)
            # the copy that it had elsewhere is gone: from now on it costs what it will always cost
            owner = FollowedParameter(state.spec, resident, True)
            self.states[r] = self.tables.state(ValueState(state.spec, resident, (resident,), state.origin, owner))
            self.stays(r)

    def open_dimension(self, instruction: Instruction, axis: int) -> int:
        """The dimension of a weight to shard if the rule leaves it open: 0 (columns), or 1 (rows) if the activation that meets
        the weight is already sharded along the contracted dimension."""
        reach = set(instruction.inputs) | {ref(OUTPUT, n) for n in instruction.outputs}
        for index in merge(*[self.products.get(r, ()) for r in reach]):
            for r in self.segment.instructions[index].inputs:
                number = self.states.get(r)
                if number is not None and r not in reach:
                    state = self.tables.states[number]
                    return 1 if state.at[axis] == Shard(state.spec.ndim - 1) else 0
        return 0

    # the end

    def settle_survivors(self, ends: Sequence[ResidentPlacement]) -> None:
        """Move the survivors to these resident placements."""
        time: Layout = (REPLICATE,) if self.tables.timed else ()
        for number, resident in zip(self.segment.survivors, ends, strict=True):
            self.settle(ref(OUTPUT, number), self.tables.layout((*resident.layout, *time)), 0)

    def forget_value(self, r: int) -> None:
        """Drop a value that nobody reads any more."""
        self.states.pop(r, None)
