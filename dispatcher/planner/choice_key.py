"""The key of a choice, with all that it may depend on: an instruction, the states of its operands, and what its signal asks for.

Also what follows from these for the results: where they come from, which parameter they follow, which dimension is their
batch, and where they are asked to be. Costs and other instructions play no part here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gt.ir.attributes import Attributes
from gt.ir.ops import OPS
from gt.ir.spec import Spec
from gt.sharding.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Shard

from .policy import RequestedPlacement, RequestedPlacements
from .sharding_rules import AxisSplit, LegalOptions

DATA, PARAMETER, CONSTANT = 0, 1, 2
"""The origin of a value: data, parameters alone, or neither."""
ELEMENTWISE_FAMILIES: Final = frozenset({"unary", "cast", "binary", "where", "tag", "follow", "weight"})
RELAYOUT_FAMILIES: Final = frozenset({"reshape", "permute", "expand", "slice", "cat"})
"""Families that rearrange dimensions. Their results follow the operands, whatever the signal would prefer."""
PRODUCT_FAMILIES: Final = frozenset({"matmul", "conv", "int8_product"})
"""Families in which activations meet the weights of a network."""
LOOKUP_FAMILIES: Final = frozenset({"gather", "take"})
"""Families that count as using a parameter even if no operand is data, because positions may be constants."""
BATCH_STRATEGIES: Final = frozenset({"data_parallel", "fully_sharded"})
"""Strategies that shard the first dimension of activations."""


class FollowedParameter(NamedTuple):
    """The parameter that a value follows: its spec, its layout, and whether it is bound to a rule."""

    spec: Spec
    layout: Layout
    bound: bool


class ValueState(NamedTuple):
    """What a choice may know about a value: its layout, the layouts of its copies, what it comes from and what it follows.

    `batch` is the dimension with one entry for each example, if known. `shared` marks contributions that several instructions
    read: each of them alone would rather postpone adding them up.
    """

    spec: Spec
    at: Layout
    copies: tuple[Layout, ...]
    origin: int
    owner: FollowedParameter | None
    batch: int | None = None
    shared: bool = False


class ChoiceKey(NamedTuple):
    """An instruction, the states of its operands (for a run-time scalar its kind), and what its signal asks for on each axis.

    `stage` is the position on a pipeline's axis to which the instruction belongs, if a rule says so; `backward` tells whether
    it belongs to the backward sweep.
    """

    op: str
    attributes: Attributes
    operands: tuple[ValueState | str, ...]
    results: tuple[Spec, ...]
    requests: RequestedPlacements
    stage: int | None
    backward: bool


Stages = Mapping[int, Mapping[int, int]]
"""For a mesh axis with a pipeline's stages, the stage at each position."""


def owner_of(choice_key: ChoiceKey) -> FollowedParameter | None:
    """The parameter from which a result is computed element-wise, in the same shape.

    A parameter and what followed it in earlier plans (its momentum, say) count as one if they have the same layout.
    """
    if OPS[choice_key.op].family not in ELEMENTWISE_FAMILIES:
        return None
    if choice_key.op == "follow":
        like = choice_key.operands[1]
        assert isinstance(like, ValueState), "what is followed is a tensor"
        return like.owner or FollowedParameter(like.spec, whole(like.at), False)
    found = [
        operand.owner
        for operand in choice_key.operands
        if isinstance(operand, ValueState) and operand.owner is not None
    ]
    shape = choice_key.results[0].shape
    if not found or any(owner.layout != found[0].layout or owner.spec.shape != shape for owner in found):
        return None
    return next((owner for owner in found if owner.bound), found[0])


def is_parameter(choice_key: ChoiceKey) -> bool:
    """Whether the result of an instruction is marked as a parameter."""
    return choice_key.op == "tag" and bool(choice_key.attributes["param"])


def origin_of(choice_key: ChoiceKey) -> int:
    """The origin of the results: `DATA`, `PARAMETER` or `CONSTANT`."""
    if is_parameter(choice_key):
        return PARAMETER
    if fed(choice_key):
        return DATA
    origins = {operand.origin for operand in choice_key.operands if isinstance(operand, ValueState)}
    if not origins:
        return DATA if OPS[choice_key.op].family == "random" else CONSTANT
    return DATA if DATA in origins else PARAMETER if PARAMETER in origins else CONSTANT


def fed(choice_key: ChoiceKey) -> bool:
    """Whether a constant meets a parameter in a product. Such a constant is treated as data that a network is fed with."""
    if OPS[choice_key.op].family not in PRODUCT_FAMILIES:
        return False
    first, second = choice_key.operands
    assert isinstance(first, ValueState), "a product has tensors"
    assert isinstance(second, ValueState), "a product has tensors"
    return first.origin == CONSTANT and second.origin == PARAMETER


def batch_dimension(spec: Spec, origin: int) -> int | None:
    """The batch dimension of an input: its first dimension."""
    return 0 if origin == DATA and spec.ndim else None


PICKING_FAMILIES: Final = frozenset({"slice", "cat"})
"""Ops that pick from dimensions or join them, and leave every dimension in its place."""
Cuts = Mapping[int, Placement]
"""For each operand, the dimension along which its batch is sharded."""


def batch_of(choice_key: ChoiceKey, mesh: Mesh, legal: LegalOptions) -> tuple[int | None, Cuts]:
    """The batch dimension of a result, and how the operands must be sharded for the result to be sharded along it: all
    operands that have a batch, or at least one.

    What is picked from a batch, or joined from several, is a batch again, even if no sharding of the operands shards it.
    """
    if OPS[choice_key.op].family == "random":
        return batch_dimension(choice_key.results[0], DATA), {}
    known = enumerate(choice_key.operands)
    every = {i: Shard(x.batch) for i, x in known if isinstance(x, ValueState) and x.batch is not None}
    if fed(choice_key):
        every = {0: Shard(0)}
    if not every:
        return None, {}
    options = legal(AxisSplit(mesh.weights[-1]), contributed=False)
    reduced: Cuts | None = None
    for cuts in (every, *({i: placement} for i, placement in every.items())):
        kept = [
            option.outputs[0]
            for option in options
            if all(option.inputs[i] == placement for i, placement in cuts.items())
        ]
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
    return (placement.dim if first == 0 and choice_key.op in PICKING_FAMILIES else None), {}


def piped(requests: RequestedPlacements) -> bool:
    """Whether a pipeline rule applies to a signal."""
    return any(request is not None and request.strategy == "pipeline_parallel" for request in requests)


def parameter_placement(
    spec: Spec, request: RequestedPlacement | None, dimension: int, stage: int | None
) -> Placement | None:
    """The placement that a rule wants for a parameter on one mesh axis. `dimension` is used where the rule leaves the weight's
    sharded dimension open."""
    if request is None or request.strategy in ("shard", "auto"):
        return None
    if request.position is not None:
        return At(request.position)
    if request.strategy == "pipeline_parallel":
        return None if stage is None else At(stage)
    if request.strategy in ("fully_sharded", "expert_parallel"):
        return Shard(0) if spec.ndim else REPLICATE
    if request.strategy != "tensor_parallel":
        return REPLICATE
    if request.dimension is not None:
        dimension = request.dimension
    if spec.ndim >= 2:
        return Shard(dimension) if dimension < spec.ndim else REPLICATE
    # what has one dimension follows the output: cut in the column form, whole in the row form
    return Shard(0) if spec.ndim == 1 and dimension == 0 else REPLICATE


def forced_at(choice_key: ChoiceKey, axis: int, origin: int) -> Placement | None:
    """The placement that the signal demands of a result on one axis; None if it may be anything."""
    request, result = choice_key.requests[axis], choice_key.results[0]
    if request is None:
        return None
    if request.strategy == "shard":
        assert request.dimension is not None, "the explicit form says which dimension"
        return Shard(request.dimension, request.weights) if result.ndim > request.dimension else None
    if request.strategy == "replicate":
        return REPLICATE
    if request.position is not None:
        return At(request.position)
    if is_parameter(choice_key):
        return parameter_placement(result, request, 0, None)
    if request.strategy == "pipeline_parallel":
        return None if choice_key.stage is None else At(choice_key.stage)
    if choice_key.op == "tag" and origin != PARAMETER:
        return activation(request, result)
    return None


def swept(choice_key: ChoiceKey, axis: int, stage_of: Mapping[int, int]) -> Placement | None:
    """The stage at which to compute from values that are on stages: the forward sweep goes up the stages, the backward sweep
    down.

    A value that was sent up may be read at every stage on its way.
    """
    reached = []
    for operand in choice_key.operands:
        if isinstance(operand, ValueState):
            at = [copy[axis] for copy in operand.copies]
            held = [(stage_of.get(p.position, 0), p.position) for p in at if isinstance(p, At)]
            reached += [max(held)] if held else []
    if not reached:
        return None
    return At((min if choice_key.backward else max)(reached)[1])


def activation(request: RequestedPlacement, result: Spec) -> Placement | None:
    """How a strategy shards activations."""
    if request.strategy in BATCH_STRATEGIES:
        return Shard(0) if result.ndim else None
    if request.strategy == "sequence_parallel" and request.dimension is not None and result.ndim > request.dimension:
        return Shard(request.dimension)
    return None


def would_be_cut(choice_key: ChoiceKey, request: RequestedPlacement | None, origin: int) -> bool:
    """Whether a result should be sharded as its signal shards activations, if that costs nothing."""
    return request is not None and origin == DATA and OPS[choice_key.op].family not in RELAYOUT_FAMILIES


def asked_for(layout: Layout, forced: Sequence[Placement | None], spec: Spec) -> Layout:
    """The layout that is asked of a result: what the signal demands, and elsewhere what its option gives."""
    return tuple(
        placement if placement is not None and fits(placement, spec) else layout[axis]
        for axis, placement in enumerate(forced)
    )


def whole(layout: Layout) -> Layout:
    """A layout in which nothing is partial: contributions are added up."""
    return tuple(REPLICATE if isinstance(placement, Partial) else placement for placement in layout)


def fits(placement: Placement, result: Spec) -> bool:
    """Whether a result has the dimension that a placement shards."""
    return not isinstance(placement, Shard) or placement.dim < result.ndim
