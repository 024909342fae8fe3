"""The planner: from a segment and where its inputs are to a plan. A pure function; its results are cached by the core.

Instruction by instruction, and for each mesh axis apart, it takes the cheapest legal row (`rules.py`) by the cost of the
moves that the row needs (`cost.py`), honouring what the signal asks (`policy.py`). What that means:

* A *parameter* is an input that was marked at creation, or what followed from one. The first rule that meets it places
  it and becomes its claim: the new placement is its home from then on. Everything else is an *activation*.
* What is computed element-wise from one parameter, in its shape, goes where the parameter is.
* A value that outlives the plan is never partial: its contributions are reduced at the end of the plan.
* An unasked-for shard is avoided when it saves no traffic, so a program without rules stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gt.infer import Attributes
from gt.instruction import INPUT, MOVE, OUTPUT, SCALAR, Instruction, Plan, Segment, ref
from gt.ops import OPS
from gt.placement import REPLICATE, Layout, Mesh, Partial, Placement, Replicate, Shard
from gt.spec import Spec

from .cost import IMPOSSIBLE, LATENCY, move_cost
from .policy import Policy, Wish
from .rules import Cut, Row, reshape_aligned, rows

ELEMENTWISE: Final = frozenset({"unary", "cast", "binary", "where", "tag", "follow"})
RELAYOUT: Final = frozenset({"reshape", "permute", "expand", "slice", "cat"})
"""Ops that move dimensions about: their results follow their operands, whatever the signal would rather have."""
TWO_STEP: Final = 64 << 10
"""Bytes from which an all-reduce over more than two workers goes as reduce-scatter and all-gather."""
MAX_MEMO: Final = 1 << 12


class Home(NamedTuple):
    """Where a tensor lives between plans, whether it is a parameter, and whether a rule has claimed it."""

    layout: Layout
    param: bool = False
    claimed: bool = False


class Planned(NamedTuple):
    """A plan, and the homes of its survivors (in their order) and of all its inputs after it."""

    plan: Plan
    survivors: tuple[Home, ...]
    inputs: tuple[Home, ...]


@dataclass
class Planner:
    """Plans for one session: its mesh, its policy, and a memo of choices already made. No other state."""

    mesh: Mesh
    policy: Policy
    rows_seen: dict[Any, tuple[Row, ...]] = field(default_factory=dict)
    choices: dict[Any, tuple[Placement | None, ...]] = field(default_factory=dict)

    def plan(self, segment: Segment, homes: tuple[Home, ...]) -> Planned:
        """Place every value of `segment`, whose inputs are at `homes`."""
        return _Pass(self, segment, homes).run()

    def candidates(
        self, instruction: Instruction, operands: tuple[Spec | str, ...], results: tuple[Spec, ...], cut: Cut
    ) -> Any:
        """The legal rows, memoised."""
        key = (instruction.op, tuple(instruction.attributes.values()), operands, results, cut)
        found = self.rows_seen.get(key)
        if found is None:
            if len(self.rows_seen) > MAX_MEMO:
                self.rows_seen.clear()
            found = self.rows_seen[key] = rows(instruction.op, instruction.attributes, operands, results, cut)
        return found


@dataclass
class _Owner:
    """The parameter that a value follows: its spec, and where it is now."""

    spec: Spec
    layout: Layout
    claimed: bool


class _Pass:
    """One planning pass. `at[r]` is the plan's reference for the segment's reference r and `copies[r]` all its layouts."""

    def __init__(self, planner: Planner, segment: Segment, homes: tuple[Home, ...]) -> None:
        self.planner = planner
        self.mesh = planner.mesh
        self.segment = segment
        self.homes = list(homes)
        self.values: list[Spec] = []
        self.layouts: list[Layout] = []
        self.instructions: list[Instruction] = []
        self.copies: dict[int, dict[Layout, int]] = {}
        self.current: dict[int, Layout] = {}
        self.owners: dict[int, _Owner] = {}
        self.weights: set[int] = set()
        for index, home in enumerate(homes):
            r = ref(INPUT, index)
            self.current[r] = home.layout
            self.copies[r] = {home.layout: r}
            if home.param:
                self.owners[r] = _Owner(segment.inputs[index], home.layout, home.claimed)
                self.weights.add(r)

    def run(self) -> Planned:
        for instruction in self.segment.instructions:
            self.place(instruction)
        survivors, homes = [], []
        for number in self.segment.survivors:
            r = ref(OUTPUT, number)
            whole = _whole(self.current[r])
            final = self.moved(r, whole, self.segment_tag(r))
            survivors.append((number, final >> 2))
            owner = self.owners.get(r)
            follows = owner is not None and owner.spec is self.segment.values[number]
            homes.append(Home(whole, follows, follows and owner is not None and owner.claimed))
        rehomed = []
        for index, home in enumerate(self.homes):
            r = ref(INPUT, index)
            if self.current[r] != home.layout:
                rehomed.append((index, self.copies[r][self.current[r]] >> 2))
            owner = self.owners.get(r)
            self.homes[index] = Home(self.current[r], home.param, owner.claimed if owner else home.claimed)
        plan = Plan(
            self.mesh.number,
            self.segment.inputs,
            tuple(next(iter(self.copies[ref(INPUT, i)])) for i in range(len(self.homes))),
            self.segment.kinds,
            self.segment.tags,
            tuple(self.instructions),
            tuple(self.values),
            tuple(self.layouts),
            tuple(survivors),
            tuple(rehomed),
        )
        return Planned(plan, tuple(homes), tuple(self.homes))

    def segment_tag(self, reference: int) -> int:
        """The tag of the instruction that made a segment's output."""
        for instruction in self.segment.instructions:
            if reference >> 2 in instruction.outputs:
                return instruction.tag
        return 0

    # one instruction

    def place(self, instruction: Instruction) -> None:
        operands = tuple(self.segment.operand(r) for r in instruction.inputs)
        results = tuple(self.segment.values[n] for n in instruction.outputs)
        tag = self.segment.tags[instruction.tag]
        wishes = self.planner.policy.wishes(tag.signal, backward=tag.phase == "backward")
        self.claim(instruction, wishes)
        tensors = [r for r in instruction.inputs if r & 3 != SCALAR]
        owner = self.owner_of(instruction, tensors, results)
        weight = bool(tensors) and all(r in self.weights for r in tensors)
        forced: list[Placement | None] = [None] * len(self.mesh.sizes)
        for axis, wish in enumerate(wishes):
            forced[axis] = self.forced(instruction, results[0], axis, wish, weight)
        if owner is not None:
            forced = list(owner.layout)
        columns = [
            self.choose(instruction, operands, results, axis, forced[axis], wishes[axis], weight)
            for axis in range(len(self.mesh.sizes))
        ]
        # a run-time scalar is nowhere: its target is never asked for
        targets = [tuple(column[1][i] or REPLICATE for column in columns) for i in range(len(operands))]
        outputs = [tuple(column[0][n] for column in columns) for n in range(len(results))]
        if instruction.op == "reshape" and not self.aligned(operands, results, targets, outputs):
            targets = [self.mesh.replicated]
            outputs = [self.mesh.replicated]
        inputs = tuple(
            self.moved(r, layout, instruction.tag) if isinstance(operand, Spec) else r
            for r, operand, layout in zip(instruction.inputs, operands, targets, strict=True)
        )
        self.append(instruction.op, inputs, instruction.attributes, instruction.tag, results, outputs)
        first = len(self.values) - len(results)
        for offset, number in enumerate(instruction.outputs):
            r = ref(OUTPUT, number)
            made = ref(OUTPUT, first + offset)
            self.copies[r] = {outputs[offset]: made}
            self.current[r] = outputs[offset]
            if weight or (instruction.op == "tag" and instruction.attributes["param"]):
                self.weights.add(r)
            self.settle(r, results[offset], forced, instruction)
            if owner is not None:
                self.owners[r] = owner
            elif instruction.op == "tag" and instruction.attributes["param"]:
                claimed = any(wish is not None for wish in wishes)
                whole = _whole(
                    self.current[r]
                )  # what follows a parameter goes where it is, and nothing can go to a partial
                self.moved(r, whole, instruction.tag)
                self.current[r] = whole
                self.owners[r] = _Owner(results[offset], self.current[r], claimed)

    def settle(self, r: int, result: Spec, forced: list[Placement | None], instruction: Instruction) -> None:
        """Move a result to where it is asked to be, when no row left it there."""
        now = self.current[r]
        asked = tuple(
            placement if placement is not None and _fits(placement, result) else now[axis]
            for axis, placement in enumerate(forced)
        )
        if asked != now:
            self.moved(r, asked, instruction.tag)
            self.current[r] = asked

    def claim(self, instruction: Instruction, wishes: tuple[Wish | None, ...]) -> None:
        """Give every unclaimed parameter among the inputs the placement that its signal asks for."""
        if not any(wishes):
            return
        for r in instruction.inputs:
            if r & 3 != INPUT:
                continue
            owner = self.owners.get(r)
            if owner is None or owner.claimed:
                continue
            asked: list[Placement] = list(self.current[r])
            for axis, wish in enumerate(wishes):
                placement = self.parameter_placement(instruction, owner.spec, axis, wish)
                if placement is not None:
                    asked[axis] = placement
            owner.claimed = True
            self.moved(r, tuple(asked), instruction.tag)
            self.current[r] = owner.layout = tuple(asked)

    def parameter_placement(
        self, instruction: Instruction, spec: Spec, axis: int, wish: Wish | None
    ) -> Placement | None:
        """Where a rule wants a parameter on one mesh axis."""
        if wish is None or wish.strategy == "shard":
            return None
        if wish.strategy != "tensor_parallel":
            return REPLICATE
        dimension = wish.dimension
        if dimension is None:
            dimension = self.chosen_dimension(instruction, axis)
        if spec.ndim >= 2:
            return Shard(dimension) if dimension < spec.ndim else REPLICATE
        # what has one dimension follows the output: cut in the column form, whole in the row form
        return Shard(0) if spec.ndim == 1 and dimension == 0 else REPLICATE

    def chosen_dimension(self, instruction: Instruction, axis: int) -> int:
        """0 (columns), or 1 (rows) when the activation that meets the weight is already cut along what they contract."""
        reach = set(instruction.inputs) | {ref(OUTPUT, n) for n in instruction.outputs}
        for other in self.segment.instructions:
            if other.op == "matmul" and reach & set(other.inputs):
                for r in other.inputs:
                    layout = self.current.get(r)
                    spec = self.segment.operand(r)
                    if layout is not None and r not in reach and isinstance(spec, Spec):
                        return 1 if layout[axis] == Shard(spec.ndim - 1) else 0
        return 0

    def owner_of(self, instruction: Instruction, tensors: list[int], results: tuple[Spec, ...]) -> _Owner | None:
        """The parameter that a result is computed from element-wise, in its shape.

        A parameter and what followed from it in earlier plans (its momentum, say) are one where they lie alike.
        """
        family = OPS[instruction.op].family
        if family not in ELEMENTWISE:
            return None
        if instruction.op == "follow":
            like = instruction.inputs[1]
            spec = self.segment.operand(like)
            assert isinstance(spec, Spec)
            return self.owners.get(like) or _Owner(spec, _whole(self.current[like]), False)
        found = [owner for r in tensors if (owner := self.owners.get(r)) is not None]
        if not found or any(owner.layout != found[0].layout or owner.spec.shape != results[0].shape for owner in found):
            return None
        return next((owner for owner in found if owner.claimed), found[0])

    def forced(
        self, instruction: Instruction, result: Spec, axis: int, wish: Wish | None, weight: bool
    ) -> Placement | None:
        """Where the signal says a result must be on one axis; None: anywhere."""
        if wish is None:
            return None
        if wish.strategy == "shard":
            assert wish.dimension is not None
            return Shard(wish.dimension, wish.weights) if result.ndim > wish.dimension else None
        if wish.strategy == "replicate":
            return REPLICATE
        if instruction.op == "tag" and instruction.attributes["param"]:
            return self.parameter_placement(instruction, result, axis, wish)
        if wish.strategy == "data_parallel" and not weight and instruction.op == "tag" and result.ndim:
            return Shard(0)
        return None

    # choosing a row on one axis

    def choose(
        self,
        instruction: Instruction,
        operands: tuple[Spec | str, ...],
        results: tuple[Spec, ...],
        axis: int,
        forced: Placement | None,
        wish: Wish | None,
        weight: bool,
    ) -> tuple[tuple[Placement, ...], tuple[Placement | None, ...]]:
        """(placements of the results, placements of the operands) of the cheapest row."""
        now = tuple(self.nearest(r, axis) if r & 3 != SCALAR else None for r in instruction.inputs)
        if self.mesh.sizes[axis] == 1:
            return (REPLICATE,) * len(results), tuple(None if p is None else REPLICATE for p in now)
        others = tuple(_parts(self.mesh, self.current[r], axis) if r & 3 != SCALAR else 1 for r in instruction.inputs)
        key = (
            instruction.op, tuple(instruction.attributes.values()), operands, now, others, axis, forced,
            wish is not None and wish.strategy, weight,
        )  # fmt: skip
        memo: dict[Any, Any] = self.planner.choices
        found = memo.get(key)
        if found is None:
            if len(memo) > MAX_MEMO:
                memo.clear()
            found = memo[key] = self.cheapest(instruction, operands, results, axis, forced, wish, weight, now, others)
        chosen: tuple[tuple[Placement, ...], tuple[Placement | None, ...]] = found
        return chosen

    def nearest(self, reference: int, axis: int) -> Placement:
        """Where a value is on one axis; a copy that an earlier instruction had cut counts before the replicated whole."""
        layout = self.current[reference]
        if isinstance(layout[axis], Replicate):
            for copy in self.copies[reference]:
                if isinstance(copy[axis], Shard):
                    return copy[axis]
        return layout[axis]

    def cheapest(
        self,
        instruction: Instruction,
        operands: tuple[Spec | str, ...],
        results: tuple[Spec, ...],
        axis: int,
        forced: Placement | None,
        wish: Wish | None,
        weight: bool,
        now: tuple[Placement | None, ...],
        others: tuple[int, ...],
    ) -> tuple[tuple[Placement, ...], tuple[Placement | None, ...]]:
        parts = self.mesh.sizes[axis]
        variants: dict[tuple[int, ...] | None, None] = {None: None}
        for placement in (*now, forced):
            if isinstance(placement, Shard):
                variants[placement.weights] = None
        best: tuple[float, Any] | None = None
        for weights in variants:
            cut = Cut(self.mesh.weights[axis] if weights is None else weights)
            for row in self.planner.candidates(instruction, operands, results, cut):
                outputs = tuple(_weighted(p, weights) for p in row.outputs)
                inputs = tuple(None if p is None else _weighted(p, weights) for p in row.inputs)
                cost = 0.0
                for before, after, operand, share in zip(now, inputs, operands, others, strict=True):
                    if before is not None and after is not None and isinstance(operand, Spec):
                        cost += move_cost(before, after, operand.nbytes / share, parts)
                for placement, result in zip(outputs, results, strict=True):
                    cost += self.inconvenience(placement, result, forced, wish, weight, now, parts, instruction)
                if best is None or cost < best[0]:
                    best = (cost, (outputs, inputs))
        assert best is not None, f"{instruction.op} has no row"
        assert best[0] != IMPOSSIBLE, f"{instruction.op}: no row can be reached from {now}"
        found: tuple[tuple[Placement, ...], tuple[Placement | None, ...]] = best[1]
        return found

    def inconvenience(
        self,
        placement: Placement,
        result: Spec,
        forced: Placement | None,
        wish: Wish | None,
        weight: bool,
        now: tuple[Placement | None, ...],
        parts: int,
        instruction: Instruction,
    ) -> float:
        """What a result's placement will cost later: the way to where it must be, or an unasked-for shard undone."""
        if forced is not None and _fits(forced, result):
            # of two ways that move as much the one that computes in place does less
            return move_cost(placement, forced, result.nbytes, parts) + (placement != forced)
        cut = any(isinstance(p, (Shard, Partial)) for p in now)
        if isinstance(placement, Partial):
            return 0.0 if cut else LATENCY + 2.0 * result.nbytes
        wanted = _wanted(wish, weight, result, instruction)
        if wanted is not None:
            return 0.0 if placement == wanted else 1.0
        if isinstance(placement, Shard):
            return 0.0 if any(isinstance(p, Shard) for p in now) else LATENCY + result.nbytes
        return 1.0 if cut else 0.0

    # building the plan

    def append(
        self,
        op: str,
        inputs: tuple[int, ...],
        attributes: Attributes,
        tag: int,
        results: tuple[Spec, ...],
        layouts: list[Layout],
    ) -> None:
        outputs = range(len(self.values), len(self.values) + len(results))
        self.instructions.append(Instruction(op, outputs, inputs, attributes, tag))
        self.values.extend(results)
        self.layouts.extend(layouts)

    def moved(self, reference: int, layout: Layout, tag: int) -> int:
        """The plan's reference to a value in `layout`, moving it there unless it already was."""
        copies = self.copies[reference]
        found = copies.get(layout)
        if found is not None:
            return found
        spec = self.segment.operand(reference)
        assert isinstance(spec, Spec)
        before = self.current[reference]
        if before not in copies:
            before = next(iter(copies))
        at = copies[before]
        for step in path(spec, before, layout, self.mesh):
            if step in copies:
                at = copies[step]
                continue
            self.append(MOVE, (at,), {}, tag, (spec,), [step])
            at = ref(OUTPUT, len(self.values) - 1)
            copies[step] = at
        return at

    def aligned(self, operands: Any, results: Any, targets: list[Any], outputs: list[Layout]) -> bool:
        return reshape_aligned(operands[0].shape, targets[0], results[0].shape, outputs[0], self.mesh)


def path(spec: Spec, before: Layout, after: Layout, mesh: Mesh) -> list[Layout]:
    """The layouts that a value goes through: at most one between, when an all-reduce is cheaper in two steps."""
    reduced = [
        axis
        for axis, (a, b) in enumerate(zip(before, after, strict=True))
        if isinstance(a, Partial) and isinstance(b, Replicate)
    ]
    if len(reduced) == 1 and mesh.sizes[reduced[0]] > 2 and spec.nbytes >= TWO_STEP:
        axis = reduced[0]
        free = [
            dim
            for dim in range(spec.ndim)
            if spec.shape[dim] >= mesh.sizes[axis]
            and not any(isinstance(p, Shard) and p.dim == dim for p in (*before, *after))
        ]
        if free:
            dim = max(free, key=lambda d: spec.shape[d])
            return [(*after[:axis], Shard(dim), *after[axis + 1 :]), after]
    return [after]


def _whole(layout: Layout) -> Layout:
    """The layout with contributions reduced."""
    return tuple(REPLICATE if isinstance(placement, Partial) else placement for placement in layout)


def _fits(placement: Placement, result: Spec) -> bool:
    return not isinstance(placement, Shard) or placement.dim < result.ndim


def _weighted(placement: Placement, weights: tuple[int, ...] | None) -> Placement:
    return Shard(placement.dim, weights) if isinstance(placement, Shard) else placement


def _parts(mesh: Mesh, layout: Layout, but: int) -> int:
    """Into how many parts the other axes cut a value."""
    parts = 1
    for axis, placement in enumerate(layout):
        if axis != but and isinstance(placement, Shard):
            parts *= mesh.sizes[axis]
    return parts


def _wanted(wish: Wish | None, weight: bool, result: Spec, instruction: Instruction) -> Placement | None:
    """Where an activation would rather be: in a data-parallel signal cut along its batch."""
    family = OPS[instruction.op].family
    if wish is None or wish.strategy != "data_parallel" or weight or result.ndim == 0 or family in RELAYOUT:
        return None
    if family in ("creation", "random") and result.ndim < 2:
        return REPLICATE
    return Shard(0)
