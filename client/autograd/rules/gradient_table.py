"""The gradient table: for each op its gradient rule, or its name in the explicit list of those without one.

A rule says what each operand's gradient reads and computes it (`GradientRule`). Rules are written with the same
functions as any program, so that they have gradients themselves; shapes are moved by bare instructions, which make no
views. Nothing here may look at values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gt.client.functional import attention, convolution
from gt.client.ops import arithmetic, complex_numbers, creation, elementwise
from gt.client.ops.linalg import decompositions
from gt.client.tensor import deferred_gradients, emission
from gt.client.tensor.broadcasting import unbroadcast
from gt.client.tensor.operands import binary, cast
from gt.client.tensor.tape import GradientRule, TapeNode
from gt.errors import GTError
from gt.ir.dtypes import int64

if TYPE_CHECKING:
    from gt.client.tensor.deferred_gradients import DeferredGradient
    from gt.client.tensor.tensor import Tensor

Parts = tuple["Tensor | DeferredGradient | None", ...]
_ERF_SLOPE: Final = 2 / math.sqrt(math.pi)
"""The slope of erf at 0."""


def _each(node: TapeNode, *parts: Callable[[], Tensor]) -> Parts:
    """The gradients that are wanted, each in the shape of its operand."""
    return tuple([unbroadcast(part(), node.shape(i)) if node.wants[i] else None for i, part in enumerate(parts)])


def _where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return emission.emit("where", (condition, a, b))


def _zeros(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    return emission.emit("full", (0.0,), shape, g.dtype)


def _reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return emission.emit("reshape", (x,), shape)


def _conj(x: Any) -> Any:
    """The conjugate of what a gradient is multiplied with; of a real tensor or number itself.

    Of a complex z = x + iy the gradient is ∂L/∂x + i·∂L/∂y, as PyTorch has it: through an analytic f it is that of f(z)
    times the conjugate of f′(z).
    """
    if isinstance(x, (int, float, complex)):
        return x.conjugate()
    return emission.emit("conj", (x,)) if x.dtype.kind == "c" else x


# element-wise


def _abs(n: TapeNode, g: Tensor) -> Parts:
    x = n.operand(0)
    return (cast(g, x.dtype) * elementwise.sgn(x),)


def _acosh(n: TapeNode, g: Tensor) -> Parts:
    x = n.operand(0)
    if x.dtype.kind == "c":  # √(x + 1)·√(x − 1) is not always √(x² − 1)
        return (g * _conj(arithmetic.rsqrt(x + 1.0) * arithmetic.rsqrt(x - 1.0)),)
    return (g * arithmetic.rsqrt(arithmetic.square(x) - 1.0),)


def _pow(n: TapeNode, g: Tensor) -> Parts:
    """d aᵇ = b·aᵇ⁻¹ da (0 where b = 0) + aᵇ·log a db (0 where a = 0 ≤ b)."""
    a, b = n.operand(0), n.operand(1)

    def base() -> Tensor:
        if not n.is_tensor(1):
            return g.mul(_conj(a ** (b - 1) * b)) if b != 0 else g * 0.0
        slope = b * arithmetic.pow(a, b - 1)
        return g.mul(_conj(_where(b == 0, 0.0, slope)))

    def exponent() -> Tensor:
        o, real_b = n.result(), complex_numbers.real(b)
        if not n.is_tensor(0):
            if a == 0:
                return _where(real_b >= 0, 0.0, g * _conj(o))
            return g.mul(_conj(o * arithmetic.log(creation.full((), a, dtype=g.dtype))))
        vanishes = arithmetic.logical_and(a == 0, real_b >= 0)
        return _where(vanishes, 0.0, g * _conj(o * arithmetic.log(_where(vanishes, 1.0, a))))

    return _each(n, base, exponent)


def _extreme(chosen: str) -> Callable[[TapeNode, Tensor], Parts]:
    """The larger (or smaller) operand gets it; equal tensors share it, a tensor equal to a number keeps it."""

    def part(n: TapeNode, g: Tensor, mine: int, other: int) -> Tensor:
        a, b = n.operand(mine), n.operand(other)
        if not n.is_tensor(other):
            return _where(binary({"gt": "ge", "lt": "le"}[chosen], a, b), g, 0.0)
        return _where(a == b, g * 0.5, _where(binary(chosen, a, b), g, 0.0))

    return lambda n, g: _each(n, lambda: part(n, g, 0, 1), lambda: part(n, g, 1, 0))


def _atan2(n: TapeNode, g: Tensor) -> Parts:
    """d atan2(a, b) = (b da − a db) / (a² + b²)."""
    a, b = n.operand(0), n.operand(1)
    slope = g / (a * a + b * b)
    return _each(n, lambda: slope * b, lambda: -(slope * a))


def _copysign(n: TapeNode, g: Tensor) -> Parts:
    """The sign that was taken from `a` to its result; 0 where `a` is 0. The sign's own gradient is 0."""
    a, o = n.operand(0), n.result()
    if not n.is_tensor(0):
        return _each(n, lambda: g, lambda: g * 0.0)
    zero = a == 0
    return _each(n, lambda: g * _where(zero, 0.0, o / _where(zero, 1.0, a)), lambda: g * 0.0)


def _zeta(n: TapeNode, g: Tensor) -> Parts:
    """dζ(s, q) = −s · ζ(s + 1, q) dq."""

    def refuse() -> Tensor:
        raise GTError("zeta has no gradient to its first operand: .detach() it")

    s, q = n.operand(0), n.operand(1)
    return _each(n, refuse, lambda: g * (s * emission.emit("zeta", (s + 1.0, q)) * -1.0))


def _gammainc(sign: float) -> Callable[[TapeNode, Tensor], Parts]:
    """dP(a, x) = e⁻ˣ xᵃ⁻¹ / Γ(a) dx."""

    def rule(n: TapeNode, g: Tensor) -> Parts:
        def refuse() -> Tensor:
            raise GTError(f"{n.signature.op} has no gradient to its first operand: .detach() it")

        a, x = n.operand(0), n.operand(1)
        order = a if n.is_tensor(0) else creation.full((), a, dtype=g.dtype)
        size = arithmetic.exp(elementwise.xlogy(order - 1.0, x) - x - elementwise.lgamma(order))
        return _each(n, refuse, lambda: g * (size * sign))

    return rule


def _bessel(n: TapeNode, op: str) -> Tensor:
    """Another special function of the operand."""
    return emission.emit(op, (n.operand(0),))


def _over_x(n: TapeNode) -> Tensor:
    """The result over the operand, of a function that begins with x / 2: ½ at 0."""
    x = n.operand(0)
    zero = x == 0
    return _where(zero, 0.5, n.result() / _where(zero, 1.0, x))


# reductions


def _kept(n: TapeNode, reduced: Tensor) -> Tensor:
    """Something of a reduction's shape, with the reduced axes kept."""
    if n.attribute("keepdims"):
        return reduced
    axes = n.attribute("axes")
    return _reshape(reduced, tuple(1 if axis in axes else size for axis, size in enumerate(n.shape(0))))


def _spread(n: TapeNode, reduced: Tensor) -> Tensor:
    """Something of a reduction's shape, in the operand's shape."""
    kept, shape = _kept(n, reduced), n.shape(0)
    return kept if kept.shape == shape else emission.emit("expand", (kept,), shape)


def _prod(n: TapeNode, g: Tensor) -> Parts:
    """The product of the others: with one zero only that zero's is not 0, with two zeros none's is."""
    x, axes = n.operand(0), n.attribute("axes")
    if n.create_graph:
        return (_kept(n, g) * _conj(_others(x, axes)),)
    zero = x == 0
    others = emission.emit("prod", (_where(zero, 1.0, x),), axes, True)
    zeros = emission.emit("sum", (cast(zero, g.dtype),), axes, True)
    alone = _where(zeros == 1, others, 0.0)
    rest = _where(zeros == 0, others, 0.0) / _where(zero, 1.0, x)
    return (_kept(n, g) * _conj(_where(zero, alone, rest)),)


def _others(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """For each element the product of all others along `axes`, without a division: right where there are zeros, and so
    are its own derivatives."""
    order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    moved = emission.emit("permute", (x,), order)
    rows = math.prod(moved.shape[: x.ndim - len(axes)])
    size = math.prod(moved.shape[x.ndim - len(axes) :])
    out = _reshape(_exclusive(_reshape(moved, (rows, size))), moved.shape)
    return emission.emit("permute", (out,), tuple(order.index(axis) for axis in range(x.ndim)))


def _exclusive(x: Tensor) -> Tensor:
    """`_others` along the last axis of a matrix, by halves: each half is multiplied into what its pairs miss."""
    rows, size = x.shape
    if size < 2:
        return emission.emit("full", (1.0,), x.shape, x.dtype)
    half = (size + 1) // 2
    low = emission.emit("slice", (x, 0), (1,), (half,), (1,))
    high = emission.emit("slice", (x, half), (1,), (size - half,), (1,))
    if size % 2:
        high = emission.emit("cat", (high, emission.emit("full", (1.0,), (rows, 1), x.dtype)), 1)
    missing = _exclusive(low * high)
    both = emission.emit("cat", (missing * high, missing * low), 1)
    return emission.emit("slice", (both, 0), (1,), (size,), (1,)) if size % 2 else both


def _reduced_extreme(n: TapeNode, g: Tensor) -> Parts:
    equal = cast(n.operand(0) == _kept(n, n.result()), g.dtype)
    return (equal * (_kept(n, g) / emission.emit("sum", (equal,), n.attribute("axes"), True)),)


# shapes


def _permute(n: TapeNode, g: Tensor) -> Parts:
    axes = n.attribute("axes")
    return (emission.emit("permute", (g,), tuple(axes.index(axis) for axis in range(len(axes)))),)


def _cat(n: TapeNode, g: Tensor) -> Parts:
    axis, start = n.attribute("axis"), 0
    parts: list[Tensor | None] = []
    for i in range(len(n.edges)):
        size = n.shape(i)[axis]
        wanted = n.needs(i)
        parts.append(emission.emit("slice", (g, start if size else 0), (axis,), (size,), (1,)) if wanted else None)
        start += size
    return tuple(parts)


def _window(n: TapeNode) -> tuple[Any, ...]:
    return n.attribute("axes"), n.attribute("sizes"), n.attribute("steps")


def _slice(n: TapeNode, g: Tensor) -> Parts:
    starts = n.scalars(1)
    return (deferred_gradients.slice_gradient(n.shape(0), g, starts, _window(n)), *(None for _ in starts))


def _update_slice(n: TapeNode, g: Tensor) -> Parts:
    starts = n.scalars(2)
    outside = inside = None
    if n.needs(0):
        outside = emission.emit("update_slice", (g, _zeros(g, n.shape(1)), *starts), *_window(n))
    if n.needs(1):
        inside = emission.emit("slice", (g, *starts), *_window(n))
    return (outside, inside, *(None for _ in starts))


# indexing along an axis


def _gather(n: TapeNode, g: Tensor) -> Parts:
    return emission.emit("scatter_add", (_zeros(g, n.shape(0)), n.operand(1), g), n.attribute("axis")), None


def _scatter_add(n: TapeNode, g: Tensor) -> Parts:
    values = emission.emit("gather", (g, n.operand(1)), n.attribute("axis")) if n.needs(2) else None
    return g, None, values


def _scatter(n: TapeNode, g: Tensor) -> Parts:
    """Nothing flows to what was written over: of the values for one place, to the last."""
    index, axis, shape = n.operand(1), n.attribute("axis"), n.shape(1)
    kept = values = None
    if n.needs(0):
        kept = emission.emit("scatter", (g, index, _zeros(g, shape)), axis)
    if n.needs(2):
        numbers = _reshape(emission.emit("arange", (0, 1), (math.prod(shape),), int64), shape)
        whole = emission.emit("full", (0,), n.shape(0), int64)
        last = emission.emit("gather", (emission.emit("scatter", (whole, index, numbers), axis), index), axis)
        values = _where(last == numbers, emission.emit("gather", (g, index), axis), 0.0)
    return kept, None, values


def _from_the_end(x: Tensor, axis: int) -> Tensor:
    """Sums along an axis from its end."""
    size = x.shape[axis]
    if size == 0:
        return x
    window = (axis,), (size,), (-1,)
    turned = emission.emit("cumsum", (emission.emit("slice", (x, size - 1), *window),), axis)
    return emission.emit("slice", (turned, size - 1), *window)


def _cumprod(n: TapeNode, g: Tensor) -> Parts:
    """Before the first zero it is Σ g·o / x from there on; at that zero the same with the products that leave it out."""
    x, axis = n.operand(0), n.attribute("axis")
    zero = x == 0
    count = emission.emit("cumsum", (cast(zero, "int64"),), axis)
    first = arithmetic.logical_and(zero, count == 1)
    others = emission.emit("cumprod", (_where(first, 1.0, x),), axis)
    before = _from_the_end(g * _conj(n.result()), axis) / _conj(_where(zero, 1.0, x))
    return (_where(count == 0, before, _where(first, _from_the_end(g * _conj(others), axis), 0.0)),)


def _take(n: TapeNode, g: Tensor) -> Parts:
    axis = n.attribute("axis")
    return emission.emit("segment_sum", (g, n.operand(1)), axis, n.shape(0)[axis]), None


# linear algebra


def _swap_last(x: Tensor) -> Tensor:
    axes = list(range(x.ndim))
    axes[-2:] = axes[-1], axes[-2]
    return emission.emit("permute", (x,), tuple(axes))


def _matmul(n: TapeNode, g: Tensor) -> Parts:
    """da = g bᵀ, db = aᵀ g (of complex matrices bᴴ and aᴴ).

    Where one matrix b met a batch, the batch becomes rows, so that no product is summed.
    """

    left = right = None
    if n.wants[0]:
        left = unbroadcast(emission.emit("matmul", (g, _swap_last(_conj(n.operand(1))))), n.shape(0))
    if n.wants[1]:
        a = _conj(n.operand(0))
        if len(n.shape(1)) == 2:
            right = deferred_gradients.matrix_gradient(a, g)
        else:
            right = unbroadcast(emission.emit("matmul", (_swap_last(a), g)), n.shape(1))
    return left, right


def _solve(n: TapeNode, g: Tensor) -> Parts:
    right = decompositions.solved(n, g)
    return _each(n, lambda: decompositions.solve(n, right), lambda: right)


def _mirror(g: Tensor, axis: int, size: int, weight: float) -> Tensor:
    """Half a spectrum of `size` points, with a weight on what stands for two of them."""
    count = size // 2 + 1
    place = emission.emit("arange", (0, 1), (count,), int64)
    single = arithmetic.logical_or(place == 0, place * 2 == size)
    weights = arithmetic.where(single, creation.ones((count,), dtype=g.dtype.to_real()), weight)
    return g * _reshape(weights, (count,) + (1,) * (g.ndim - 1 - axis))


def _rfft(n: TapeNode, g: Tensor) -> Parts:
    axis = n.attribute("axis")
    size = n.shape(0)[axis]
    return (emission.emit("irfft", (_mirror(g, axis, size, 0.5),), axis, size),)


def _irfft(n: TapeNode, g: Tensor) -> Parts:
    axis, size = n.attribute("axis"), n.attribute("size")
    return (_mirror(emission.emit("rfft", (g,), axis), axis, size, 2.0),)


def _conv(n: TapeNode, g: Tensor) -> Parts:
    attributes = n.signature.attributes
    x = convolution.input_gradient(n.shape(0), n.operand(1), g, attributes) if n.needs(0) else None
    w = convolution.weight_gradient(n.operand(0), n.shape(1), g, attributes) if n.needs(1) else None
    return x, w


def _windows(n: TapeNode, g: Tensor) -> Parts:
    axes = n.attribute("axes")
    sizes = tuple(n.shape(0)[axis] for axis in axes)
    return (emission.emit("overlap_add", (g,), axes, sizes, n.attribute("strides"), n.attribute("dilations")),)


def _overlap_add(n: TapeNode, g: Tensor) -> Parts:
    axes = n.attribute("axes")
    sizes = n.shape(0)[g.ndim :]
    return (emission.emit("windows", (g,), axes, sizes, n.attribute("strides"), n.attribute("dilations")),)


def _max_pool(n: TapeNode, g: Tensor) -> Parts:
    return (emission.emit("max_pool_grad", (n.operand(0), n.result(), g), *n.signature.attributes.values()),)


def _max_pool_grad(n: TapeNode, g: Tensor) -> Parts:
    """Of `g`, in the input's shape, the element at each window's largest one, in the pooled shape. It is linear in that operand
    alone: where the largest element lies has no derivative."""
    if not n.needs(2):
        return None, None, None
    x, form, last = n.operand(0), tuple(n.signature.attributes.values()), len(n.shape(0))
    flat = [
        _reshape(emission.emit("windows", (each,), *form), (*n.shape(2), math.prod(n.attribute("sizes"))))
        for each in (x, g)
    ]
    at = emission.emit("argmax", (flat[0],), last, True)
    return None, None, _reshape(emission.emit("gather", (flat[1], at), last), n.shape(2))


def _softmax(n: TapeNode, g: Tensor) -> Parts:
    o, axis = n.result(), n.attribute("axis")
    weighted = g * o
    return (weighted - o * emission.emit("sum", (weighted,), (axis,), True),)


def _log_softmax(n: TapeNode, g: Tensor) -> Parts:
    total = emission.emit("sum", (g,), (n.attribute("axis"),), True)
    return (g - arithmetic.exp(n.result()) * total,)


GRADIENTS: Final[dict[str, GradientRule]] = {
    # element-wise, one operand
    "neg": GradientRule(("",), lambda n, g: (-g,)),
    "abs": GradientRule(("0",), _abs),
    "sign": GradientRule(("",), lambda n, g: (g * 0.0,)),
    "exp": GradientRule(("o",), lambda n, g: (g * _conj(n.result()),)),
    "exp2": GradientRule(("o",), lambda n, g: (g * _conj(n.result() * math.log(2)),)),
    "expm1": GradientRule(("o",), lambda n, g: (g * _conj(n.result() + 1.0),)),
    "log": GradientRule(("0",), lambda n, g: (g / _conj(n.operand(0)),)),
    "log2": GradientRule(("0",), lambda n, g: (g / _conj(n.operand(0) * math.log(2)),)),
    "log10": GradientRule(("0",), lambda n, g: (g / _conj(n.operand(0) * math.log(10)),)),
    "log1p": GradientRule(("0",), lambda n, g: (g / _conj(n.operand(0) + 1.0),)),
    "sqrt": GradientRule(("o",), lambda n, g: (g * 0.5 / _conj(n.result()),)),
    "rsqrt": GradientRule(("o",), lambda n, g: (g * -0.5 * _conj(n.result() ** 3),)),
    "square": GradientRule(("0",), lambda n, g: (g * (_conj(n.operand(0)) * 2.0),)),
    "reciprocal": GradientRule(("o",), lambda n, g: (-g * _conj(arithmetic.square(n.result())),)),
    "sin": GradientRule(("0",), lambda n, g: (g * _conj(arithmetic.cos(n.operand(0))),)),
    "cos": GradientRule(("0",), lambda n, g: (-g * _conj(arithmetic.sin(n.operand(0))),)),
    "tan": GradientRule(("o",), lambda n, g: (g * _conj(arithmetic.square(n.result()) + 1.0),)),
    "asin": GradientRule(("0",), lambda n, g: (g * _conj(arithmetic.rsqrt(1.0 - arithmetic.square(n.operand(0)))),)),
    "acos": GradientRule(("0",), lambda n, g: (-g * _conj(arithmetic.rsqrt(1.0 - arithmetic.square(n.operand(0)))),)),
    "atan": GradientRule(("0",), lambda n, g: (g / _conj(arithmetic.square(n.operand(0)) + 1.0),)),
    "sinh": GradientRule(("0",), lambda n, g: (g * _conj(elementwise.cosh(n.operand(0))),)),
    "cosh": GradientRule(("0",), lambda n, g: (g * _conj(elementwise.sinh(n.operand(0))),)),
    "tanh": GradientRule(("o",), lambda n, g: (g * _conj(1.0 - arithmetic.square(n.result())),)),
    "asinh": GradientRule(("0",), lambda n, g: (g * _conj(arithmetic.rsqrt(arithmetic.square(n.operand(0)) + 1.0)),)),
    "acosh": GradientRule(("0",), _acosh),
    "atanh": GradientRule(("0",), lambda n, g: (g / _conj(1.0 - arithmetic.square(n.operand(0))),)),
    "erf": GradientRule(("0",), lambda n, g: (g * (arithmetic.exp(-arithmetic.square(n.operand(0))) * _ERF_SLOPE),)),
    "erfc": GradientRule(("0",), lambda n, g: (g * (arithmetic.exp(-arithmetic.square(n.operand(0))) * -_ERF_SLOPE),)),
    "erfinv": GradientRule(("o",), lambda n, g: (g * (arithmetic.exp(arithmetic.square(n.result())) / _ERF_SLOPE),)),
    "lgamma": GradientRule(("0",), lambda n, g: (g * elementwise.digamma(n.operand(0)),)),
    "digamma": GradientRule(("0",), lambda n, g: (g * elementwise.polygamma(1, n.operand(0)),)),
    "dawsn": GradientRule(("0o",), lambda n, g: (g * (1.0 - n.operand(0) * n.result() * 2.0),)),
    "erfcx": GradientRule(("0o",), lambda n, g: (g * (n.operand(0) * n.result() * 2.0 - _ERF_SLOPE),)),
    "ndtri": GradientRule(
        ("o",), lambda n, g: (g * (arithmetic.exp(arithmetic.square(n.result()) * 0.5) * math.sqrt(2 * math.pi)),)
    ),
    "i0": GradientRule(("0",), lambda n, g: (g * _bessel(n, "i1"),)),
    "i0e": GradientRule(("0o",), lambda n, g: (g * (_bessel(n, "i1e") - arithmetic.sign(n.operand(0)) * n.result()),)),
    "i1": GradientRule(("0o",), lambda n, g: (g * (_bessel(n, "i0") - _over_x(n)),)),
    "i1e": GradientRule(
        ("0o",),
        lambda n, g: (g * (_bessel(n, "i0e") - _over_x(n) - arithmetic.sign(n.operand(0)) * n.result()),),
    ),
    "bessel_j0": GradientRule(("0",), lambda n, g: (-g * _bessel(n, "bessel_j1"),)),
    "bessel_j1": GradientRule(("0o",), lambda n, g: (g * (_bessel(n, "bessel_j0") - _over_x(n)),)),
    "bessel_y0": GradientRule(("0",), lambda n, g: (-g * _bessel(n, "bessel_y1"),)),
    "bessel_y1": GradientRule(("0o",), lambda n, g: (g * (_bessel(n, "bessel_y0") - n.result() / n.operand(0)),)),
    "k0": GradientRule(("0",), lambda n, g: (-g * _bessel(n, "k1"),)),
    "k0e": GradientRule(("0o",), lambda n, g: (g * (n.result() - _bessel(n, "k1e")),)),
    "k1": GradientRule(("0o",), lambda n, g: (-g * (_bessel(n, "k0") + n.result() / n.operand(0)),)),
    "k1e": GradientRule(
        ("0o",), lambda n, g: (g * (n.result() * (1.0 - arithmetic.reciprocal(n.operand(0))) - _bessel(n, "k0e")),)
    ),
    "sigmoid": GradientRule(("o",), lambda n, g: (g * _conj((1.0 - n.result()) * n.result()),)),
    "relu": GradientRule(("o",), lambda n, g: (_where(n.result() <= 0.0, 0.0, g),)),
    "floor": GradientRule(("",), lambda n, g: (g * 0.0,)),
    "ceil": GradientRule(("",), lambda n, g: (g * 0.0,)),
    "round": GradientRule(("",), lambda n, g: (g * 0.0,)),
    "trunc": GradientRule(("",), lambda n, g: (g * 0.0,)),
    "cast": GradientRule(("",), lambda n, g: (cast(g, n.dtype(0)),)),
    "conj": GradientRule(("",), lambda n, g: (_conj(g),)),
    "real": GradientRule(("",), lambda n, g: (cast(g, n.dtype(0)),)),
    "imag": GradientRule(("",), lambda n, g: (cast(g, n.dtype(0)) * 1j,)),
    # element-wise, two operands that broadcast
    "complex": GradientRule(
        ("", ""), lambda n, g: _each(n, lambda: complex_numbers.real(g), lambda: complex_numbers.imag(g))
    ),
    "add": GradientRule(("", ""), lambda n, g: _each(n, lambda: g, lambda: g)),
    "sub": GradientRule(("", ""), lambda n, g: _each(n, lambda: g, lambda: -g)),
    "mul": GradientRule(
        ("1", "0"), lambda n, g: _each(n, lambda: g * _conj(n.operand(1)), lambda: g * _conj(n.operand(0)))
    ),
    "div": GradientRule(
        ("1", "1o"),
        lambda n, g: _each(n, lambda: g / _conj(n.operand(1)), lambda: -(g / _conj(n.operand(1))) * _conj(n.result())),
    ),
    "pow": GradientRule(("01", "01o"), _pow),
    "maximum": GradientRule(("01", "01"), _extreme("gt")),
    "minimum": GradientRule(("01", "01"), _extreme("lt")),
    "remainder": GradientRule(
        ("", "01"), lambda n, g: _each(n, lambda: g, lambda: -g * arithmetic.floor_divide(n.operand(0), n.operand(1)))
    ),
    "floor_divide": GradientRule(("", ""), lambda n, g: _each(n, lambda: g * 0.0, lambda: g * 0.0)),
    "fmod": GradientRule(
        ("", "01"),
        lambda n, g: _each(n, lambda: g, lambda: -g * arithmetic.trunc(arithmetic.div(n.operand(0), n.operand(1)))),
    ),
    "atan2": GradientRule(("01", "01"), _atan2),
    "hypot": GradientRule(
        ("0o", "1o"),
        lambda n, g: _each(n, lambda: g * (n.operand(0) / n.result()), lambda: g * (n.operand(1) / n.result())),
    ),
    "copysign": GradientRule(("0o", "0o"), _copysign),
    "zeta": GradientRule(("01", "01"), _zeta),
    "gammainc": GradientRule(("01", "01"), _gammainc(1.0)),
    "gammaincc": GradientRule(("01", "01"), _gammainc(-1.0)),
    # element-wise, three operands that broadcast
    "where": GradientRule(
        ("", "0", "0"),
        lambda n, g: _each(n, lambda: g, lambda: _where(n.operand(0), g, 0.0), lambda: _where(n.operand(0), 0.0, g)),
    ),
    # reductions
    "sum": GradientRule(("",), lambda n, g: (_spread(n, g),)),
    "prod": GradientRule(("0",), _prod),
    "max": GradientRule(("0o",), _reduced_extreme),
    "min": GradientRule(("0o",), _reduced_extreme),
    # shape
    "reshape": GradientRule(("",), lambda n, g: (_reshape(g, n.shape(0)),)),
    "permute": GradientRule(("",), _permute),
    "expand": GradientRule(("",), lambda n, g: (unbroadcast(g, n.shape(0)),)),
    "cat": GradientRule((), _cat),
    "slice": GradientRule((), _slice),
    "update_slice": GradientRule((), _update_slice),
    # indexing along one axis
    "gather": GradientRule(("1",), _gather),
    "scatter_add": GradientRule(("", "", "1"), _scatter_add),
    "take": GradientRule(("1",), _take),
    "segment_sum": GradientRule(
        ("1",), lambda n, g: (emission.emit("take", (g, n.operand(1)), n.attribute("axis")), None)
    ),
    "scatter": GradientRule(("1", "", "1"), _scatter),
    # along one axis
    "cumsum": GradientRule(("",), lambda n, g: (_from_the_end(g, n.attribute("axis")),)),
    "cumprod": GradientRule(("0o",), _cumprod),
    # linear algebra
    "matmul": GradientRule(("1", "0"), _matmul),
    "solve": GradientRule(("0o", "0"), _solve),
    "cholesky": GradientRule(("o",), decompositions.cholesky),
    "inverse": GradientRule(("o",), decompositions.inverse),
    "det": GradientRule(("0o",), decompositions.det),
    "slogdet": GradientRule(("0o",), decompositions.slogdet),
    "qr": GradientRule(("o",), decompositions.qr),
    "svd": GradientRule(("o",), decompositions.svd),
    "eigh": GradientRule(("o",), decompositions.eigh),
    "eig": GradientRule(("o",), decompositions.eig),
    "lu": GradientRule(("o",), decompositions.lu),
    "matrix_exp": GradientRule(("0",), decompositions.matrix_exp),
    # Fourier transforms
    "fft": GradientRule(
        ("",), lambda n, g: (emission.emit("fft", (g,), n.attribute("axis"), not n.attribute("inverse")),)
    ),
    "rfft": GradientRule(("",), _rfft),
    "irfft": GradientRule(("",), _irfft),
    # sliding windows
    "conv": GradientRule(("1", "0"), _conv),
    "windows": GradientRule(("",), _windows),
    "overlap_add": GradientRule(("",), _overlap_add),
    "max_pool": GradientRule(("0o",), _max_pool),
    "max_pool_grad": GradientRule(("", "", "0"), _max_pool_grad),
    # composite
    "softmax": GradientRule(("o",), _softmax),
    "log_softmax": GradientRule(("o",), _log_softmax),
    "attention": GradientRule(("0123",) * 3, attention.gradient),
    # identities
    "tag": GradientRule(("",), lambda n, g: (g,)),
    "follow": GradientRule(("",), lambda n, g: (g, None)),
    "weight": GradientRule(("",), lambda n, g: (g,)),
}

NO_GRADIENT: Final[frozenset[str]] = frozenset(
    {
        *("full", "arange", "uniform", "normal"),
        *("isnan", "isfinite", "logical_not", "logical_and", "logical_or", "logical_xor", "any", "all"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
        *("signbit", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
        *("gcd", "nextafter", "argmax", "argmin", "bitcast"),
        *("argcummax", "argcummin", "argsort", "lexsort", "searchsorted", "flatnonzero", "permutation"),
        "attention_grad",
        *("lstm", "gru", "rnn", "lstm_grad", "gru_grad", "rnn_grad"),
        *("linear_int8", "matmul_int8"),
    }
)
"""The ops without a gradient: they make tensors from nothing, answer true or false, count, or look at bits. `attention_grad` and
recurrent layers are emitted only where they are not recorded (`client/functional/recurrence.py` has the vertex of the latter).
Quantised layers (`client/functional/quantized.py`) only infer, and refuse what is recorded."""
