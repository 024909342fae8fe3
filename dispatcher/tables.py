"""What a planner remembers: layouts and states by number, and by those what was chosen before.

So what has been seen once is planned by look-ups of small integers. Here are numbers and memory; what is chosen is in
`choice.py`, what a plan does with it in `walk.py` and `plan.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gt.interned import Interned
from gt.placement import REPLICATE, Layout, Mesh, Partial
from gt.spec import Spec

from .choice import BRANCHES, Choice, choices
from .cost import Speeds, move_bytes, move_seconds
from .question import DATA, PARAMETER, Owner, Question, Stages, State, batch_dimension, whole
from .ways import path

NOWHERE: Final = -1
"""The layout of a run-time scalar."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Home(metaclass=Interned):
    """Where a tensor lives between plans, whether it is a parameter, whether a rule has claimed it, and what it comes from."""

    layout: Layout
    param: bool = False
    claimed: bool = False
    origin: int = DATA


class Decision(NamedTuple):
    """A `Choice` with layouts and states by their numbers."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    asked: tuple[int, ...]
    states: tuple[int, ...]
    seconds: float
    """Of computing."""
    faithful: bool


class Plain(NamedTuple):
    """The best decision where it leaves its one result where it is computed."""

    spec: Spec
    layout: Layout
    state: int
    """Of the result if it is read once,"""
    shared: int
    """and if it is read more often, which for contributions is another."""
    moved: tuple[int, ...]
    """The layouts of the operands; empty when all are at home."""


class Way(NamedTuple):
    """How a value moves: its state then, the layouts from the first to the last, seconds, and bytes that a worker receives."""

    state: int
    layouts: tuple[int, ...]
    seconds: float
    moved: float


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
        self.at: list[int] = []
        """For each state the number of the layout in which it is at home."""
        self.state_numbers: dict[State, int] = {}
        self.keys: dict[Any, int] = {}
        self.decisions: dict[tuple[Any, ...], Decision] = {}
        """The best choices, by op, attributes, the wishes' number and the operands' states, which say the rest: dtypes
        and shapes."""
        self.branches: dict[tuple[Any, ...], tuple[Decision, ...]] = {}
        """By the same, what else there was to choose: only whoever searches asks for that."""
        self.plain: dict[tuple[Any, ...], Plain] = {}
        """Of these, those that need nothing else."""
        self.copies: dict[tuple[int, int], Way] = {}
        self.starts: dict[tuple[Spec, Home], int] = {}
        self.shares: dict[int, int] = {}
        self.stays: dict[tuple[int, int], int] = {}
        self.rests: dict[int, tuple[int, Home | None]] = {}
        self.homes: dict[tuple[int, bool | None], Home] = {}

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
            self.at.append(self.layout(state.at))
        return found

    def key(self, key: Any) -> int:
        """The number of whatever a choice may depend on besides states."""
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = len(self.keys)
        return found

    def start(self, spec: Spec, home: Home) -> int:
        """The state of an input at its home."""
        found = self.starts.get((spec, home))
        if found is None:
            layout = (*home.layout, REPLICATE) if self.timed else home.layout
            owner = Owner(spec, layout, home.claimed) if home.param else None
            origin = PARAMETER if home.param else home.origin
            state = State(spec, layout, (layout,), origin, owner, batch_dimension(spec, origin))
            found = self.starts[spec, home] = self.state(state)
        return found

    def rest(self, state: int) -> tuple[int, Home | None]:
        """The layout in which a value in a state stays between plans, whole and joined in time, and its home if it is there."""
        found = self.rests.get(state)
        if found is None:
            at = self.states[state].at
            layout = whole(at)
            number = self.layout((*layout[:-1], REPLICATE) if self.timed else layout)
            found = self.rests[state] = number, self.home(state) if self.layouts[number] == at else None
        return found

    def home(self, state: int, param: bool | None = None) -> Home:
        """The home of a value that is in a state when a plan ends; `param` as it was, or by what the value follows."""
        found = self.homes.get((state, param))
        if found is None:
            known = self.states[state]
            owner = known.owner
            if param is None:
                owner = owner if owner is not None and owner.spec is known.spec else None
            is_param = owner is not None if param is None else param
            claimed = is_param and owner is not None and owner.claimed
            layout = known.at[:-1] if self.timed else known.at
            found = self.homes[state, param] = Home(layout, is_param, claimed, DATA if is_param else known.origin)
        return found

    def copied(self, state: int, layout: int) -> Way:
        """How a value gets from the nearest copy to a layout; remembered in `copies`."""
        old, target = self.states[state], self.layouts[layout]
        source = min(old.copies, key=lambda copy: self.seconds(old.spec, copy, target))
        way = [source, *path(old.spec, source, target, self.timed)]
        way = way[max(at for at, step in enumerate(way) if step in old.copies) :]
        new = self.state(old._replace(copies=(*old.copies, *way[1:])))
        steps = list(itertools.pairwise(way))
        seconds = sum(self.seconds(old.spec, *step) for step in steps)
        moved = sum(self.bytes(old.spec, *step) for step in steps)
        found = self.copies[state, layout] = Way(new, tuple(map(self.layout, way)), seconds, moved)
        return found

    def seconds(self, spec: Spec, before: Layout, after: Layout) -> float:
        """What moving a value costs, axis by axis."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            total += move_seconds(old, new, spec.nbytes, self.mesh.sizes[axis], self.speeds.links[axis])
        return total

    def bytes(self, spec: Spec, before: Layout, after: Layout) -> float:
        """What each worker receives when a value moves, axis by axis."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            total += move_bytes(old, new, spec.nbytes, self.mesh.sizes[axis])
        return total

    def branch(self, key: tuple[Any, ...], question: Question) -> tuple[Decision, ...]:
        """The choices for a question, by number, the best first; they are remembered by `key`."""
        found = choices(question, self.mesh, self.speeds, self.stages, self.blocks, BRANCHES)
        self.branches[key] = made = tuple([self._numbered(choice, question) for choice in found])
        return made

    def decide(self, key: tuple[Any, ...], question: Question) -> Decision:
        """The best choice for a question, by number; it is remembered by `key`."""
        (choice,) = choices(question, self.mesh, self.speeds, self.stages, self.blocks)
        best = self.decisions[key] = self._numbered(choice, question)
        if len(best.results) == 1 and best.asked == best.results and question.op != "tag":
            (result,), (state,) = best.results, best.states
            homes = [NOWHERE if isinstance(each, str) else self.layout(each.at) for each in question.operands]
            moved = () if homes == list(best.operands) else best.operands
            shared = self.shared(state, result)
            self.plain[key] = Plain(question.results[0], self.layouts[result], state, shared, moved)
        return best

    def shared(self, state: int, layout: int) -> int:
        """The state of what several instructions read: contributions are then added up for the first of them."""
        if layout not in self.contributed:
            return state
        found = self.shares.get(state)
        if found is None:
            found = self.shares[state] = self.state(self.states[state]._replace(shared=True))
        return found

    def settled(self, state: int, layout: int) -> int:
        """The state of a value that stays from now on in a layout in which it has a copy."""
        found = self.stays.get((state, layout))
        if found is None:
            found = self.state(self.states[state]._replace(at=self.layouts[layout]))
            self.stays[state, layout] = found
        return found

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
            choice.seconds,
            choice.faithful,
        )
