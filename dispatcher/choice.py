"""How one instruction may be placed: its legal combinations of layouts with what they cost, the best first.

Each mesh axis is looked at apart. Every legal row (`rules.py`) costs the moves that its operands need (`cost.py`) and
what its results will cost later: the way to where the signal asks for them (`policy.py`), or an unasked-for shard undone.
A choice is a pure function of a `Question`, so the planner asks each once; it may not look at anything else of a segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gt.placement import REPLICATE, Layout, Mesh, Partial, Placement, Shard

from .cost import Speeds, compute_seconds, work
from .deterministic import keep_bits
from .question import (
    DATA,
    PARAMETER,
    Owner,
    Question,
    Stages,
    State,
    asked_for,
    batch_of,
    forced_at,
    is_parameter,
    origin_of,
    owner_of,
    piped,
    swept,
    whole,
)
from .ranking import Ranked, case_of, ranked_rows
from .rules import legal_rows, reshape_aligned

KEPT: Final[Mapping[str, int]] = {
    "data_parallel": DATA, "fully_sharded": DATA, "sequence_parallel": DATA,
    "tensor_parallel": PARAMETER, "expert_parallel": PARAMETER,
}  # fmt: skip
"""By strategy, what stays cut once it is: activations or parameters."""
BRANCHES: Final = 4
"""Choices of one instruction that a search looks at."""
MAX_COMBINATIONS: Final = 64


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


def choices(
    question: Question, mesh: Mesh, speeds: Speeds, stages: Stages, blocks: int = 0, most: int = 1
) -> tuple[Choice, ...]:
    """The best choices, `most` of them if there are so many; `blocks` are those of a deterministic session."""
    specs = tuple([operand if isinstance(operand, str) else operand.spec for operand in question.operands])
    legal = legal_rows(question.op, question.attributes, specs, question.results)
    amount = work(question.op, specs, question.results)
    owner, origin, (batch, cuts) = owner_of(question), origin_of(question), batch_of(question, mesh, legal)
    size = len(mesh.sizes)
    if owner is not None:
        forced: list[Placement | None] = list(owner.layout)
    else:
        forced = [forced_at(question, axis, origin) for axis in range(size)]
        for axis, stage_of in stages.items():
            forced[axis] = forced[axis] or swept(question, axis, stage_of)
    apart = question.op != "reshape" and not blocks
    ranked = [
        ranked_rows(
            question, axis, forced[axis], owner, origin, cuts, legal, mesh, speeds.links[axis], blocks,
            only_best=apart and most == 1,
        )
        for axis in range(size)
    ]  # fmt: skip
    found = []
    for combination in _apart(ranked, most) if apart else _together(ranked, question, mesh, blocks, most):
        results = tuple(tuple(row.results[n] for row in combination) for n in range(len(question.results)))
        asked = tuple(asked_for(layout, forced, spec) for layout, spec in zip(results, question.results, strict=True))
        follows = owner
        if is_parameter(question):  # what follows a parameter goes where it is, and nothing can go to a partial
            asked = (whole(asked[0]),)
            claimed = any(wish is not None for wish in question.wishes) and not piped(question.wishes)
            follows = Owner(question.results[0], asked[0], claimed)
        operands = tuple(
            None if isinstance(operand, str) else tuple(row.operands[i] or REPLICATE for row in combination)
            for i, operand in enumerate(question.operands)
        )
        cost = compute_seconds(amount, speeds.slowest, _share((*operands, *results), mesh))
        faithful = all(_faithful(question, axis, row, owner) for axis, row in enumerate(combination))
        found.append(Choice(operands, results, asked, origin, follows, batch, cost, faithful))
    return tuple(found)


def _share(layouts: Sequence[Layout | None], mesh: Mesh) -> float:
    """Which share of an instruction's work the slowest worker has."""
    share = 1.0
    for axis, size in enumerate(mesh.sizes):
        if any(layout is not None and isinstance(layout[axis], Shard) for layout in layouts):
            share /= size
    return share


def _faithful(question: Question, axis: int, row: Ranked, owner: Owner | None) -> bool:
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


def _apart(ranked: list[list[Ranked]], most: int) -> list[tuple[Ranked, ...]]:
    """The best rows of all axes, each chosen by itself."""
    if most == 1:
        return [tuple([axis[0] for axis in ranked])]
    return sorted(itertools.product(*(axis[:3] for axis in ranked)), key=_score)[:most]


def _together(
    ranked: list[list[Ranked]], question: Question, mesh: Mesh, blocks: int, most: int
) -> list[tuple[Ranked, ...]]:
    """The same where they must agree with each other: a reshape's, and those by which blocks are cut."""
    products = list(itertools.islice(itertools.product(*ranked), MAX_COMBINATIONS * MAX_COMBINATIONS))
    products.sort(key=_score)
    found = []
    for combination in products[:MAX_COMBINATIONS]:
        before = [tuple(row.operands[i] or REPLICATE for row in combination) for i in range(len(question.operands))]
        after = tuple(row.results[0] for row in combination)
        if blocks and not keep_bits(case_of(question, blocks), [after], before):
            continue
        if question.op != "reshape" or _reshaped(question, before[0], after, mesh):
            found.append(combination)
            if len(found) == most:
                break
    return found or [tuple(min(axis, key=lambda row: (_cuts(row), row.score)) for axis in ranked)]


def _reshaped(question: Question, before: Layout, after: Layout, mesh: Mesh) -> bool:
    operand, result = question.operands[0], question.results[0]
    assert isinstance(operand, State), "a reshape has a tensor"
    return reshape_aligned(operand.spec.shape, before, result.shape, after, mesh)


def _score(combination: tuple[Ranked, ...]) -> float:
    return sum(row.score for row in combination)


def _cuts(row: Ranked) -> bool:
    return any(isinstance(placement, (Shard, Partial)) for placement in row.operands)
