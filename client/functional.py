"""Every function of tensors under one roof, and those that neural networks need: products, activations, losses.

What is here composes others; element-wise functions are in `arithmetic.py`, reductions in `reductions.py`, shapes and
indexing along an axis in `shaping.py`, what transformers need in `transformer.py`. It is `gt.nn.functional`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.errors import DTypeError, ShapeError

from . import (
    activations,
    arithmetic,
    arranging,
    complexes,
    convolution,
    elementwise,
    gathering,
    matrices,
    pooling,
    random,
    reductions,
    shaping,
    sorting,
    statistics,
)  # fmt: skip
from . import apply as emission
from .activations import *  # noqa: F403
from .arithmetic import *  # noqa: F403
from .arithmetic import abs, add, cast, div, eq, isclose, mul, ne, neg, square, sub, tensor_of, where
from .arranging import *  # noqa: F403
from .complexes import *  # noqa: F403
from .convolution import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .gathering import *  # noqa: F403
from .matrices import *  # noqa: F403
from .pooling import *  # noqa: F403
from .reductions import *  # noqa: F403
from .shaping import *  # noqa: F403
from .sorting import *  # noqa: F403
from .statistics import *  # noqa: F403
from .transformer import embedding, layer_norm, rms_norm, scaled_dot_product_attention

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "allclose", "bmm", "cross_entropy", "dot", "dropout", "embedding", "equal", "l1_loss", "layer_norm", "linear",
    "matmul", "mm", "mse_loss", "nll_loss", "rms_norm", "scaled_dot_product_attention",
]  # fmt: skip
__all__ += activations.__all__
__all__ += arithmetic.__all__
__all__ += arranging.__all__
__all__ += complexes.__all__
__all__ += convolution.__all__
__all__ += elementwise.__all__
__all__ += gathering.__all__
__all__ += matrices.__all__
__all__ += pooling.__all__
__all__ += reductions.__all__
__all__ += shaping.__all__
__all__ += sorting.__all__
__all__ += statistics.__all__


# products


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product: vectors count as a row or a column, leading dimensions broadcast."""
    a, b = tensor_of("matmul", input), tensor_of("matmul", other)
    left, right = a._value.spec.shape, b._value.spec.shape
    if len(left) >= 2 and len(right) >= 2:
        return emission.apply_two("matmul", a, b)
    if not left or not right:
        raise ShapeError(f"matmul: {left} @ {right}: both operands have at least one dimension")
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ShapeError(f"matmul: {left} @ {right}: inner sizes {left[-1]} and {inner} differ")
    shape = (*left[:-1],) if len(right) == 1 else (*right[:-2], right[-1])
    if len(left) == 1:
        a = emission.apply("reshape", (a,), (1, *left))
    if len(right) == 1:
        b = emission.apply("reshape", (b,), (*right, 1))
        shape = left[:-1]
    return emission.apply("reshape", (emission.apply("matmul", (a, b)),), shape)


def _product(name: str, input: Any, other: Any, ndim: int) -> Tensor:
    a, b = tensor_of(name, input), tensor_of(name, other)
    if a.ndim != ndim or b.ndim != ndim:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: both operands have {ndim} dimensions")
    if ndim == 3 and a.shape[0] != b.shape[0]:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: batch sizes {a.shape[0]} and {b.shape[0]} differ")
    return matmul(a, b)


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices."""
    return _product("mm", input, mat2, 2)


def bmm(input: Any, mat2: Any) -> Tensor:
    """The products of two batches of matrices."""
    return _product("bmm", input, mat2, 3)


def dot(input: Any, tensor: Any) -> Tensor:
    """The inner product of two vectors."""
    return _product("dot", input, tensor, 1)


def linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weightᵀ + bias`, with a weight of shape (out, in)."""
    if weight.ndim == 2:
        x = tensor_of("linear", input)
        if x.ndim and x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"linear: input {x.shape} and weight {weight.shape}: "
                f"inner sizes {x.shape[-1]} and {weight.shape[1]} differ"
            )
        weight = emission.apply_one("permute", weight, (1, 0))
    out = matmul(input, weight)
    return out if bias is None else arithmetic.add(out, bias)


def dropout(input: Any, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element is 0 with probability `p`, the others are scaled by 1 / (1 − p); outside training nothing is."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: a probability lies from 0 to 1, not {p}")
    x = tensor_of("dropout", input)
    if not training or p == 0:
        return x
    if p == 1:
        return mul(x, 0.0)
    draw = random.uniform_like(x)
    return where(emission.apply("ge", (draw, float(p))), mul(x, 1 / (1 - p)), 0.0)


# losses


def _reduced(name: str, loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return reductions.mean(loss)
    if reduction == "sum":
        return reductions.sum(loss)
    if reduction == "none":
        return loss
    raise ValueError(f"{name}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Tensor:
    """The squared differences, averaged, summed or as they are."""
    return _reduced("mse_loss", square(sub(input, target)), reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Tensor:
    """The absolute differences, averaged, summed or as they are."""
    return _reduced("l1_loss", abs(sub(input, target)), reduction)


def _check_classes(name: str, x: Tensor, target: Tensor) -> None:
    if target.dtype.kind != "i":
        raise DTypeError(f"{name}: targets are class indices, integers, not {target.dtype}")
    expected = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if target.shape != expected:
        raise ShapeError(f"{name}: input {x.shape} needs targets of shape {expected}, not {target.shape}")


def _pick(
    name: str, scores: Tensor, target: Tensor, ignore_index: int | None, reduction: str, smoothing: float
) -> Tensor:
    """Minus the scores of the target classes. Their class axis is 1, or 0 for a single one."""
    axis = 1 if scores.ndim > 1 else 0
    kept = None
    if ignore_index is not None:
        kept = ne(target, ignore_index)
        target = where(kept, target, 0)
    column = emission.apply("reshape", (target,), (*target.shape[:axis], 1, *target.shape[axis:]))
    loss = emission.apply("reshape", (emission.apply("gather", (scores, column), axis),), target.shape)
    if smoothing:
        even = reductions.mean(scores, axis)
        loss = add(mul(loss, 1 - smoothing), mul(even, smoothing))
    if kept is None:
        if reduction == "mean":
            return div(reductions.sum(loss), -float(loss._value.spec.size))
        return _reduced(name, neg(loss), reduction)
    loss = where(kept, neg(loss), 0.0)
    if reduction == "mean":
        return div(reductions.sum(loss), reductions.sum(cast(kept, loss.dtype)))
    return _reduced(name, loss, reduction)


def nll_loss(input: Any, target: Any, ignore_index: int | None = None, reduction: str = "mean") -> Tensor:
    """Minus the log-probabilities, `input` of shape (N, C, …) or (C,), of the target classes of shape (N, …).

    Targets that equal `ignore_index` count for nothing; other targets out of range are an error at the fetch.
    """
    x, classes = tensor_of("nll_loss", input), tensor_of("nll_loss", target)
    _check_classes("nll_loss", x, classes)
    return _pick("nll_loss", x, classes, ignore_index, reduction, 0.0)


def cross_entropy(
    input: Any, target: Any, ignore_index: int | None = None, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """The cross-entropy of logits (N, C, …) or (C,) with class indices (N, …) or class probabilities (N, C, …).

    Targets that equal `ignore_index` count for nothing. There is no silent −100: other targets out of range are an
    error at the fetch.
    """
    x, known = tensor_of("cross_entropy", input), tensor_of("cross_entropy", target)
    if x.ndim == 0:
        raise ShapeError("cross_entropy: logits have a dimension of classes, not shape ()")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies from 0 to 1, not {label_smoothing}")
    axis = 1 if x.ndim > 1 else 0
    if known.dtype.kind != "f":
        _check_classes("cross_entropy", x, known)
        scores = emission.apply("log_softmax", (x,), axis)
        return _pick("cross_entropy", scores, known, ignore_index, reduction, label_smoothing)
    if known.shape != x.shape:
        raise ShapeError(f"cross_entropy: logits {x.shape} and probabilities {known.shape} differ in shape")
    scores = emission.apply("log_softmax", (x,), axis)
    if label_smoothing:
        known = add(mul(known, 1 - label_smoothing), label_smoothing / x.shape[axis])
    loss = neg(reductions.sum(mul(scores, known), axis))
    return _reduced("cross_entropy", loss, reduction)


# comparisons that wait for an answer


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and equal elements; waits."""
    return input.shape == other.shape and bool(reductions.all(eq(input, other)))


def allclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close, as `isclose` has it; waits."""
    return bool(reductions.all(isclose(input, other, rtol, atol, equal_nan)))
