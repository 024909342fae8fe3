"""The cache of choices: numbers for layouts and states, and the choices made for them.

So whatever has been planned once is planned again by look-ups of small integers. Choices are made in `choices.py` and
used in `placement_walk.py` and `planner.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gt.dispatcher.cost.cost_model import Speeds, move_bytes, move_seconds
from gt.ir.spec import Spec
from gt.sharding.interned import Interned
from gt.sharding.placement import REPLICATE, Layout, Mesh, Partial

from .choice_key import DATA, PARAMETER, ChoiceKey, FollowedParameter, Stages, ValueState, batch_dimension, whole
from .choices import MAX_BRANCHES, Choice, choices
from .move_path import move_layouts

NO_LAYOUT: Final = -1
"""The number of the layout of a run-time scalar, which has none."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ResidentPlacement(metaclass=Interned):
    """The resident placement of a tensor: its layout between plans, whether it is a parameter and bound to a rule by its
    first use, and what it comes from."""

    layout: Layout
    param: bool = False
    bound: bool = False
    origin: int = DATA


class NumberedChoice(NamedTuple):
    """A `Choice` with numbers for layouts and states."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    asked: tuple[int, ...]
    states: tuple[int, ...]
    seconds: float
    """Of computing."""
    faithful: bool


class UnmovedChoice(NamedTuple):
    """The best choice in the common case that it leaves its one result where it is computed."""

    spec: Spec
    layout: Layout
    state: int
    """The state of a result that is read once."""
    shared: int
    """The state of a result that is read more often; it differs for contributions."""
    moved: tuple[int, ...]
    """The layouts of the operands; empty if none of them has to move."""


class MovePath(NamedTuple):
    """How a value moves: its state afterwards, the layouts from first to last, the seconds, and the bytes that a worker
    receives."""

    state: int
    layouts: tuple[int, ...]
    seconds: float
    moved: float


class ChoiceCache:
    """All choices made on one mesh: layouts and states by number, and choices by what they depend on."""

    def __init__(self, mesh: Mesh, speeds: Speeds, stages: Stages, timed: bool, blocks: int = 0) -> None:
        self.mesh = mesh
        self.blocks = blocks
        self.speeds = speeds
        self.stages = stages
        self.timed = timed
        self.clear()

    def clear(self) -> None:
        """Forget everything. Numbers given before become meaningless."""
        self.layouts: list[Layout] = []
        self.layout_numbers: dict[Layout, int] = {}
        self.contributed: set[int] = set()
        """The layouts in which something is partial."""
        self.states: list[ValueState] = []
        self.at: list[int] = []
        """For each state, the number of its layout."""
        self.state_numbers: dict[ValueState, int] = {}
        self.keys: dict[Any, int] = {}
        self.decisions: dict[tuple[Any, ...], NumberedChoice] = {}
        """The best choices, by op, attributes, the number of the requests, and the operands' states (which imply dtypes and
        shapes)."""
        self.branches: dict[tuple[Any, ...], tuple[NumberedChoice, ...]] = {}
        """By the same key, the other choices; only a search asks for them."""
        self.plain: dict[tuple[Any, ...], UnmovedChoice] = {}
        """By the same key, the choices that are `UnmovedChoice`."""
        self.copies: dict[tuple[int, int], MovePath] = {}
        self.starts: dict[tuple[Spec, ResidentPlacement], int] = {}
        self.shares: dict[int, int] = {}
        self.stays: dict[tuple[int, int], int] = {}
        self.rests: dict[int, tuple[int, ResidentPlacement | None]] = {}
        self.residents: dict[tuple[int, bool | None], ResidentPlacement] = {}

    def layout(self, layout: Layout) -> int:
        """The number of a layout."""
        found = self.layout_numbers.get(layout)
        if found is None:
            found = self.layout_numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            if any(isinstance(placement, Partial) for placement in layout):
                self.contributed.add(found)
        return found

    def state(self, state: ValueState) -> int:
        """The number of a state."""
        found = self.state_numbers.get(state)
        if found is None:
            found = self.state_numbers[state] = len(self.states)
            self.states.append(state)
            self.at.append(self.layout(state.at))
        return found

    def key(self, key: Any) -> int:
        """The number of everything that a choice may depend on besides states."""
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = len(self.keys)
        return found

    def start(self, spec: Spec, resident: ResidentPlacement) -> int:
        """The state of an input at its resident placement."""
        found = self.starts.get((spec, resident))
        if found is None:
            layout = (*resident.layout, REPLICATE) if self.timed else resident.layout
            owner = FollowedParameter(spec, layout, resident.bound) if resident.param else None
            origin = PARAMETER if resident.param else resident.origin
            state = ValueState(spec, layout, (layout,), origin, owner, batch_dimension(spec, origin))
            found = self.starts[spec, resident] = self.state(state)
        return found

    def rest(self, state: int) -> tuple[int, ResidentPlacement | None]:
        """The layout of a value between plans, added up and joined in time, and its resident placement if it is already
        there."""
        found = self.rests.get(state)
        if found is None:
            at = self.states[state].at
            layout = whole(at)
            number = self.layout((*layout[:-1], REPLICATE) if self.timed else layout)
            found = self.rests[state] = number, self.resident(state) if self.layouts[number] == at else None
        return found

    def resident(self, state: int, param: bool | None = None) -> ResidentPlacement:
        """The resident placement of a value that has a state when a plan ends. `param` is as before, or as of the
        parameter that the value follows."""
        found = self.residents.get((state, param))
        if found is None:
            known = self.states[state]
            owner = known.owner
            if param is None:
                owner = owner if owner is not None and owner.spec is known.spec else None
            is_param = owner is not None if param is None else param
            bound = is_param and owner is not None and owner.bound
            layout = known.at[:-1] if self.timed else known.at
            found = self.residents[state, param] = ResidentPlacement(
                layout, is_param, bound, DATA if is_param else known.origin
            )
        return found

    def copied(self, state: int, layout: int) -> MovePath:
        """How a value gets to a layout from its nearest copy; remembered in `copies`."""
        old, target = self.states[state], self.layouts[layout]
        source = min(old.copies, key=lambda copy: self.seconds(old.spec, copy, target))
        way = [source, *move_layouts(old.spec, source, target, self.timed)]
        way = way[max(at for at, step in enumerate(way) if step in old.copies) :]
        new = self.state(old._replace(copies=(*old.copies, *way[1:])))
        steps = list(itertools.pairwise(way))
        seconds = sum(self.seconds(old.spec, *step) for step in steps)
        moved = sum(self.bytes(old.spec, *step) for step in steps)
        found = self.copies[state, layout] = MovePath(new, tuple(map(self.layout, way)), seconds, moved)
        return found

    def seconds(self, spec: Spec, before: Layout, after: Layout) -> float:
        """The seconds of moving a value, axis by axis."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            total += move_seconds(old, new, spec.nbytes, self.mesh.sizes[axis], self.speeds.links[axis])
        return total

    def bytes(self, spec: Spec, before: Layout, after: Layout) -> float:
        """The bytes that each worker receives when a value moves, axis by axis."""
        total = 0.0
        for axis, (old, new) in enumerate(zip(before, after, strict=True)):
            total += move_bytes(old, new, spec.nbytes, self.mesh.sizes[axis])
        return total

    def branch(self, key: tuple[Any, ...], choice_key: ChoiceKey) -> tuple[NumberedChoice, ...]:
        """The choices for a choice key, by number, the best first; remembered by `key`."""
        found = choices(choice_key, self.mesh, self.speeds, self.stages, self.blocks, MAX_BRANCHES)
        self.branches[key] = made = tuple([self._numbered(choice, choice_key) for choice in found])
        return made

    def decide(self, key: tuple[Any, ...], choice_key: ChoiceKey) -> NumberedChoice:
        """The best choice for a choice key, by number; remembered by `key`."""
        (choice,) = choices(choice_key, self.mesh, self.speeds, self.stages, self.blocks)
        best = self.decisions[key] = self._numbered(choice, choice_key)
        if len(best.results) == 1 and best.asked == best.results and choice_key.op != "tag":
            (result,), (state,) = best.results, best.states
            residents = [NO_LAYOUT if isinstance(each, str) else self.layout(each.at) for each in choice_key.operands]
            moved = () if residents == list(best.operands) else best.operands
            shared = self.shared(state, result)
            self.plain[key] = UnmovedChoice(choice_key.results[0], self.layouts[result], state, shared, moved)
        return best

    def shared(self, state: int, layout: int) -> int:
        """The state of a value that several instructions read: its contributions are added up for the first of them."""
        if layout not in self.contributed:
            return state
        found = self.shares.get(state)
        if found is None:
            found = self.shares[state] = self.state(self.states[state]._replace(shared=True))
        return found

    def settled(self, state: int, layout: int) -> int:
        """The state of a value that stays from now on in a layout of which it has a copy."""
        found = self.stays.get((state, layout))
        if found is None:
            found = self.state(self.states[state]._replace(at=self.layouts[layout]))
            self.stays[state, layout] = found
        return found

    def _numbered(self, choice: Choice, choice_key: ChoiceKey) -> NumberedChoice:
        states = (
            self.state(ValueState(spec, layout, (layout,), choice.origin, choice.owner, choice.batch))
            for spec, layout in zip(choice_key.results, choice.results, strict=True)
        )
        return NumberedChoice(
            tuple(NO_LAYOUT if layout is None else self.layout(layout) for layout in choice.operands),
            tuple(map(self.layout, choice.results)),
            tuple(map(self.layout, choice.asked)),
            tuple(states),
            choice.seconds,
            choice.faithful,
        )
