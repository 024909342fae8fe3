"""Activations: the element-wise functions between the layers of a network, composed of others.

Those that are one instruction (`relu`, `sigmoid`, `tanh`) are in `arithmetic.py`, `softmax` is in `reductions.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.errors import DTypeError, ShapeError

from . import arithmetic, elementwise, reductions, shaping
from .arithmetic import (
    abs,
    add,
    div,
    exp,
    ge,
    gt,
    le,
    log1p,
    lt,
    minimum,
    mul,
    neg,
    pow,
    relu,
    sigmoid,
    sub,
    tanh,
    tensor_of,
    where,
)

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "prelu", "relu6", "rrelu", "selu", "silu", "softmin", "softplus", "softshrink", "softsign", "tanhshrink", "threshold",
]  # fmt: skip


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """`x · Φ(x)` (Hendrycks and Gimpel, 2016, arXiv:1606.08415); with 'tanh' in the form that needs no error function."""
    x = tensor_of("gelu", input)
    if approximate == "none":
        return mul(mul(x, 0.5), add(elementwise.erf(mul(x, math.sqrt(0.5))), 1.0))
    if approximate != "tanh":
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    inner = mul(add(x, mul(pow(x, 3), 0.044715)), math.sqrt(2 / math.pi))
    return mul(mul(x, 0.5), add(tanh(inner), 1.0))


def silu(input: Any, inplace: bool = False) -> Tensor:
    """`x / (1 + e⁻ˣ)`."""
    x = tensor_of("silu", input)
    return mul(x, sigmoid(x))


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + e^(βx)) / β`; above `threshold` the line that it approaches."""
    x = tensor_of("softplus", input)
    scaled = x if beta == 1 else mul(x, beta)
    soft = log1p(exp(minimum(scaled, threshold)))
    return where(gt(scaled, threshold), x, soft if beta == 1 else div(soft, beta))


def mish(input: Any, inplace: bool = False) -> Tensor:
    """`x · tanh(softplus(x))`."""
    x = tensor_of("mish", input)
    return mul(x, tanh(softplus(x)))


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """`x` above 0, else `negative_slope · x`."""
    x = tensor_of("leaky_relu", input)
    return where(gt(x, 0), x, mul(x, negative_slope))


def prelu(input: Any, weight: Any) -> Tensor:
    """`x` above 0, else `weight · x`, with one weight for all or one for each channel (dimension 1)."""
    x, slope = tensor_of("prelu", input), tensor_of("prelu", weight)
    if slope.numel() != 1:
        if x.ndim < 2 or slope.shape != (x.shape[1],):
            raise ShapeError(f"prelu: weights of shape {slope.shape} for the channels of shape {x.shape}")
        slope = shaping.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    elif slope.ndim:
        slope = shaping.reshape(slope, ())
    return where(gt(x, 0), x, mul(x, slope))


def rrelu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """`x` above 0, else `x` times the middle of `lower` and `upper`, in training a number drawn between them."""
    x = tensor_of("rrelu", input)
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    from . import random  # which needs creation, and that the rest

    slope = add(mul(random.uniform_like(x), upper - lower), lower)
    return where(ge(x, 0), x, mul(x, slope))


def _exponential(x: Tensor, alpha: float, scale: float) -> Tensor:
    """`x` above 0, else `alpha · (e^(scale·x) − 1)`; what is not chosen is kept from overflowing."""
    low = minimum(x, 0.0)
    return where(gt(x, 0), x, mul(arithmetic.expm1(low if scale == 1 else mul(low, scale)), alpha))


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` above 0, else `alpha · (eˣ − 1)`."""
    return _exponential(tensor_of("elu", input), alpha, 1.0)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` above 0, else `alpha · (e^(x / alpha) − 1)`."""
    return _exponential(tensor_of("celu", input), alpha, 1 / alpha)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """The scaled `elu` that keeps mean and variance (Klambauer and others, 2017, arXiv:1706.02515)."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return mul(_exponential(tensor_of("selu", input), alpha, 1.0), scale)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` kept from `min_val` to `max_val`; no gradient flows at the bounds."""
    x = tensor_of("hardtanh", input)
    low, high = (arithmetic.convert("hardtanh", bound, x.dtype) for bound in (min_val, max_val))
    return where(le(x, low), low, where(ge(x, high), high, x))


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """`x` kept from 0 to 6."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Any, inplace: bool = False) -> Tensor:
    """0 below −3, 1 above 3, and the line between."""
    return div(hardtanh(add(tensor_of("hardsigmoid", input), 3.0), 0.0, 6.0), 6.0)


def hardswish(input: Any, inplace: bool = False) -> Tensor:
    """`x · hardsigmoid(x)`."""
    x = tensor_of("hardswish", input)
    return where(le(x, -3.0), mul(x, 0.0), where(ge(x, 3.0), x, mul(x, div(add(x, 3.0), 6.0))))


def softsign(input: Any) -> Tensor:
    """`x / (1 + |x|)`."""
    x = tensor_of("softsign", input)
    return div(x, add(abs(x), 1))


def logsigmoid(input: Any) -> Tensor:
    """`log(1 / (1 + e⁻ˣ))`, without overflow."""
    x = tensor_of("logsigmoid", input)
    return neg(add(relu(neg(x)), log1p(exp(neg(abs(x))))))


def tanhshrink(input: Any) -> Tensor:
    """`x − tanh(x)`."""
    x = tensor_of("tanhshrink", input)
    return sub(x, tanh(x))


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """0 from −λ to λ, else `x`."""
    x = tensor_of("hardshrink", input)
    return where(le(abs(x), lambd), 0.0, x)


def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """0 from −λ to λ, else `x` nearer to 0 by λ."""
    if lambd < 0:
        raise ValueError(f"softshrink: λ is not negative, as {lambd} is")
    x = tensor_of("softshrink", input)
    return where(gt(x, lambd), sub(x, lambd), where(lt(x, -lambd), add(x, lambd), mul(x, 0.0)))


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """`x` above `threshold`, else `value`."""
    x = tensor_of("threshold", input)
    return where(le(x, threshold), arithmetic.convert("threshold", value, x.dtype), x)


def glu(input: Any, dim: int = -1) -> Tensor:
    """The first half along an axis, times the sigmoid of the second."""
    x = tensor_of("glu", input)
    at = shaping.axis_of("glu", dim, x.shape)
    if x.shape[at] % 2:
        raise ShapeError(f"glu: dimension {at} of shape {x.shape} has no halves")
    first, second = shaping.split(x, x.shape[at] // 2 or 1, at) if x.shape[at] else (x, x)
    return mul(first, sigmoid(second))


def softmin(input: Any, dim: int | None = None, dtype: Any = None) -> Tensor:
    """`softmax(−x)`."""
    x = tensor_of("softmin", input)
    if x.dtype.kind not in "fc" and dtype is None:
        raise DTypeError(f"softmin takes floating-point numbers, not {x.dtype}")
    return reductions.softmax(neg(x), dim, dtype)
