"""Distances between rows, and the losses that ask for a margin between them, or between the scores of classes.

PyTorch's names, arguments and defaults; they are reached as `gt.nn.functional`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, gather_scatter, join_and_pad, reductions, shape_ops, triangular
from gt.client.ops.arithmetic import abs, add, div, in_single, maximum, mul, neg, sqrt, square, sub, where
from gt.client.tensor import emission, emission_context
from gt.client.tensor.autocast import widened
from gt.client.tensor.operands import cast, of_kinds, tensor_of
from gt.errors import ShapeError

from .activations import logsigmoid
from .losses import reduced, reduction_of

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "normalize", "pairwise_distance", "soft_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


def _positive(x: Tensor) -> Tensor:
    """`max(x, 0)`, whose gradient at 0 is 1, as PyTorch's losses have it."""
    return where(x < 0, 0.0, x)


def norm_of(x: Tensor, p: float, axis: Any, keepdim: bool = False) -> Tensor:
    """(Σ |x|ᵖ)^(1/p) along axes; where it is 0 its gradient is 0."""
    if x.dtype.kind == "c":
        x = abs(x)
    if p == math.inf:
        return reductions.amax(abs(x), axis, keepdim)
    if p == 1:
        return reductions.sum(abs(x), axis, keepdim)
    if p == 0:
        return reductions.sum(cast(arithmetic.ne(x, 0.0), x.dtype), axis, keepdim)
    if p == 2:
        total = reductions.sum(square(x), axis, keepdim)
    else:
        zero = arithmetic.eq(x, 0.0)
        total = reductions.sum(where(zero, 0.0, arithmetic.pow(where(zero, 1.0, abs(x)), float(p))), axis, keepdim)
    nothing = arithmetic.eq(total, 0.0)
    some = where(nothing, 1.0, total)
    return where(nothing, 0.0, sqrt(some) if p == 2 else arithmetic.pow(some, 1 / float(p)))


@widened
@in_single
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 over the product of their lengths, each at least `eps`, along an axis of the shape to which both broadcast."""
    a, b = join_and_pad.broadcast_tensors(*(of_kinds("cosine_similarity", x, "bif") for x in (x1, x2)))
    a, b = (div(x, maximum(norm_of(x, 2.0, dim, True), float(eps))) for x in (a, b))
    return reductions.sum(mul(a, b), dim)


@widened
@in_single
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """`input` over its p-norm along an axis, which counts as at least `eps`."""
    x = tensor_of("normalize", input)
    return div(x, maximum(norm_of(x, p, dim, True), float(eps)))


@widened
@in_single
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of `x1 − x2 + eps` along the last axis."""
    a, b = tensor_of("pairwise_distance", x1), tensor_of("pairwise_distance", x2)
    return norm_of(add(sub(a, b), float(eps)), p, -1, keepdim)


@widened
def cosine_embedding_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`1 − cos` of pairs whose target is 1, `max(0, cos − margin)` of those whose target is −1."""
    reduction = reduction_of("cosine_embedding_loss", size_average, reduce, reduction)
    a, b, t = (tensor_of("cosine_embedding_loss", each) for each in (input1, input2, target))
    if a.shape != b.shape or t.shape != a.shape[:-1]:
        raise ShapeError(f"cosine_embedding_loss: inputs {a.shape} and {b.shape}, targets {t.shape}")
    lengths = [add(reductions.sum(square(x), -1), 1e-12) for x in (a, b)]
    cosine = div(reductions.sum(mul(a, b), -1), sqrt(mul(*lengths)))
    near = where(arithmetic.eq(t, 1), sub(1.0, cosine), 0.0)
    apart = where(arithmetic.eq(t, -1), _positive(sub(cosine, float(margin))), 0.0)
    return reduced("cosine_embedding_loss", add(near, apart), reduction)


@widened
def margin_ranking_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, −t · (x1 − x2) + margin)`: x1 belongs above x2 where the target is 1, below where it is −1."""
    reduction = reduction_of("margin_ranking_loss", size_average, reduce, reduction)
    a, b, t = (tensor_of("margin_ranking_loss", each) for each in (input1, input2, target))
    loss = _positive(add(mul(neg(t), sub(a, b)), float(margin)))
    return reduced("margin_ranking_loss", loss, reduction)


@widened
def hinge_embedding_loss(
    input: Any,
    target: Any,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The distance where the target is 1, `max(0, margin − distance)` where it is −1."""
    reduction = reduction_of("hinge_embedding_loss", size_average, reduce, reduction)
    x, t = tensor_of("hinge_embedding_loss", input), tensor_of("hinge_embedding_loss", target)
    apart = where(arithmetic.ne(t, 1), _positive(sub(float(margin), x)), 0.0)
    near = where(arithmetic.ne(t, -1), x, 0.0)
    return reduced("hinge_embedding_loss", add(apart, near), reduction)


@widened
def soft_margin_loss(
    input: Any, target: Any, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """`log(1 + e^(−t · x))`."""
    reduction = reduction_of("soft_margin_loss", size_average, reduce, reduction)
    x, t = tensor_of("soft_margin_loss", input), tensor_of("soft_margin_loss", target)
    return reduced("soft_margin_loss", neg(logsigmoid(mul(x, t))), reduction)


@widened
def multilabel_soft_margin_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of `binary_cross_entropy_with_logits`."""
    reduction = reduction_of("multilabel_soft_margin_loss", size_average, reduce, reduction)
    x = of_kinds("multilabel_soft_margin_loss", input, "f")
    loss = neg(add(mul(target, logsigmoid(x)), mul(sub(1.0, target), logsigmoid(neg(x)))))
    loss = reductions.mean(loss if weight is None else mul(loss, weight), -1)
    return reduced("multilabel_soft_margin_loss", loss, reduction)


@widened
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of `max(0, margin − x[target] + x)ᵖ`, that of the target's own left out; p is 1 or 2."""
    reduction = reduction_of("multi_margin_loss", size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p is 1 or 2, not {p}")
    x, t = tensor_of("multi_margin_loss", input), tensor_of("multi_margin_loss", target)
    x = x if x.ndim else shape_ops.reshape(x, (1,))  # a single class
    column = shape_ops.reshape(t, (*x.shape[:-1], 1))
    short = _positive(add(sub(x, gather_scatter.gather(x, -1, column)), float(margin)))
    short = short if p == 1 else square(short)
    if weight is not None:
        short = mul(short, emission.emit("take", (weight, column), 0))
    others = where(arithmetic.eq(creation.arange(x.shape[-1]), column), 0.0, short)
    return reduced("multi_margin_loss", reductions.mean(others, -1), reduction)


@widened
def multilabel_margin_loss(
    input: Any, target: Any, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over classes of Σ `max(0, 1 − x[target] + x[other])`: targets up to the first −1, all other classes."""
    reduction = reduction_of("multilabel_margin_loss", size_average, reduce, reduction)
    x, t = tensor_of("multilabel_margin_loss", input), tensor_of("multilabel_margin_loss", target)
    x, t = (each if each.ndim else shape_ops.reshape(each, (1,)) for each in (x, t))  # a single class
    if x.shape != t.shape or x.ndim not in (1, 2):
        raise ShapeError(f"multilabel_margin_loss: input {x.shape} and target {t.shape}, of one or two dimensions")
    classes, flat = x.shape[-1], (-1, x.shape[-1])
    rows, listed = shape_ops.reshape(x, flat), shape_ops.reshape(t, flat)
    with emission_context.with_changes(grad=False):
        ended = cast(arithmetic.lt(listed, 0), x.dtype)
        before = emission.emit("matmul", (ended, triangular.triu(creation.ones(classes, classes, dtype=x.dtype))))
        valid = arithmetic.eq(before, 0.0)
        places = where(valid, listed, 0)
        chosen = gather_scatter.scatter_add(creation.zeros_like(ended), -1, places, cast(valid, x.dtype))
        other = arithmetic.eq(chosen, 0.0)
    reached = gather_scatter.gather(rows, -1, places)
    short = _positive(add(sub(shape_ops.unsqueeze(rows, -2), shape_ops.unsqueeze(reached, -1)), 1.0))
    counts = arithmetic.logical_and(shape_ops.unsqueeze(valid, -1), shape_ops.unsqueeze(other, -2))
    loss = div(reductions.sum(where(counts, short, 0.0), (-2, -1)), float(classes))
    return reduced("multilabel_margin_loss", shape_ops.reshape(loss, x.shape[:-1]), reduction)


@widened
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, d(anchor, positive) − d(anchor, negative) + margin)` of p-norm distances.

    `swap`: the negative's distance is the smaller of those to anchor and positive (Balntas et al., 2016).
    """
    reduction = reduction_of("triplet_margin_loss", size_average, reduce, reduction)
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


@widened
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any distance; `pairwise_distance` unless given."""
    if margin <= 0:
        raise ValueError(f"triplet_margin_loss: the margin is greater than 0, not {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = arithmetic.minimum(far, distance(positive, negative))
    return reduced("triplet_margin_loss", _positive(add(sub(near, far), float(margin))), reduction)
