"""The legal options of an instruction along one mesh axis, each with its score in seconds: the cost of moving its
operands, plus what its results will cost later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gt.dispatcher.cost.cost_model import IMPOSSIBLE_SECONDS, LinkProfile, move_seconds
from gt.ir.ops import OPS
from gt.ir.spec import Spec
from gt.sharding.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Replicate, Shard

from .choice_key import (
    BATCH_STRATEGIES,
    DATA,
    LOOKUP_FAMILIES,
    PARAMETER,
    ChoiceKey,
    Cuts,
    FollowedParameter,
    ValueState,
    activation,
    fits,
    would_be_cut,
)
from .deterministic_rules import DeterministicSchema, keeps_bits
from .policy import RequestedPlacement
from .sharding_rules import AxisSplit, LegalOptions, ShardingOption

TIE_SECONDS: Final = 1e-9
"""So few seconds that they only decide between options of equal cost."""
LAST_RESORT_SECONDS: Final = 1e6
"""So many seconds that an option with this score is chosen only if no other is legal."""


class RankedOption(NamedTuple):
    """An option along one axis, with its score; the lowest wins."""

    score: float
    results: tuple[Placement, ...]
    operands: tuple[Placement | None, ...]


def ranked_options(
    choice_key: ChoiceKey, axis: int, forced: Placement | None, owner: FollowedParameter | None, origin: int,
    cuts: Cuts, legal: LegalOptions, mesh: Mesh, link: LinkProfile, blocks: int, *, only_best: bool,
) -> list[RankedOption]:  # fmt: skip
    """Every legal option along one axis that the operands can reach, with its score, the best first; or only the best."""
    parts, request = mesh.sizes[axis], choice_key.requests[axis]
    if parts == 1:
        operands = tuple(None if isinstance(operand, str) else REPLICATE for operand in choice_key.operands)
        return [RankedOption(0.0, (REPLICATE,) * len(choice_key.results), operands)]
    now = [() if isinstance(operand, str) else _there(operand, axis) for operand in choice_key.operands]
    sizes = [
        0.0 if isinstance(operand, str) else operand.spec.nbytes / _parts(mesh, operand.at, axis)
        for operand in choice_key.operands
    ]
    present = [placement for placements in now for placement in placements]
    options = _options(legal, mesh.weights[axis], [*present, forced], blocks)
    options = _allowed(choice_key, axis, forced, owner, origin, options)
    if blocks:
        schema, weights = schema_of(choice_key, blocks), mesh.weights[axis]
        options = [option for option in options if keeps_bits(schema, option.outputs, option.inputs, weights)]
    held = _held(choice_key, axis, owner, origin)
    in_place = (
        [option for option in options if all(isinstance(option.inputs[i], Shard) for i in held)] if held else options
    )
    in_place = in_place or options
    was_cut = [REPLICATE not in before and any(map(_is_cut, before)) for before in now]
    some_cut = any(isinstance(placement, (Shard, Partial)) for placement in present)
    wanted = [
        would_be_cut(choice_key, request, origin) and request is not None and activation(request, result) is not None
        for result in choice_key.results
    ]
    found: list[RankedOption] = []
    least = IMPOSSIBLE_SECONDS
    for option in [*in_place, *(options[:1] if blocks and options[0] not in in_place else ())]:
        seconds, kept = 0.0, False
        score = LAST_RESORT_SECONDS if blocks and option not in in_place else 0.0
        for before, after, nbytes, cut in zip(now, option.inputs, sizes, was_cut, strict=True):
            if after is None:
                continue
            there = after in before
            if not there:
                nearest = IMPOSSIBLE_SECONDS
                for old in before:
                    nearest = min(nearest, move_seconds(old, after, nbytes, parts, link))
                seconds += nearest
                score += TIE_SECONDS / 2
            kept = kept or (isinstance(after, Shard) and (there or cut))
        score += seconds
        if score >= least:  # nothing that comes makes it less
            continue
        for placement, result, would in zip(option.outputs, choice_key.results, wanted, strict=True):
            if forced is not None and fits(forced, result):
                # of two ways that move as much the one that computes in place does less
                score += move_seconds(placement, forced, result.nbytes, parts, link) + TIE_SECONDS * (
                    placement != forced
                )
            else:
                asked = would and request is not None and as_wanted(option, choice_key, request, result, cuts)
                score += _inconvenience(placement, would, asked, result, some_cut, kept, parts, link)
        if score < least:
            found.append(RankedOption(score, option.outputs, option.inputs))
            if only_best:
                least = score
                if not least:  # nothing is better
                    break
    return found[-1:] if only_best else sorted(found, key=_score)


def _allowed(
    choice_key: ChoiceKey,
    axis: int,
    forced: Placement | None,
    owner: FollowedParameter | None,
    origin: int,
    options: Sequence[ShardingOption],
) -> Sequence[ShardingOption]:
    """The options that a signal allows: they gather what is gathered at use, and add up shared contributions once."""
    gathered = _gathered(choice_key, choice_key.requests[axis], owner, origin)
    if gathered:
        options = [
            option for option in options if not any(isinstance(option.inputs[i], (Shard, Partial)) for i in gathered)
        ]
    request = choice_key.requests[axis]
    pinned = choice_key.stage is not None or (request is not None and request.position is not None)
    if isinstance(forced, At) and pinned and owner is None:
        # what a stage or a device computes it computes itself: what it reads comes over once, not also what was made of it before
        options = [option for option in options if option.outputs[0] == forced]
    if any(isinstance(x, ValueState) and x.shared and isinstance(x.at[axis], Partial) for x in choice_key.operands):
        options = [option for option in options if _added_up(choice_key, axis, option)]
    return options


def _score(option: RankedOption) -> float:
    return option.score


def _is_cut(placement: Placement) -> bool:
    return isinstance(placement, Shard)


def _there(operand: ValueState, axis: int) -> tuple[Placement, ...]:
    """The placements of an operand's copies along an axis. Contributions that were added up already are not offered again."""
    if len(operand.copies) == 1:
        return (operand.copies[0][axis],)
    found = dict.fromkeys(copy[axis] for copy in operand.copies)
    if REPLICATE in found:
        return tuple(placement for placement in found if not isinstance(placement, Partial))
    return tuple(found)


def _added_up(choice_key: ChoiceKey, axis: int, option: ShardingOption) -> bool:
    """Whether an option adds up shared contributions for good: to a whole value, or to one sharded as the signal shards
    activations."""
    for operand, after in zip(choice_key.operands, option.inputs, strict=True):
        if isinstance(operand, ValueState) and operand.shared and isinstance(operand.at[axis], Partial):
            request = choice_key.requests[axis]
            if isinstance(after, Partial) or (
                isinstance(after, Shard)
                and (request is None or after != activation(request, operand.spec))
                and not any(isinstance(copy[axis], (Shard, Replicate)) for copy in operand.copies)
            ):
                return False
    return True


def _gathered(
    choice_key: ChoiceKey, request: RequestedPlacement | None, owner: FollowedParameter | None, origin: int
) -> list[int]:
    """The operands that must be whole where they meet data: fully sharded parameters are gathered at use."""
    if request is None or request.strategy != "fully_sharded" or owner is not None:
        return []
    if origin != DATA and OPS[choice_key.op].family not in LOOKUP_FAMILIES:
        return []
    operands = enumerate(choice_key.operands)
    return [i for i, operand in operands if isinstance(operand, ValueState) and operand.origin == PARAMETER]


def _held(choice_key: ChoiceKey, axis: int, owner: FollowedParameter | None, origin: int) -> list[int]:
    """The operands that stay sharded where they are: tensor-parallel weights do not move, the other operand comes to them."""
    request = choice_key.requests[axis]
    if request is None or request.strategy != "tensor_parallel" or owner is not None or origin != DATA:
        return []
    operands = enumerate(choice_key.operands)
    return [i for i, x in operands if isinstance(x, ValueState) and x.origin == PARAMETER and _is_cut(x.at[axis])]


def _options(
    legal: LegalOptions, weights: tuple[int, ...], present: Sequence[Placement | None], blocks: int
) -> Sequence[ShardingOption]:
    """The legal options, cut by the weights of the mesh and by those of present copies; and options with everything at
    one position.

    The first option replicates everything. Options that take contributions are left out if there are none. A value that
    an earlier config cut off the grid of blocks is not computed with in that layout.
    """
    contributed = any(isinstance(placement, Partial) for placement in present)
    found = legal(AxisSplit(weights), contributed=contributed)
    for placement in dict.fromkeys(present):
        if isinstance(placement, Shard) and placement.weights is not None:
            if not blocks or sum(placement.weights) == blocks:
                cut = legal(AxisSplit(placement.weights), contributed=contributed)
                found = (*found, *(_weighted(option, placement.weights) for option in cut))
        elif isinstance(placement, At):
            outputs, inputs = found[0]
            found = (*found, ShardingOption((placement,) * len(outputs), tuple(each and placement for each in inputs)))
    return found


def _weighted(option: ShardingOption, weights: tuple[int, ...]) -> ShardingOption:
    def own(placement: Any) -> Any:
        return Shard(placement.dim, weights) if isinstance(placement, Shard) else placement

    return ShardingOption(tuple(map(own, option.outputs)), tuple(map(own, option.inputs)))


def _inconvenience(
    placement: Placement,
    wanted: bool,
    asked: bool,
    result: Spec,
    some_cut: bool,
    kept: bool,
    parts: int,
    link: LinkProfile,
) -> float:
    """What a result's placement will cost later if nothing forces it, such as undoing a shard that nobody asked for.

    `some_cut` tells whether some operand is sharded; `kept` whether the shard comes from one that was there before.
    """
    if isinstance(placement, Partial):
        return 0.0 if some_cut else move_seconds(placement, REPLICATE, result.nbytes, parts, link)
    if wanted:
        return 0.0 if asked else TIE_SECONDS
    if isinstance(placement, Shard):
        # with what it took to cut it that is an all-reduce in two steps, to which it is not to be preferred
        return 0.0 if kept else move_seconds(placement, REPLICATE, result.nbytes, parts, link) + TIE_SECONDS
    return TIE_SECONDS if some_cut else 0.0


def as_wanted(
    option: ShardingOption, choice_key: ChoiceKey, request: RequestedPlacement, result: Spec, cuts: Cuts
) -> bool:
    """Whether an option shards activations as the signal does: along the batch, or along the dimension that it names."""
    if request.strategy not in BATCH_STRATEGIES:
        return option.outputs[0] == activation(request, result)
    if OPS[choice_key.op].family == "random":
        return option.outputs[0] == (Shard(0) if result.ndim > 1 else REPLICATE)
    return bool(cuts) and all(_dim(option.inputs[i]) == _dim(placement) for i, placement in cuts.items())


def _dim(placement: Placement | None) -> int | None:
    return placement.dim if isinstance(placement, Shard) else None


def _parts(mesh: Mesh, layout: Layout, but: int) -> int:
    """The number of parts into which the other axes cut a value."""
    parts = 1
    for axis, placement in enumerate(layout):
        if axis != but and isinstance(placement, Shard):
            parts *= mesh.sizes[axis]
    return parts


def schema_of(choice_key: ChoiceKey, blocks: int) -> DeterministicSchema:
    operands = tuple(operand if isinstance(operand, str) else operand.spec for operand in choice_key.operands)
    return DeterministicSchema(choice_key.op, choice_key.attributes, operands, choice_key.results[0], blocks)
