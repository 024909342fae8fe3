"""What a choice may depend on: an instruction, the states of its operands, and what its signal asks for.

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
ELEMENTWISE: Final = frozenset({"unary", "cast", "binary", "where", "tag", "follow"})
RELAYOUT: Final = frozenset({"reshape", "permute", "expand", "slice", "cat"})
"""Families that rearrange dimensions. Their results follow the operands, whatever the signal would prefer."""
PRODUCTS: Final = frozenset({"matmul", "conv"})
"""Families in which activations meet the weights of a network."""
LOOKUPS: Final = frozenset({"gather", "take"})
"""Families that count as using a parameter even if no operand is data, because positions may be constants."""
BATCHED: Final = frozenset({"data_parallel", "fully_sharded"})
"""Strategies that shard the first dimension of activations."""


class FollowedParameter(NamedTuple):
    """The parameter that a value follows: its spec, its layout, and whether a rule has claimed it."""

    spec: Spec
    layout: Layout
    claimed: bool


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
    wishes: RequestedPlacements
    stage: int | None
    backward: bool


Stages = Mapping[int, Mapping[int, int]]
"""For a mesh axis with a pipeline's stages, the stage at each position."""


def owner_of(question: ChoiceKey) -> FollowedParameter | None:
    """The parameter from which a result is computed element-wise, in the same shape.

    A parameter and what followed it in earlier plans (its momentum, say) count as one if they have the same layout.
    """
    if OPS[question.op].family not in ELEMENTWISE:
        return None
    if question.op == "follow":
        like = question.operands[1]
        assert isinstance(like, ValueState), "what is followed is a tensor"
        return like.owner or FollowedParameter(like.spec, whole(like.at), False)
    found = [
        operand.owner for operand in question.operands if isinstance(operand, ValueState) and operand.owner is not None
    ]
    shape = question.results[0].shape
    if not found or any(owner.layout != found[0].layout or owner.spec.shape != shape for owner in found):
        return None
    return next((owner for owner in found if owner.claimed), found[0])


def is_parameter(question: ChoiceKey) -> bool:
    """Whether the result of an instruction is marked as a parameter."""
    return question.op == "tag" and bool(question.attributes["param"])


def origin_of(question: ChoiceKey) -> int:
    """The origin of the results: `DATA`, `PARAMETER` or `CONSTANT`."""
    if is_parameter(question):
        return PARAMETER
    if fed(question):
        return DATA
    origins = {operand.origin for operand in question.operands if isinstance(operand, ValueState)}
    if not origins:
        return DATA if OPS[question.op].family == "random" else CONSTANT
    return DATA if DATA in origins else PARAMETER if PARAMETER in origins else CONSTANT


def fed(question: ChoiceKey) -> bool:
    """Whether a constant meets a parameter in a product. Such a constant is treated as data that a network is fed with."""
    if OPS[question.op].family not in PRODUCTS:
        return False
    first, second = question.operands
    assert isinstance(first, ValueState), "a product has tensors"
    assert isinstance(second, ValueState), "a product has tensors"
    return first.origin == CONSTANT and second.origin == PARAMETER


def batch_dimension(spec: Spec, origin: int) -> int | None:
    """The batch dimension of an input: its first dimension."""
    return 0 if origin == DATA and spec.ndim else None


PICKED: Final = frozenset({"slice", "cat"})
"""Ops that pick from dimensions or join them, and leave every dimension in its place."""
Cuts = Mapping[int, Placement]
"""For each operand, the dimension along which its batch is sharded."""


def batch_of(question: ChoiceKey, mesh: Mesh, legal: LegalOptions) -> tuple[int | None, Cuts]:
    """The batch dimension of a result, and how the operands must be sharded for the result to be sharded along it: all
    operands that have a batch, or at least one.

    What is picked from a batch, or joined from several, is a batch again, even if no sharding of the operands shards it.
    """
    if OPS[question.op].family == "random":
        return batch_dimension(question.results[0], DATA), {}
    known = enumerate(question.operands)
    every = {i: Shard(x.batch) for i, x in known if isinstance(x, ValueState) and x.batch is not None}
    if fed(question):
        every = {0: Shard(0)}
    if not every:
        return None, {}
    rows = legal(AxisSplit(mesh.weights[-1]), contributed=False)
    reduced: Cuts | None = None
    for cuts in (every, *({i: placement} for i, placement in every.items())):
        kept = [row.outputs[0] for row in rows if all(row.inputs[i] == placement for i, placement in cuts.items())]
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


def piped(wishes: RequestedPlacements) -> bool:
    """Whether a pipeline rule applies to a signal."""
    return any(wish is not None and wish.strategy == "pipeline_parallel" for wish in wishes)


def parameter_placement(
    spec: Spec, wish: RequestedPlacement | None, dimension: int, stage: int | None
) -> Placement | None:
    """The placement that a rule wants for a parameter on one mesh axis. `dimension` is used where the rule leaves the weight's
    sharded dimension open."""
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


def forced_at(question: ChoiceKey, axis: int, origin: int) -> Placement | None:
    """The placement that the signal demands of a result on one axis; None if it may be anything."""
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
        return activation(wish, result)
    return None


def swept(question: ChoiceKey, axis: int, stage_of: Mapping[int, int]) -> Placement | None:
    """The stage at which to compute from values that are on stages: the forward sweep goes up the stages, the backward sweep
    down.

    A value that was sent up may be read at every stage on its way.
    """
    reached = []
    for operand in question.operands:
        if isinstance(operand, ValueState):
            at = [copy[axis] for copy in operand.copies]
            held = [(stage_of.get(p.position, 0), p.position) for p in at if isinstance(p, At)]
            reached += [max(held)] if held else []
    if not reached:
        return None
    return At((min if question.backward else max)(reached)[1])


def activation(wish: RequestedPlacement, result: Spec) -> Placement | None:
    """How a strategy shards activations."""
    if wish.strategy in BATCHED:
        return Shard(0) if result.ndim else None
    if wish.strategy == "sequence_parallel" and wish.dimension is not None and result.ndim > wish.dimension:
        return Shard(wish.dimension)
    return None


def would_be_cut(question: ChoiceKey, wish: RequestedPlacement | None, origin: int) -> bool:
    """Whether a result should be sharded as its signal shards activations, if that costs nothing."""
    return wish is not None and origin == DATA and OPS[question.op].family not in RELAYOUT


def asked_for(layout: Layout, forced: Sequence[Placement | None], spec: Spec) -> Layout:
    """The layout that is asked of a result: what the signal demands, and elsewhere what its row gives."""
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
