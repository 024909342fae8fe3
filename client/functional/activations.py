"""Activations: element-wise functions that networks put between their layers, and those that normalise along an axis.

PyTorch's names, arguments and defaults, also of the in-place forms; they are reached as `gt.nn.functional`. Branches are
chosen by `where`, so that at a kink the gradient is PyTorch's. Nothing with parameters of its own is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, creation, random, reductions, shape_ops
from gt.client.ops.arithmetic import (
    abs,
    add,
    div,
    exp,
    expm1,
    in_single,
    log1p,
    minimum,
    mul,
    neg,
    sigmoid,
    sub,
    tanh,
    where,
)
from gt.client.ops.elementwise import erf
from gt.client.ops.elementwise import log_sigmoid as logsigmoid
from gt.client.tensor import emission_context
from gt.client.tensor.operands import cast, convert, of_kinds, tensor_of
from gt.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "logsigmoid", "mish", "prelu", "relu6", "relu_",
    "rrelu", "rrelu_", "selu", "selu_", "silu", "softmin", "softplus", "softshrink", "softsign", "tanhshrink",
    "threshold", "threshold_",
]  # fmt: skip

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _finished(name: str, x: Tensor, out: Tensor, inplace: bool) -> Tensor:
    """`out`; written to `x` when it is wanted in place."""
    return x._write(name, out) if inplace else out


# piecewise linear


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` between `min_val` and `max_val`, which it does not leave. At these bounds the gradient is 0."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")
    x = of_kinds("hardtanh", input, "ifc")
    low, high = (convert("hardtanh", bound, x.dtype) for bound in (min_val, max_val))
    return _finished("hardtanh", x, where(x <= low, low, where(x >= high, high, x)), inplace)


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """`min(max(x, 0), 6)`."""
    return hardtanh(input, 0.0, 6.0, inplace)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """`x` above 0, else `negative_slope · x`."""
    x = tensor_of("leaky_relu", input)
    return _finished("leaky_relu", x, where(x > 0, x, mul(x, negative_slope)), inplace)


def prelu(input: Any, weight: Tensor) -> Tensor:
    """`x` above 0, else `weight · x`, with one weight, or one for each place along dimension 1."""
    x, slope = tensor_of("prelu", input), tensor_of("prelu", weight)
    if slope.numel() != 1:
        channels = x.shape[1] if x.ndim > 1 else 1
        if slope.shape != (channels,):
            raise ShapeError(f"prelu: input {x.shape} needs one weight or {channels}, not shape {slope.shape}")
        slope = shape_ops.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
    elif slope.ndim:
        slope = shape_ops.reshape(slope, ())
    return where(x > 0, x, mul(slope, x))


def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    generator: Any = None,
) -> Tensor:
    """`x` above 0, else `x` times a slope drawn between `lower` and `upper`; outside training, times their mean."""
    if lower > upper:
        raise ValueError(f"rrelu: lower {lower} is greater than upper {upper}")
    x = tensor_of("rrelu", input)
    slope: Any = (lower + upper) / 2
    if training:
        slope = add(mul(random.uniform_like(x, generator), float(upper - lower)), float(lower))
    return _finished("rrelu", x, where(x > 0, x, mul(x, slope)), inplace)


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """`x` above `threshold`, else `value`."""
    x = tensor_of("threshold", input)
    return _finished("threshold", x, where(x <= threshold, convert("threshold", value, x.dtype), x), inplace)


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """`x`, but 0 from −`lambd` to `lambd`."""
    x = tensor_of("hardshrink", input)
    return where(abs(x) <= lambd, 0.0, x)


def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """`x` moved towards 0 by `lambd`, but not beyond 0."""
    if lambd < 0:
        raise ValueError(f"softshrink: lambda is at least 0, not {lambd}")
    x = tensor_of("softshrink", input)
    return where(x > lambd, sub(x, lambd), where(x < -lambd, add(x, lambd), mul(x, 0.0)))


def hardsigmoid(input: Any, inplace: bool = False) -> Tensor:
    """`(x + 3) / 6`, kept from 0 to 1."""
    x = tensor_of("hardsigmoid", input)
    return _finished("hardsigmoid", x, div(relu6(add(x, 3.0)), 6.0), inplace)


def hardswish(input: Any, inplace: bool = False) -> Tensor:
    """`x · hardsigmoid(x)` (Howard et al., 2019, arXiv:1905.02244)."""
    x = tensor_of("hardswish", input)
    line = div(mul(x, add(x, 3.0)), 6.0)
    return _finished("hardswish", x, where(x <= -3, 0.0, where(x >= 3, x, line)), inplace)


# exponential


def _below(x: Tensor) -> Tensor:
    """`x` where it is below 0, else 0: what is exponentiated there and not chosen cannot overflow."""
    return where(x > 0, 0.0, x)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` above 0, else `alpha · (eˣ − 1)` (Clevert et al., 2016, arXiv:1511.07289)."""
    x = tensor_of("elu", input)
    return _finished("elu", x, where(x > 0, x, mul(expm1(_below(x)), alpha)), inplace)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """`elu`, scaled so that mean 0 and variance 1 are kept (Klambauer et al., 2017, arXiv:1706.02515)."""
    x = tensor_of("selu", input)
    return _finished("selu", x, mul(elu(x, _SELU_ALPHA), _SELU_SCALE), inplace)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`x` above 0, else `alpha · (e^(x / alpha) − 1)` (Barron, 2017, arXiv:1704.07483)."""
    if alpha == 0:
        raise ValueError("celu: alpha is not 0")
    x = tensor_of("celu", input)
    return _finished("celu", x, where(x > 0, x, mul(expm1(div(_below(x), alpha)), alpha)), inplace)


@in_single
def gelu(input: Any, approximate: str = "none") -> Tensor:
    """`x · Φ(x)`, or with 'tanh' an approximation of it (Hendrycks and Gimpel, 2016, arXiv:1606.08415)."""
    x = tensor_of("gelu", input)
    if approximate == "none":
        return mul(mul(x, 0.5), add(erf(mul(x, math.sqrt(0.5))), 1.0))
    if approximate != "tanh":
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    inner = mul(add(x, mul(arithmetic.pow(x, 3), 0.044715)), math.sqrt(2 / math.pi))
    return mul(mul(x, 0.5), add(tanh(inner), 1.0))


def silu(input: Any, inplace: bool = False) -> Tensor:
    """`x / (1 + e⁻ˣ)`."""
    x = tensor_of("silu", input)
    return _finished("silu", x, mul(x, sigmoid(x)), inplace)


@in_single
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + e^(βx)) / β`; above `threshold` the line that it approaches."""
    x = tensor_of("softplus", input)
    scaled = x if beta == 1 else mul(x, beta)
    soft = log1p(exp(minimum(scaled, threshold)))
    return where(scaled > threshold, x, soft if beta == 1 else div(soft, beta))


def mish(input: Any, inplace: bool = False) -> Tensor:
    """`x · tanh(softplus(x))` (Misra, 2019, arXiv:1908.08681)."""
    x = tensor_of("mish", input)
    return _finished("mish", x, _mish(x), inplace)


@in_single
def _mish(x: Tensor) -> Tensor:
    return mul(x, tanh(softplus(x)))


def softsign(input: Any) -> Tensor:
    """`x / (1 + |x|)`."""
    x = tensor_of("softsign", input)
    return div(x, add(abs(x), 1))


def tanhshrink(input: Any) -> Tensor:
    """`x − tanh(x)`."""
    x = tensor_of("tanhshrink", input)
    return sub(x, tanh(x))


# along an axis


def glu(input: Any, dim: int = -1) -> Tensor:
    """The first half along `dim`, gated by the sigmoid of the second (Dauphin et al., 2017, arXiv:1612.08083)."""
    x = tensor_of("glu", input)
    at = shape_ops.axis_of("glu", dim, x.shape)
    half, odd = divmod(x.shape[at], 2)
    if odd:
        raise ShapeError(f"glu: dimension {at} of shape {x.shape} has no two halves")
    return mul(shape_ops.narrow(x, at, 0, half), sigmoid(shape_ops.narrow(x, at, half, half)))


def softmin(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The softmax of `−x`."""
    x = tensor_of("softmin", input)
    if x.dtype.kind not in "fc" and dtype is None:
        raise DTypeError(f"softmin takes floating-point numbers, not {x.dtype}")
    return reductions.softmax(neg(x), dim, dtype)


def gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution; `hard`: one-hot values with the soft sample's gradient.

    Jang et al., 2017, arXiv:1611.01144. The noise comes from uniform numbers, which are 0 once in 2²⁴ times: then it is
    as if they were 2⁻²⁵.
    """
    x = tensor_of("gumbel_softmax", logits)
    with emission_context.with_changes(grad=False):
        uniform = arithmetic.maximum(random.uniform_like(x), 2.0**-25)
        noise = neg(arithmetic.log(neg(arithmetic.log(uniform))))
    soft = reductions.softmax(div(add(x, noise), float(tau)), dim)
    if not hard:
        return soft
    places = reductions.argmax(soft.detach(), dim, True)
    at = shape_ops.axis_of("gumbel_softmax", dim, x.shape)
    row = shape_ops.reshape(creation.arange(x.shape[at]), (-1, *(1,) * (x.ndim - at - 1)))
    chosen = cast(arithmetic.eq(row, places), soft.dtype)
    return add(sub(chosen, soft.detach()), soft)


def _inplace(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, **options, inplace=True)

    written.__name__ = written.__qualname__ = name
    written.__doc__ = f"`{function.__name__}`, written to its argument."
    return written


relu_ = _inplace(arithmetic.relu, "relu_")
hardtanh_ = _inplace(hardtanh, "hardtanh_")
leaky_relu_ = _inplace(leaky_relu, "leaky_relu_")
rrelu_ = _inplace(rrelu, "rrelu_")
threshold_ = _inplace(threshold, "threshold_")
elu_ = _inplace(elu, "elu_")
selu_ = _inplace(selu, "selu_")
celu_ = _inplace(celu, "celu_")
