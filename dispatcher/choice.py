"""How one instruction may be placed: its legal combinations of layouts with what they cost, the best first.

Each mesh axis is looked at apart. Every legal row (`rules.py`) costs the moves that its operands need (`cost.py`) and
what its results will cost later: the way to where the signal asks for them (`policy.py`), or an unasked-for shard undone.
A choice is a pure function of a `Question`, so the planner asks each once; it may not look at anything else of a segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gt.collectives import TWO_STEP
from gt.infer import Attributes
from gt.ops import OPS
from gt.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Replicate, Shard
from gt.spec import Spec

from .cost import IMPOSSIBLE, Link, Speeds, compute_seconds, move_seconds, work
from .deterministic import Case, keep_bits, keeps_bits
from .policy import Wish, Wishes
from .rules import Cut, Row, reshape_aligned, rows

DATA, PARAMETER, CONSTANT = 0, 1, 2
"""Where a value comes from: from data, from parameters alone, or from nothing that is computed."""
ELEMENTWISE: Final = frozenset({"unary", "cast", "binary", "where", "tag", "follow"})
RELAYOUT: Final = frozenset({"reshape", "permute", "expand", "slice", "cat"})
"""Families that move dimensions about: their results follow their operands, whatever the signal would rather have."""
PRODUCTS: Final = frozenset({"matmul", "conv"})
"""Families in which what a network computes with meets its weights."""
LOOKUPS: Final = frozenset({"gather", "take"})
"""Families that use a parameter also where nothing else in them is data: positions may be constants."""
BATCHED: Final = frozenset({"data_parallel", "fully_sharded"})
"""Strategies under which activations are cut along their first dimension."""
KEPT: Final[Mapping[str, int]] = {
    "data_parallel": DATA, "fully_sharded": DATA, "sequence_parallel": DATA,
    "tensor_parallel": PARAMETER, "expert_parallel": PARAMETER,
}  # fmt: skip
"""By strategy, what stays cut once it is: activations or parameters."""
TIE: Final = 1e-9
"""Seconds, so few that they decide only between what costs the same."""
BRANCHES: Final = 4
"""Choices of one instruction that are kept."""
MAX_COMBINATIONS: Final = 64
LAST: Final = 1e6
"""Seconds, so many that what scores them is chosen only where nothing else is legal."""


class Owner(NamedTuple):
    """The parameter that a value follows: its spec, where it is, and whether a rule has claimed it."""

    spec: Spec
    layout: Layout
    claimed: bool


class State(NamedTuple):
    """What a choice may know of a value: where it is, in which layouts there are copies, what it comes from and follows.

    `batch` is the dimension along which it has one entry for each example, as far as that is known. `shared` are
    contributions that several instructions read: each of them alone would rather put off adding them up.
    """

    spec: Spec
    at: Layout
    copies: tuple[Layout, ...]
    origin: int
    owner: Owner | None
    batch: int | None = None
    shared: bool = False


class Question(NamedTuple):
    """An instruction, its operands' states (the kind of a run-time scalar), and what its signal asks for on each axis.

    `stage` is the position of a pipeline's axis at which the instruction belongs, if it is said; `backward` whether it
    belongs to the backward sweep.
    """

    op: str
    attributes: Attributes
    operands: tuple[State | str, ...]
    results: tuple[Spec, ...]
    wishes: Wishes
    stage: int | None
    backward: bool


class Choice(NamedTuple):
    """Layouts for operands (None for a scalar) and results, where the results are asked to be, and what they follow.

    `seconds` is what computing costs the slowest worker. `faithful`: no activation is joined again that the signal cuts, no
    parameter gathered that it cuts for good.
    """

    operands: tuple[Layout | None, ...]
    results: tuple[Layout, ...]
    asked: tuple[Layout, ...]
    origin: int
    owner: Owner | None
    batch: int | None
    seconds: float
    faithful: bool


class _Ranked(NamedTuple):
    """A row along one axis, and the score by which it is chosen."""

    score: float
    results: tuple[Placement, ...]
    operands: tuple[Placement | None, ...]


Stages = Mapping[int, Mapping[int, int]]
"""For a mesh axis that has a pipeline's stages: which stage is at each position."""


def choices(question: Question, mesh: Mesh, speeds: Speeds, stages: Stages, blocks: int = 0) -> tuple[Choice, ...]:
    """The best choices, at most `BRANCHES`, at least one; `blocks` are those of a deterministic session."""
    owner, origin, (batch, cuts) = owner_of(question), _origin(question), _batch(question, mesh)
    size = len(mesh.sizes)
    if owner is not None:
        forced: list[Placement | None] = list(owner.layout)
    else:
        forced = [_forced(question, axis, origin) for axis in range(size)]
        for axis, stage_of in stages.items():
            forced[axis] = forced[axis] or _swept(question, axis, stage_of)
    ranked = [
        sorted(
            _ranked(question, axis, forced[axis], owner, origin, cuts, mesh, speeds.links[axis], blocks),
            key=lambda row: row.score,
        )
        for axis in range(size)
    ]
    found = []
    for combination in _combinations(ranked, question, mesh, blocks):
        results = tuple(tuple(row.results[n] for row in combination) for n in range(len(question.results)))
        asked = tuple(_asked(layout, forced, spec) for layout, spec in zip(results, question.results, strict=True))
        follows = owner
        if is_parameter(question):  # what follows a parameter goes where it is, and nothing can go to a partial
            asked = (whole(asked[0]),)
            claimed = any(wish is not None for wish in question.wishes) and not _piped(question.wishes)
            follows = Owner(question.results[0], asked[0], claimed)
        operands = tuple(
            None if isinstance(operand, str) else tuple(row.operands[i] or REPLICATE for row in combination)
            for i, operand in enumerate(question.operands)
        )
        cost = _work(question, operands, results, mesh, speeds)
        faithful = all(_faithful(question, axis, row, owner) for axis, row in enumerate(combination))
        found.append(Choice(operands, results, asked, origin, follows, batch, cost, faithful))
    return tuple(found)


def _work(
    question: Question, operands: Sequence[Layout | None], results: Sequence[Layout], mesh: Mesh, speeds: Speeds
) -> float:
    """Seconds in which the slowest worker computes its part."""
    share = 1.0
    for axis, size in enumerate(mesh.sizes):
        if any(layout is not None and isinstance(layout[axis], Shard) for layout in (*operands, *results)):
            share /= size
    specs = [operand if isinstance(operand, str) else operand.spec for operand in question.operands]
    return compute_seconds(work(question.op, specs, question.results), speeds.slowest, share)


def _faithful(question: Question, axis: int, row: _Ranked, owner: Owner | None) -> bool:
    """Whether a row keeps cut what the signal cuts along an axis: a plan may be cheaper without, but nobody asked for that."""
    wish = question.wishes[axis]
    if wish is None or owner is not None or wish.strategy not in KEPT:
        return True
    return not any(
        isinstance(operand, State)
        and operand.origin == KEPT[wish.strategy]
        and after == REPLICATE
        and isinstance(operand.at[axis], Shard)
        for operand, after in zip(question.operands, row.operands, strict=True)
    )


def _combinations(
    ranked: list[list[_Ranked]], question: Question, mesh: Mesh, blocks: int
) -> list[tuple[_Ranked, ...]]:
    """The best rows of all axes together; a reshape's must agree with each other, and those by which blocks are cut."""
    if question.op != "reshape" and not blocks:
        products = list(itertools.product(*(axis[:3] for axis in ranked)))
        return sorted(products, key=_score)[:BRANCHES]
    products = list(itertools.islice(itertools.product(*ranked), MAX_COMBINATIONS * MAX_COMBINATIONS))
    products.sort(key=_score)
    found = []
    for combination in products[:MAX_COMBINATIONS]:
        before = [tuple(row.operands[i] or REPLICATE for row in combination) for i in range(len(question.operands))]
        after = tuple(row.results[0] for row in combination)
        if blocks and not keep_bits(_case(question, blocks), [after], before):
            continue
        if question.op != "reshape" or _reshaped(question, before[0], after, mesh):
            found.append(combination)
            if len(found) == BRANCHES:
                break
    return found or [tuple(min(axis, key=lambda row: (_cuts(row), row.score)) for axis in ranked)]


def _reshaped(question: Question, before: Layout, after: Layout, mesh: Mesh) -> bool:
    operand, result = question.operands[0], question.results[0]
    assert isinstance(operand, State), "a reshape has a tensor"
    return reshape_aligned(operand.spec.shape, before, result.shape, after, mesh)


def _case(question: Question, blocks: int) -> Case:
    operands = tuple(operand if isinstance(operand, str) else operand.spec for operand in question.operands)
    return Case(question.op, question.attributes, operands, question.results[0], blocks)


def _score(combination: tuple[_Ranked, ...]) -> float:
    return sum(row.score for row in combination)


def _cuts(row: _Ranked) -> bool:
    return any(isinstance(placement, (Shard, Partial)) for placement in row.operands)


# what is asked for


def owner_of(question: Question) -> Owner | None:
    """The parameter that a result is computed from element-wise, in its shape.

    A parameter and what followed from it in earlier plans (its momentum, say) are one where they lie alike.
    """
    if OPS[question.op].family not in ELEMENTWISE:
        return None
    if question.op == "follow":
        like = question.operands[1]
        assert isinstance(like, State), "what is followed is a tensor"
        return like.owner or Owner(like.spec, whole(like.at), False)
    found = [operand.owner for operand in question.operands if isinstance(operand, State) and operand.owner is not None]
    shape = question.results[0].shape
    if not found or any(owner.layout != found[0].layout or owner.spec.shape != shape for owner in found):
        return None
    return next((owner for owner in found if owner.claimed), found[0])


def is_parameter(question: Question) -> bool:
    """Whether an instruction makes a parameter."""
    return question.op == "tag" and bool(question.attributes["param"])


def _origin(question: Question) -> int:
    if is_parameter(question):
        return PARAMETER
    if _fed(question):
        return DATA
    origins = {operand.origin for operand in question.operands if isinstance(operand, State)}
    if not origins:
        return DATA if OPS[question.op].family == "random" else CONSTANT
    return DATA if DATA in origins else PARAMETER if PARAMETER in origins else CONSTANT


def _fed(question: Question) -> bool:
    """Whether a constant meets a parameter in a product: it is then what somebody feeds a network with, row by row."""
    if OPS[question.op].family not in PRODUCTS:
        return False
    first, second = question.operands
    assert isinstance(first, State), "a product has tensors"
    assert isinstance(second, State), "a product has tensors"
    return first.origin == CONSTANT and second.origin == PARAMETER


def batch_dimension(spec: Spec, origin: int) -> int | None:
    """The batch of a value from outside: its first dimension."""
    return 0 if origin == DATA and spec.ndim else None


PICKED: Final = frozenset({"slice", "cat"})
"""Ops that pick from dimensions or put them together, and leave every dimension where it is."""
Cuts = Mapping[int, Placement]
"""By operand where its batch is cut."""


def _batch(question: Question, mesh: Mesh) -> tuple[int | None, Cuts]:
    """The batch of a result, and the cut of operands that leaves it cut: of all that have a batch, or at least of one.

    What is picked from a batch, or put together of several, is a batch again, though no cut of the operands leaves it cut.
    """
    if OPS[question.op].family == "random":
        return batch_dimension(question.results[0], DATA), {}
    known = enumerate(question.operands)
    every = {i: Shard(x.batch) for i, x in known if isinstance(x, State) and x.batch is not None}
    if _fed(question):
        every = {0: Shard(0)}
    if not every:
        return None, {}
    operands = tuple(operand if isinstance(operand, str) else operand.spec for operand in question.operands)
    legal = rows(question.op, question.attributes, operands, question.results, Cut(mesh.weights[-1]))
    reduced: Cuts | None = None
    for cuts in (every, *({i: placement} for i, placement in every.items())):
        kept = [row.outputs[0] for row in legal if all(row.inputs[i] == placement for i, placement in cuts.items())]
        cut = next((result for result in kept if isinstance(result, Shard)), None)
        if cut is not None:
            return cut.dim, cuts
        if kept:
            reduced = reduced or cuts
            if cuts == every:
                break
    if reduced is not None:
        return None, reduced
    first, placement = next(iter(every.items()))
    return (placement.dim if first == 0 and question.op in PICKED else None), {}


def _piped(wishes: Wishes) -> bool:
    return any(wish is not None and wish.strategy == "pipeline_parallel" for wish in wishes)


def parameter_placement(spec: Spec, wish: Wish | None, dimension: int, stage: int | None) -> Placement | None:
    """Where a rule wants a parameter on one mesh axis; `dimension` is the weight's that is cut where the rule leaves it open."""
    if wish is None or wish.strategy in ("shard", "auto"):
        return None
    if wish.strategy == "pipeline_parallel":
        return None if stage is None else At(stage)
    if wish.strategy in ("fully_sharded", "expert_parallel"):
        return Shard(0) if spec.ndim else REPLICATE
    if wish.strategy != "tensor_parallel":
        return REPLICATE
    if wish.dimension is not None:
        dimension = wish.dimension
    if spec.ndim >= 2:
        return Shard(dimension) if dimension < spec.ndim else REPLICATE
    # what has one dimension follows the output: cut in the column form, whole in the row form
    return Shard(0) if spec.ndim == 1 and dimension == 0 else REPLICATE


def _forced(question: Question, axis: int, origin: int) -> Placement | None:
    """Where the signal says a result must be on one axis; None: anywhere."""
    wish, result = question.wishes[axis], question.results[0]
    if wish is None:
        return None
    if wish.strategy == "shard":
        assert wish.dimension is not None, "the explicit form says which dimension"
        return Shard(wish.dimension, wish.weights) if result.ndim > wish.dimension else None
    if wish.strategy == "replicate":
        return REPLICATE
    if is_parameter(question):
        return parameter_placement(result, wish, 0, None)
    if wish.strategy == "pipeline_parallel":
        return None if question.stage is None else At(question.stage)
    if question.op == "tag" and origin != PARAMETER:
        return _activation(wish, result)
    return None


def _swept(question: Question, axis: int, stage_of: Mapping[int, int]) -> Placement | None:
    """At which stage to compute from values that are on some: the forward sweep goes up the stages, the backward down.

    A value that was sent up may be read at any stage on its way.
    """
    reached = []
    for operand in question.operands:
        if isinstance(operand, State):
            at = [copy[axis] for copy in operand.copies]
            held = [(stage_of.get(p.position, 0), p.position) for p in at if isinstance(p, At)]
            reached += [max(held)] if held else []
    if not reached:
        return None
    return At((min if question.backward else max)(reached)[1])


def _activation(wish: Wish, result: Spec) -> Placement | None:
    """How a strategy cuts activations."""
    if wish.strategy in BATCHED:
        return Shard(0) if result.ndim else None
    if wish.strategy == "sequence_parallel" and wish.dimension is not None and result.ndim > wish.dimension:
        return Shard(wish.dimension)
    return None


def _wanted(question: Question, wish: Wish | None, origin: int) -> bool:
    """Whether a result would rather be cut as its signal cuts activations, where that costs nothing."""
    return wish is not None and origin == DATA and OPS[question.op].family not in RELAYOUT


def _as_wanted(row: _Placed, question: Question, wish: Wish, result: Spec, cuts: Cuts) -> bool:
    """Whether a row cuts activations as the signal does: along the batch, or the dimension that it names."""
    if wish.strategy not in BATCHED:
        return row.results[0] == _activation(wish, result)
    if OPS[question.op].family == "random":
        return row.results[0] == (Shard(0) if result.ndim > 1 else REPLICATE)
    return bool(cuts) and all(_dim(row.operands[i]) == _dim(placement) for i, placement in cuts.items())


def _dim(placement: Placement | None) -> int | None:
    return placement.dim if isinstance(placement, Shard) else None


def _asked(layout: Layout, forced: Sequence[Placement | None], spec: Spec) -> Layout:
    return tuple(
        placement if placement is not None and _fits(placement, spec) else layout[axis]
        for axis, placement in enumerate(forced)
    )


# rows along one axis


def _ranked(
    question: Question, axis: int, forced: Placement | None, owner: Owner | None, origin: int, cuts: Cuts, mesh: Mesh,
    link: Link, blocks: int,
) -> Iterator[_Ranked]:  # fmt: skip
    """Every legal row along one axis that can be reached, with its score."""
    parts, wish = mesh.sizes[axis], question.wishes[axis]
    if parts == 1:
        operands = tuple(None if isinstance(operand, str) else REPLICATE for operand in question.operands)
        yield _Ranked(0.0, (REPLICATE,) * len(question.results), operands)
        return
    now = [() if isinstance(operand, str) else _there(operand, axis) for operand in question.operands]
    sizes = [
        0.0 if isinstance(operand, str) else operand.spec.nbytes / _parts(mesh, operand.at, axis)
        for operand in question.operands
    ]
    gathered = _gathered(question, wish, owner, origin)
    # what a stage computes it computes itself: what it reads comes over once, not also what was made of it before
    staged = isinstance(forced, At) and question.stage is not None and owner is None
    present = [placement for placements in now for placement in placements]
    rows = [
        row
        for row in _rows(question, axis, mesh, [*present, forced], blocks)
        if not any(isinstance(row.operands[i], (Shard, Partial)) for i in gathered)
        and not (staged and row.results[0] != forced)
        and _added_up(question, axis, row)
        and not (blocks and not keeps_bits(_case(question, blocks), row.results, row.operands, mesh.weights[axis]))
    ]
    held = _held(question, axis, owner, origin)
    in_place = [row for row in rows if all(isinstance(row.operands[i], Shard) for i in held)] or rows
    for row in [*in_place, *(rows[:1] if blocks and in_place is not rows else ())]:
        seconds, score = 0.0, 0.0 if row in in_place else LAST
        for before, after, nbytes in zip(now, row.operands, sizes, strict=True):
            if after is not None:
                seconds += min(move_seconds(old, after, nbytes, parts, link) for old in before)
                score += TIE / 2 * (after not in before)
        if seconds == IMPOSSIBLE:
            continue
        score += seconds
        kept = any(
            isinstance(after, Shard) and (after in before or (REPLICATE not in before and any(map(_is_cut, before))))
            for before, after in zip(now, row.operands, strict=True)
        )
        for placement, result in zip(row.results, question.results, strict=True):
            if forced is not None and _fits(forced, result):
                # of two ways that move as much the one that computes in place does less
                score += move_seconds(placement, forced, result.nbytes, parts, link) + TIE * (placement != forced)
            else:
                wanted = _wanted(question, wish, origin) and wish is not None and _activation(wish, result) is not None
                asked = wanted and wish is not None and _as_wanted(row, question, wish, result, cuts)
                score += _inconvenience(placement, wanted, asked, result, present, kept, parts, link)
        if score != IMPOSSIBLE:
            yield _Ranked(score, row.results, row.operands)


def _is_cut(placement: Placement) -> bool:
    return isinstance(placement, Shard)


def _there(operand: State, axis: int) -> tuple[Placement, ...]:
    """How the copies of an operand lie along an axis; contributions that were added already are not added again."""
    found = dict.fromkeys(copy[axis] for copy in operand.copies)
    if REPLICATE in found:
        return tuple(placement for placement in found if not isinstance(placement, Partial))
    return tuple(found)


def _added_up(question: Question, axis: int, row: _Placed) -> bool:
    """Whether a row has shared contributions added up once and for all: whole, or cut as the signal cuts activations."""
    for operand, after in zip(question.operands, row.operands, strict=True):
        if isinstance(operand, State) and operand.shared and isinstance(operand.at[axis], Partial):
            wish = question.wishes[axis]
            if isinstance(after, Partial) or (
                isinstance(after, Shard)
                and (wish is None or after != _activation(wish, operand.spec))
                and not any(isinstance(copy[axis], (Shard, Replicate)) for copy in operand.copies)
            ):
                return False
    return True


def _gathered(question: Question, wish: Wish | None, owner: Owner | None, origin: int) -> list[int]:
    """The operands that must be whole where they meet data: fully sharded parameters are gathered at use."""
    if wish is None or wish.strategy != "fully_sharded" or owner is not None:
        return []
    if origin != DATA and OPS[question.op].family not in LOOKUPS:
        return []
    operands = enumerate(question.operands)
    return [i for i, operand in operands if isinstance(operand, State) and operand.origin == PARAMETER]


def _held(question: Question, axis: int, owner: Owner | None, origin: int) -> list[int]:
    """The operands that stay where they are cut: tensor-parallel weights do not move, what they meet comes to them."""
    wish = question.wishes[axis]
    if wish is None or wish.strategy != "tensor_parallel" or owner is not None or origin != DATA:
        return []
    operands = enumerate(question.operands)
    return [i for i, x in operands if isinstance(x, State) and x.origin == PARAMETER and _is_cut(x.at[axis])]


class _Placed(NamedTuple):
    results: tuple[Placement, ...]
    operands: tuple[Placement | None, ...]


def _rows(
    question: Question, axis: int, mesh: Mesh, present: Sequence[Placement | None], blocks: int
) -> Iterator[_Placed]:
    """The legal rows, cut by the mesh's weights and by those of whatever is there; and all at one of the positions there.

    The first replicates everything. What an earlier config cut off the grid of blocks is not computed where it is.
    """
    operands = tuple(operand if isinstance(operand, str) else operand.spec for operand in question.operands)
    weights: dict[tuple[int, ...] | None, None] = {None: None}
    positions: dict[At, None] = {}
    for placement in present:
        if isinstance(placement, Shard):
            if not blocks or placement.weights is None or sum(placement.weights) == blocks:
                weights[placement.weights] = None
        elif isinstance(placement, At):
            positions[placement] = None
    for own in weights:
        cut = Cut(mesh.weights[axis] if own is None else own)
        for row in rows(question.op, question.attributes, operands, question.results, cut):
            yield _weighted(row, own)
    for position in positions:
        yield _Placed(
            (position,) * len(question.results),
            tuple(None if isinstance(operand, str) else position for operand in operands),
        )


def _weighted(row: Row, weights: tuple[int, ...] | None) -> _Placed:
    if weights is None:
        return _Placed(row.outputs, row.inputs)

    def own(placement: Any) -> Any:
        return Shard(placement.dim, weights) if isinstance(placement, Shard) else placement

    return _Placed(tuple(map(own, row.outputs)), tuple(map(own, row.inputs)))


def _inconvenience(
    placement: Placement,
    wanted: bool,
    asked: bool,
    result: Spec,
    present: Sequence[Placement],
    kept: bool,
    parts: int,
    link: Link,
) -> float:
    """What a result's placement will cost later, where nothing forces it: an unasked-for shard undone, say.

    `kept`: a shard comes from one that was there.
    """
    cut = any(isinstance(p, (Shard, Partial)) for p in present)
    if isinstance(placement, Partial):
        return 0.0 if cut else move_seconds(placement, REPLICATE, result.nbytes, parts, link)
    if wanted:
        return 0.0 if asked else TIE
    if isinstance(placement, Shard):
        # with what it took to cut it that is an all-reduce in two steps, to which it is not to be preferred
        return 0.0 if kept else move_seconds(placement, REPLICATE, result.nbytes, parts, link) + TIE
    return TIE if cut else 0.0


# layouts


def whole(layout: Layout) -> Layout:
    """The layout with contributions reduced."""
    return tuple(REPLICATE if isinstance(placement, Partial) else placement for placement in layout)


def _fits(placement: Placement, result: Spec) -> bool:
    return not isinstance(placement, Shard) or placement.dim < result.ndim


def _parts(mesh: Mesh, layout: Layout, but: int) -> int:
    """Into how many parts the other axes cut a value."""
    parts = 1
    for axis, placement in enumerate(layout):
        if axis != but and isinstance(placement, Shard):
            parts *= mesh.sizes[axis]
    return parts


def path(spec: Spec, before: Layout, after: Layout, timed: bool) -> Iterator[Layout]:
    """The layouts that a value goes through: first or last in time where microbatches are joined or cut."""
    if not timed:
        yield from _path(spec, before, after)
        return
    (*old, then), (*new, now) = before, after
    if then == now:
        if isinstance(then, Shard) and any(_recuts(a, b, then.dim) for a, b in zip(old, new, strict=True)):
            yield (*old, REPLICATE)
            yield from _path(spec, (*old, REPLICATE), (*new, REPLICATE))
            yield after
        else:
            yield from _path(spec, before, after)
    elif isinstance(then, Replicate):
        yield from _path(spec, before, (*new, then))
        yield after
    else:  # joined first, also where it is cut again: a microbatch cannot wait for all others
        yield (*old, REPLICATE)
        yield from _path(spec, (*old, REPLICATE), (*new, REPLICATE))
        if not isinstance(now, Replicate):
            yield after


def _recuts(before: Placement, after: Placement, dim: int) -> bool:
    return before != after and any(isinstance(p, Shard) and p.dim == dim for p in (before, after))


def _path(spec: Spec, before: Layout, after: Layout) -> Iterator[Layout]:
    """Of a large value what needs nobody first, then all-reduces by themselves, for which there are better ways than for
    everything at once (`gt/collectives.py`), then the rest."""
    if before == after:
        return
    pairs = list(zip(before, after, strict=True))
    if spec.nbytes >= TWO_STEP and any(isinstance(a, Partial) and isinstance(b, Replicate) for a, b in pairs):
        cut = tuple(b if isinstance(a, Replicate) else a for a, b in pairs)
        reduced = tuple(
            b if isinstance(a, Partial) and isinstance(b, Replicate) else c
            for (a, b), c in zip(pairs, cut, strict=True)
        )
        yield from (step for step in (cut, reduced) if step not in (before, after))
    yield after
