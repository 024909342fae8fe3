"""Losses: how far a prediction is from its target, element by element or along classes, averaged, summed or as it is.

PyTorch's names, arguments and defaults; they are reached as `gt.nn.functional`. All are composed. None waits: what
PyTorch finds in the values (a negative variance, a target that is no class) is found where values are, or not at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, reductions, shape_ops
from gt.client.ops.arithmetic import abs, add, div, exp, log, maximum, mul, neg, square, sub, where
from gt.client.tensor import emission, emission_context
from gt.client.tensor.autocast import widened
from gt.client.tensor.operands import cast, of_kinds, tensor_of
from gt.errors import DTypeError, ShapeError

from .activations import logsigmoid

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "gaussian_nll_loss", "huber_loss",
    "kl_div", "l1_loss", "linear_cross_entropy", "mse_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip


def reduction_of(name: str, size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction, where PyTorch's two older arguments go before the newer one."""
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    return reduction


def reduced(name: str, loss: Tensor, reduction: str) -> Tensor:
    """The loss of each element, averaged, summed or as it is."""
    if reduction == "mean":
        return reductions.mean(loss)
    if reduction == "sum":
        return reductions.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"{name}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")


# differences


def _apart(name: str, input: Any, target: Any) -> Tensor:
    return sub(tensor_of(name, input), tensor_of(name, target))


def _weighted(name: str, loss: Tensor, weight: Any, reduction: str) -> Tensor:
    """Reduced; with weights the mean is over the sum of weights."""
    if weight is None:
        return reduced(name, loss, reduction)
    loss = mul(loss, weight)
    if reduction == "mean":
        return div(reductions.sum(loss), reductions.sum(shape_ops.expand(tensor_of(name, weight), loss.shape)))
    return reduced(name, loss, reduction)


@widened
def mse_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Tensor:
    """The squared differences."""
    reduction = reduction_of("mse_loss", size_average, reduce, reduction)
    return _weighted(
        "mse_loss", square(of_kinds("mse_loss", _apart("mse_loss", input, target), "bif")), weight, reduction
    )


@widened
def l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Tensor:
    """The absolute differences."""
    reduction = reduction_of("l1_loss", size_average, reduce, reduction)
    return _weighted("l1_loss", abs(_apart("l1_loss", input, target)), weight, reduction)


@widened
def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Half the squared difference over `beta` where it is below `beta`, else the absolute one less half of `beta`."""
    reduction = reduction_of("smooth_l1_loss", size_average, reduce, reduction)
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta is at least 0, not {beta}")
    far = abs(of_kinds("smooth_l1_loss", _apart("smooth_l1_loss", input, target), "f"))
    if beta == 0:
        return reduced("smooth_l1_loss", far, reduction)
    near = div(mul(square(far), 0.5), float(beta))
    return reduced("smooth_l1_loss", where(far < beta, near, sub(far, 0.5 * beta)), reduction)


@widened
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Tensor:
    """Half the squared difference up to `delta`, from there on a line (Huber, 1964)."""
    if delta <= 0:
        raise ValueError(f"huber_loss: delta is greater than 0, not {delta}")
    far = abs(of_kinds("huber_loss", _apart("huber_loss", input, target), "f"))
    loss = where(far <= delta, mul(square(far), 0.5), mul(sub(far, 0.5 * delta), float(delta)))
    return _weighted("huber_loss", loss, weight, reduction)


# probabilities of two classes, and densities


def _same_shape(name: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ShapeError(f"{name}: input {input.shape} and target {target.shape} have different shapes")


def _log_above(x: Tensor) -> Tensor:
    """log x, but at least −100, which it also is (with no gradient) at 0."""
    nothing = arithmetic.le(x, 0.0)
    return where(nothing, -100.0, maximum(log(where(nothing, 1.0, x)), -100.0))


@widened
def binary_cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`−t log p − (1 − t) log(1 − p)` of probabilities, whose logarithms are kept above −100."""
    reduction = reduction_of("binary_cross_entropy", size_average, reduce, reduction)
    p, t = tensor_of("binary_cross_entropy", input), tensor_of("binary_cross_entropy", target)
    _same_shape("binary_cross_entropy", p, t)
    loss = neg(add(mul(t, _log_above(p)), mul(sub(1.0, t), _log_above(sub(1.0, p)))))
    return reduced("binary_cross_entropy", loss if weight is None else mul(loss, weight), reduction)


@widened
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Tensor:
    """`binary_cross_entropy` of `sigmoid(input)`, without overflow; what is positive counts `pos_weight` times."""
    reduction = reduction_of("binary_cross_entropy_with_logits", size_average, reduce, reduction)
    x = tensor_of("binary_cross_entropy_with_logits", input)
    t = tensor_of("binary_cross_entropy_with_logits", target)
    _same_shape("binary_cross_entropy_with_logits", x, t)
    bent = logsigmoid(x)
    if pos_weight is not None:
        bent = mul(add(mul(sub(pos_weight, 1.0), t), 1.0), bent)
    loss = sub(mul(sub(1.0, t), x), bent)
    return reduced("binary_cross_entropy_with_logits", loss if weight is None else mul(loss, weight), reduction)


@widened
def kl_div(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """`t · (log t − input)`, where `input` is log-probabilities. 'batchmean': the sum over the size of dimension 0."""
    if reduction != "batchmean" or size_average is not None or reduce is not None:
        reduction = reduction_of("kl_div", size_average, reduce, reduction)
    x, t = of_kinds("kl_div", input, "f"), of_kinds("kl_div", target, "f")
    if log_target:
        loss = mul(exp(t), sub(t, x))
    else:
        loss = sub(mul(t, log(where(arithmetic.eq(t, 0.0), 1.0, t))), mul(t, x))
    if reduction != "batchmean":
        return reduced("kl_div", loss, reduction)
    return div(reductions.sum(loss), float(x.shape[0] if x.ndim else 1))


@widened
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-likelihood of counts under a Poisson rate (or its logarithm); `full` adds Stirling's log t!."""
    reduction = reduction_of("poisson_nll_loss", size_average, reduce, reduction)
    x, t = tensor_of("poisson_nll_loss", input), tensor_of("poisson_nll_loss", target)
    loss = sub(exp(x), mul(t, x)) if log_input else sub(x, mul(t, log(add(x, float(eps)))))
    if full:
        counted = arithmetic.gt(t, 1.0)
        many = where(counted, t, 2.0)
        stirling = add(sub(mul(many, log(many)), many), mul(log(mul(many, 2 * math.pi)), 0.5))
        loss = add(loss, where(counted, stirling, 0.0))
    return reduced("poisson_nll_loss", loss, reduction)


@widened
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Minus the log-likelihood under a normal distribution; variances (or one number) are kept above `eps`.

    That has no part in the gradient. Negative variances count as small ones: to find them would mean to wait.
    """
    x, t = of_kinds("gaussian_nll_loss", input, "f"), tensor_of("gaussian_nll_loss", target)
    spread = creation.full_like(x, float(var)) if isinstance(var, (int, float)) else tensor_of("gaussian_nll_loss", var)
    if spread.shape != x.shape:
        if spread.shape == x.shape[:-1]:
            spread = shape_ops.unsqueeze(spread, -1)
        elif spread.ndim != x.ndim or [a for a, b in zip(spread.shape, x.shape, strict=True) if a != b] != [1]:
            raise ShapeError(f"gaussian_nll_loss: variances {spread.shape} do not fit the input {x.shape}")
    with emission_context.with_changes(grad=False):
        low = arithmetic.lt(spread, float(eps))
        missing = sub(float(eps), spread)
    spread = where(low, add(spread, missing), spread)
    loss = mul(add(log(spread), div(square(sub(x, t)), spread)), 0.5)
    if full:
        loss = add(loss, 0.5 * math.log(2 * math.pi))
    return reduced("gaussian_nll_loss", loss, reduction)


# classes


def _check_classes(name: str, x: Tensor, target: Tensor) -> None:
    if target.dtype.kind != "i":
        raise DTypeError(f"{name}: targets are class indices, integers, not {target.dtype}")
    expected = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if target.shape != expected:
        raise ShapeError(f"{name}: input {x.shape} needs targets of shape {expected}, not {target.shape}")


def _check_weight(name: str, x: Tensor, axis: int, weight: Tensor | None) -> None:
    if weight is not None and tensor_of(name, weight).shape != (x.shape[axis],):
        raise ShapeError(f"{name}: {x.shape[axis]} classes need a weight of that size, not of shape {weight.shape}")
    if weight is not None and weight.dtype is not x.dtype:
        raise DTypeError(
            f"{name}: the weight of classes is of the input's dtype, {x.dtype}, not of {weight.dtype}: cast it first"
        )


def _along(weight: Tensor, x: Tensor, axis: int) -> Tensor:
    """A weight for each class, along the axis of classes."""
    return shape_ops.reshape(weight, (-1, *(1,) * (x.ndim - axis - 1)))


def _pick(
    name: str,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Minus the scores of the target classes. Their class axis is 1, or 0 for a single one."""
    axis = 1 if scores.ndim > 1 else 0
    kept = None
    if ignore_index is not None:
        kept = arithmetic.ne(target, ignore_index)
        target = where(kept, target, 0)
    column = emission.emit("reshape", (target,), (*target.shape[:axis], 1, *target.shape[axis:]))
    loss = emission.emit("reshape", (emission.emit("gather", (scores, column), axis),), target.shape)
    counts = None
    if weight is not None:
        each = emission.emit("expand", (_along(weight, scores, axis),), scores.shape)
        counts = emission.emit("reshape", (emission.emit("gather", (each, column), axis),), target.shape)
        loss = mul(loss, counts)
    if kept is not None:
        counts = cast(kept, loss.dtype) if counts is None else where(kept, counts, 0.0)
    if smoothing:
        spread = scores if weight is None else mul(scores, _along(weight, scores, axis))
        even = div(reductions.sum(spread, axis), float(scores.shape[axis]))
        loss = add(mul(loss, 1 - smoothing), mul(even, smoothing))
    loss = neg(loss) if kept is None else where(kept, neg(loss), 0.0)
    if reduction == "mean" and counts is not None:
        return div(reductions.sum(loss), reductions.sum(counts))
    return reduced(name, loss, reduction)


@widened
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int | None = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probabilities, `input` of shape (N, C, …) or (C,), of the target classes of shape (N, …).

    The mean is weighted by the `weight` of each class, of shape (C,). Targets that equal `ignore_index` count for
    nothing (with None there are none such, which is cheaper); other targets out of range are an error at the fetch.
    """
    reduction = reduction_of("nll_loss", size_average, reduce, reduction)
    x, classes = of_kinds("nll_loss", input, "f"), tensor_of("nll_loss", target)
    _check_classes("nll_loss", x, classes)
    _check_weight("nll_loss", x, 1 if x.ndim > 1 else 0, weight)
    return _pick("nll_loss", x, classes, weight, ignore_index, reduction, 0.0)


@widened
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int | None = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross-entropy of logits (N, C, …) or (C,) with class indices (N, …) or class probabilities (N, C, …).

    The mean is weighted by the `weight` of each class, of shape (C,). Targets that equal `ignore_index` count for
    nothing (with None there are none such, which is cheaper); other targets out of range are an error at the fetch.
    """
    reduction = reduction_of("cross_entropy", size_average, reduce, reduction)
    x, known = tensor_of("cross_entropy", input), tensor_of("cross_entropy", target)
    if x.ndim == 0:
        raise ShapeError("cross_entropy: logits have a dimension of classes, not shape ()")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies from 0 to 1, not {label_smoothing}")
    axis = 1 if x.ndim > 1 else 0
    _check_weight("cross_entropy", x, axis, weight)
    if known.dtype.kind != "f":
        _check_classes("cross_entropy", x, known)
        scores = emission.emit("log_softmax", (x,), axis)
        return _pick("cross_entropy", scores, known, weight, ignore_index, reduction, label_smoothing)
    if ignore_index is not None and ignore_index >= 0:
        raise ValueError(f"cross_entropy: of probabilities no class is left out, so ignore_index is not {ignore_index}")
    if known.shape != x.shape:
        raise ShapeError(f"cross_entropy: logits {x.shape} and probabilities {known.shape} differ in shape")
    scores = emission.emit("log_softmax", (x,), axis)
    if label_smoothing:
        known = add(mul(known, 1 - label_smoothing), label_smoothing / x.shape[axis])
    if weight is not None:
        known = mul(known, _along(weight, x, axis))
    return reduced("cross_entropy", neg(reductions.sum(mul(scores, known), axis)), reduction)


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """`cross_entropy` of the logits that a linear map makes of (N, features) or (features,), by a weight (C, …, features).

    A bias has the shape (C, …), or (C,). `options` say how PyTorch divides the work, and mean nothing here.
    """
    x, w = tensor_of("linear_cross_entropy", input), tensor_of("linear_cross_entropy", linear_weight)
    if x.ndim not in (1, 2) or w.ndim < 2 or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear_cross_entropy: input {x.shape} and linear_weight {w.shape}")
    if w.ndim > 2 and x.ndim < 2:
        raise ShapeError(f"linear_cross_entropy: linear_weight {w.shape} wants a batch, not input {x.shape}")
    if ignore_index is not None and tensor_of("linear_cross_entropy", target).dtype.kind == "f":
        raise ValueError(
            "linear_cross_entropy: where the target is probabilities, no class is left out by ignore_index"
        )
    flat = shape_ops.reshape(w, (-1, w.shape[-1]))
    logits = emission.emit("matmul", (shape_ops.reshape(x, (-1, x.shape[-1])), shape_ops.transpose(flat, 0, 1)))
    logits = shape_ops.reshape(logits, (*x.shape[:-1], *w.shape[:-1]))
    if linear_bias is not None:
        bias = tensor_of("linear_cross_entropy", linear_bias)
        logits = add(logits, shape_ops.reshape(bias, (*bias.shape, *(1,) * (w.ndim - 1 - bias.ndim))))
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )
