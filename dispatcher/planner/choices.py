"""The choices for one instruction: its legal combinations of layouts and what they cost, the best first.

Each mesh axis is considered separately. The cost of a legal option (`sharding_rules.py`) is that of the moves that its
operands need (`dispatcher/cost/cost_model.py`), plus what its results will cost later: the move to where the signal asks for them
(`policy.py`), or undoing a shard that nobody asked for. A choice is a pure function of a `ChoiceKey` and depends on
nothing else in the segment, so the planner makes each choice once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gt.dispatcher.cost.cost_model import Speeds, compute_seconds, instruction_work
from gt.sharding.placement import PINNED_AXIS, REPLICATE, At, Layout, Mesh, Partial, Placement, Shard

from .choice_key import (
    DATA,
    PARAMETER,
    ChoiceKey,
    FollowedParameter,
    Stages,
    ValueState,
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
from .deterministic_rules import keep_bits
from .option_ranking import RankedOption, ranked_options, schema_of
from .reshape_rules import reshape_aligned
from .sharding_rules import legal_options

KEPT_OPTIONS: Final[Mapping[str, int]] = {
    "data_parallel": DATA, "fully_sharded": DATA, "sequence_parallel": DATA,
    "tensor_parallel": PARAMETER, "expert_parallel": PARAMETER,
}  # fmt: skip
"""By strategy, what remains sharded: activations or parameters."""
MAX_BRANCHES: Final = 4
"""The most choices of one instruction that a search considers."""
MAX_COMBINATIONS: Final = 64


class Choice(NamedTuple):
    """Layouts for the operands (None for a scalar) and results, where the results are asked to be, and what they follow.

    `seconds` is the computing time of the slowest worker. `faithful` means that no activation is gathered that the signal
    shards, and no parameter that it shards for good.
    """

    operands: tuple[Layout | None, ...]
    results: tuple[Layout, ...]
    asked: tuple[Layout, ...]
    origin: int
    owner: FollowedParameter | None
    batch: int | None
    seconds: float
    faithful: bool


def choices(
    choice_key: ChoiceKey, mesh: Mesh, speeds: Speeds, stages: Stages, blocks: int = 0, most: int = 1
) -> tuple[Choice, ...]:
    """The best choices, at most `most`. `blocks` is the number of blocks of a deterministic session."""
    specs = tuple([operand if isinstance(operand, str) else operand.spec for operand in choice_key.operands])
    legal = legal_options(choice_key.op, choice_key.attributes, specs, choice_key.results)
    amount = instruction_work(choice_key.op, specs, choice_key.results)
    owner, origin, (batch, cuts) = owner_of(choice_key), origin_of(choice_key), batch_of(choice_key, mesh, legal)
    size = len(mesh.sizes)
    if owner is not None:
        forced: list[Placement | None] = list(owner.layout)
    else:
        forced = [forced_at(choice_key, axis, origin) for axis in range(size)]
        for axis, stage_of in stages.items():
            forced[axis] = forced[axis] or swept(choice_key, axis, stage_of)
    if (
        mesh.axes == (PINNED_AXIS,)
        and forced[0] is None
        and not any(isinstance(x, ValueState) for x in choice_key.operands)
    ):
        forced[0] = At(0)  # what follows from nothing is where nothing is pinned; the rest follows its operands
    apart = choice_key.op != "reshape" and not blocks
    ranked = [
        ranked_options(
            choice_key, axis, forced[axis], owner, origin, cuts, legal, mesh, speeds.links[axis], blocks,
            only_best=apart and most == 1,
        )
        for axis in range(size)
    ]  # fmt: skip
    found = []
    for combination in _apart(ranked, most) if apart else _together(ranked, choice_key, mesh, blocks, most):
        results = tuple(tuple(option.results[n] for option in combination) for n in range(len(choice_key.results)))
        asked = tuple(asked_for(layout, forced, spec) for layout, spec in zip(results, choice_key.results, strict=True))
        follows = owner
        if is_parameter(choice_key):  # what follows a parameter goes where it is, and nothing can go to a partial
            asked = (whole(asked[0]),)
            bound = any(request is not None for request in choice_key.requests) and not piped(choice_key.requests)
            follows = FollowedParameter(choice_key.results[0], asked[0], bound)
        operands = tuple(
            None if isinstance(operand, str) else tuple(option.operands[i] or REPLICATE for option in combination)
            for i, operand in enumerate(choice_key.operands)
        )
        cost = compute_seconds(amount, speeds.slowest, _share((*operands, *results), mesh))
        faithful = all(_faithful(choice_key, axis, option, owner) for axis, option in enumerate(combination))
        found.append(Choice(operands, results, asked, origin, follows, batch, cost, faithful))
    return tuple(found)


def _share(layouts: Sequence[Layout | None], mesh: Mesh) -> float:
    """The share of an instruction's work that the slowest worker does."""
    share = 1.0
    for axis, size in enumerate(mesh.sizes):
        if any(layout is not None and isinstance(layout[axis], Shard) for layout in layouts):
            share /= size
    return share


def _faithful(choice_key: ChoiceKey, axis: int, option: RankedOption, owner: FollowedParameter | None) -> bool:
    """Whether an option keeps sharded what the signal shards along an axis, even where another option would be cheaper."""
    request = choice_key.requests[axis]
    if request is None or owner is not None or request.strategy not in KEPT_OPTIONS:
        return True
    return not any(
        isinstance(operand, ValueState)
        and operand.origin == KEPT_OPTIONS[request.strategy]
        and after == REPLICATE
        and isinstance(operand.at[axis], Shard)
        for operand, after in zip(choice_key.operands, option.operands, strict=True)
    )


def _apart(ranked: list[list[RankedOption]], most: int) -> list[tuple[RankedOption, ...]]:
    """The best combinations if each axis can be chosen independently."""
    if most == 1:
        return [tuple([axis[0] for axis in ranked])]
    return sorted(itertools.product(*(axis[:3] for axis in ranked)), key=_score)[:most]


def _together(
    ranked: list[list[RankedOption]], choice_key: ChoiceKey, mesh: Mesh, blocks: int, most: int
) -> list[tuple[RankedOption, ...]]:
    """The best combinations where the axes must agree: of reshapes, and where dimensions are cut by blocks."""
    products = list(itertools.islice(itertools.product(*ranked), MAX_COMBINATIONS * MAX_COMBINATIONS))
    products.sort(key=_score)
    found = []
    for combination in products[:MAX_COMBINATIONS]:
        before = [
            tuple(option.operands[i] or REPLICATE for option in combination) for i in range(len(choice_key.operands))
        ]
        after = tuple(option.results[0] for option in combination)
        if blocks and not keep_bits(schema_of(choice_key, blocks), [after], before):
            continue
        if choice_key.op != "reshape" or _reshaped(choice_key, before[0], after, mesh):
            found.append(combination)
            if len(found) == most:
                break
    return found or [tuple(min(axis, key=lambda option: (_cuts(option), option.score)) for axis in ranked)]


def _reshaped(choice_key: ChoiceKey, before: Layout, after: Layout, mesh: Mesh) -> bool:
    operand, result = choice_key.operands[0], choice_key.results[0]
    assert isinstance(operand, ValueState), "a reshape has a tensor"
    return reshape_aligned(operand.spec.shape, before, result.shape, after, mesh)


def _score(combination: tuple[RankedOption, ...]) -> float:
    return sum(option.score for option in combination)


def _cuts(option: RankedOption) -> bool:
    return any(isinstance(placement, (Shard, Partial)) for placement in option.operands)
