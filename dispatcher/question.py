"""What a choice may know: an instruction, the states of its operands, and what its signal asks for; and what follows from that
for the results: where they come from, whom they follow, along which dimension they are a batch, where they are asked to be.

Nothing here knows of costs, or of other instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gt.attributes import Attributes
from gt.ops import OPS
from gt.placement import REPLICATE, At, Layout, Mesh, Partial, Placement, Shard
from gt.spec import Spec

from .policy import Wish, Wishes
from .rules import Cut, Legal

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


Stages = Mapping[int, Mapping[int, int]]
"""For a mesh axis that has a pipeline's stages: which stage is at each position."""


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


def origin_of(question: Question) -> int:
    """Where the results come from: `DATA`, `PARAMETER` or `CONSTANT`."""
    if is_parameter(question):
        return PARAMETER
    if fed(question):
        return DATA
    origins = {operand.origin for operand in question.operands if isinstance(operand, State)}
    if not origins:
        return DATA if OPS[question.op].family == "random" else CONSTANT
    return DATA if DATA in origins else PARAMETER if PARAMETER in origins else CONSTANT


def fed(question: Question) -> bool:
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


def batch_of(question: Question, mesh: Mesh, legal: Legal) -> tuple[int | None, Cuts]:
    """The batch of a result, and the cut of operands that leaves it cut: of all that have a batch, or at least of one.

    What is picked from a batch, or put together of several, is a batch again, though no cut of the operands leaves it cut.
    """
    if OPS[question.op].family == "random":
        return batch_dimension(question.results[0], DATA), {}
    known = enumerate(question.operands)
    every = {i: Shard(x.batch) for i, x in known if isinstance(x, State) and x.batch is not None}
    if fed(question):
        every = {0: Shard(0)}
    if not every:
        return None, {}
    rows = legal(Cut(mesh.weights[-1]), contributed=False)
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


def piped(wishes: Wishes) -> bool:
    """Whether a signal is under a pipeline."""
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


def forced_at(question: Question, axis: int, origin: int) -> Placement | None:
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
        return activation(wish, result)
    return None


def swept(question: Question, axis: int, stage_of: Mapping[int, int]) -> Placement | None:
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


def activation(wish: Wish, result: Spec) -> Placement | None:
    """How a strategy cuts activations."""
    if wish.strategy in BATCHED:
        return Shard(0) if result.ndim else None
    if wish.strategy == "sequence_parallel" and wish.dimension is not None and result.ndim > wish.dimension:
        return Shard(wish.dimension)
    return None


def would_be_cut(question: Question, wish: Wish | None, origin: int) -> bool:
    """Whether a result would rather be cut as its signal cuts activations, where that costs nothing."""
    return wish is not None and origin == DATA and OPS[question.op].family not in RELAYOUT


def asked_for(layout: Layout, forced: Sequence[Placement | None], spec: Spec) -> Layout:
    """Where a result is asked to be: where the signal forces it along an axis, and else where its row leaves it."""
    return tuple(
        placement if placement is not None and fits(placement, spec) else layout[axis]
        for axis, placement in enumerate(forced)
    )


def whole(layout: Layout) -> Layout:
    """The layout with contributions reduced."""
    return tuple(REPLICATE if isinstance(placement, Partial) else placement for placement in layout)


def fits(placement: Placement, result: Spec) -> bool:
    """Whether a result has the dimension that a placement cuts."""
    return not isinstance(placement, Shard) or placement.dim < result.ndim
