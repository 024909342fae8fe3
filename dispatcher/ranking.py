"""The legal rows of an instruction along one mesh axis, each with its score: what the moves of its operands cost, and what
its results will cost later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from gt.ops import OPS
from gt.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Replicate, Shard
from gt.spec import Spec

from .cost import IMPOSSIBLE, Link, move_seconds
from .deterministic import Case, keeps_bits
from .policy import Wish
from .question import BATCHED, DATA, LOOKUPS, PARAMETER, Cuts, Owner, Question, State, activation, fits, would_be_cut
from .rules import Cut, Legal, Row

TIE: Final = 1e-9
"""Seconds, so few that they decide only between what costs the same."""
LAST: Final = 1e6
"""Seconds, so many that what scores them is chosen only where nothing else is legal."""


class Ranked(NamedTuple):
    """A row along one axis, and the score by which it is chosen."""

    score: float
    results: tuple[Placement, ...]
    operands: tuple[Placement | None, ...]


def ranked_rows(
    question: Question, axis: int, forced: Placement | None, owner: Owner | None, origin: int, cuts: Cuts, legal: Legal,
    mesh: Mesh, link: Link, blocks: int,
) -> Iterator[Ranked]:  # fmt: skip
    """Every legal row along one axis that can be reached, with its score."""
    parts, wish = mesh.sizes[axis], question.wishes[axis]
    if parts == 1:
        operands = tuple(None if isinstance(operand, str) else REPLICATE for operand in question.operands)
        yield Ranked(0.0, (REPLICATE,) * len(question.results), operands)
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
    rows = list(_rows(question, axis, legal, mesh, [*present, forced], blocks))
    if gathered:
        rows = [row for row in rows if not any(isinstance(row.operands[i], (Shard, Partial)) for i in gathered)]
    if staged:
        rows = [row for row in rows if row.results[0] == forced]
    if any(isinstance(x, State) and x.shared and isinstance(x.at[axis], Partial) for x in question.operands):
        rows = [row for row in rows if _added_up(question, axis, row)]
    if blocks:
        case, weights = case_of(question, blocks), mesh.weights[axis]
        rows = [row for row in rows if keeps_bits(case, row.results, row.operands, weights)]
    held = _held(question, axis, owner, origin)
    in_place = [row for row in rows if all(isinstance(row.operands[i], Shard) for i in held)] if held else rows
    in_place = in_place or rows
    cut = [REPLICATE not in before and any(map(_is_cut, before)) for before in now]
    wanted = [
        would_be_cut(question, wish, origin) and wish is not None and activation(wish, result) is not None
        for result in question.results
    ]
    for row in [*in_place, *(rows[:1] if blocks and in_place is not rows else ())]:
        seconds, score, kept = 0.0, 0.0 if row in in_place else LAST, False
        for before, after, nbytes, was_cut in zip(now, row.operands, sizes, cut, strict=True):
            if after is None:
                continue
            there = after in before
            if not there:
                seconds += min([move_seconds(old, after, nbytes, parts, link) for old in before])
                score += TIE / 2
            kept = kept or (isinstance(after, Shard) and (there or was_cut))
        if seconds == IMPOSSIBLE:
            continue
        score += seconds
        for placement, result, would in zip(row.results, question.results, wanted, strict=True):
            if forced is not None and fits(forced, result):
                # of two ways that move as much the one that computes in place does less
                score += move_seconds(placement, forced, result.nbytes, parts, link) + TIE * (placement != forced)
            else:
                asked = would and wish is not None and as_wanted(row, question, wish, result, cuts)
                score += _inconvenience(placement, would, asked, result, present, kept, parts, link)
        if score != IMPOSSIBLE:
            yield Ranked(score, row.results, row.operands)


def _is_cut(placement: Placement) -> bool:
    return isinstance(placement, Shard)


def _there(operand: State, axis: int) -> tuple[Placement, ...]:
    """How the copies of an operand lie along an axis; contributions that were added already are not added again."""
    found = dict.fromkeys(copy[axis] for copy in operand.copies)
    if REPLICATE in found:
        return tuple(placement for placement in found if not isinstance(placement, Partial))
    return tuple(found)


def _added_up(question: Question, axis: int, row: Placed) -> bool:
    """Whether a row has shared contributions added up once and for all: whole, or cut as the signal cuts activations."""
    for operand, after in zip(question.operands, row.operands, strict=True):
        if isinstance(operand, State) and operand.shared and isinstance(operand.at[axis], Partial):
            wish = question.wishes[axis]
            if isinstance(after, Partial) or (
                isinstance(after, Shard)
                and (wish is None or after != activation(wish, operand.spec))
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


class Placed(NamedTuple):
    results: tuple[Placement, ...]
    operands: tuple[Placement | None, ...]


def _rows(
    question: Question, axis: int, legal: Legal, mesh: Mesh, present: Sequence[Placement | None], blocks: int
) -> Iterator[Placed]:
    """The legal rows, cut by the mesh's weights and by those of whatever is there; and all at one of the positions there.

    The first replicates everything. What an earlier config cut off the grid of blocks is not computed where it is.
    """
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
        for row in legal(cut):
            yield _weighted(row, own)
    for position in positions:
        yield Placed(
            (position,) * len(question.results),
            tuple(None if isinstance(operand, str) else position for operand in question.operands),
        )


def _weighted(row: Row, weights: tuple[int, ...] | None) -> Placed:
    if weights is None:
        return Placed(row.outputs, row.inputs)

    def own(placement: Any) -> Any:
        return Shard(placement.dim, weights) if isinstance(placement, Shard) else placement

    return Placed(tuple(map(own, row.outputs)), tuple(map(own, row.inputs)))


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


def as_wanted(row: Placed, question: Question, wish: Wish, result: Spec, cuts: Cuts) -> bool:
    """Whether a row cuts activations as the signal does: along the batch, or the dimension that it names."""
    if wish.strategy not in BATCHED:
        return row.results[0] == activation(wish, result)
    if OPS[question.op].family == "random":
        return row.results[0] == (Shard(0) if result.ndim > 1 else REPLICATE)
    return bool(cuts) and all(_dim(row.operands[i]) == _dim(placement) for i, placement in cuts.items())


def _dim(placement: Placement | None) -> int | None:
    return placement.dim if isinstance(placement, Shard) else None


def _parts(mesh: Mesh, layout: Layout, but: int) -> int:
    """Into how many parts the other axes cut a value."""
    parts = 1
    for axis, placement in enumerate(layout):
        if axis != but and isinstance(placement, Shard):
            parts *= mesh.sizes[axis]
    return parts


def case_of(question: Question, blocks: int) -> Case:
    operands = tuple(operand if isinstance(operand, str) else operand.spec for operand in question.operands)
    return Case(question.op, question.attributes, operands, question.results[0], blocks)
