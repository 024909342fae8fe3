"""What each step of a drawn program means, said twice: in GT's public API, and in NumPy alone.

Beside the two meanings stands what the checker must know to compare numbers: whether the result is exact when its
operands are, by how much an error grows, and how far the operands are from where the result, or its slope, jumps.
Nothing here draws programs or runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import special

import gt
from gt.client.ops import arithmetic

from .programs import DTYPES

F = gt.nn.functional
Array = np.ndarray[Any, Any]
Distance = Callable[..., Any]


def kind_of(x: Array) -> str:
    """'b', 'i', 'f' or 'c': NumPy knows nothing of bfloat16."""
    return gt.as_dtype(x.dtype).kind


def numpy_of(dtype: str) -> np.dtype[Any]:
    """A program's dtype as NumPy has it."""
    return gt.as_dtype(DTYPES[dtype]).numpy


class Meaning(NamedTuple):
    """One op. `gt` and `numpy` take the operands and the step's arguments by name.

    `exact`: 'yes', where the result is as exact as its operands; 'no', never; 'sum', 'mean' and 'matmul', where all sums
    of the operands' elements are representable; 'factor', where no operand is a sum whose parts may be scaled apart.
    `grows` is how an operand's error may grow: not at all, as a 'sum' or as a
    'product'. `jump` and `kink` return distances from where the value, and where its slope, is not continuous.
    """

    gt: Callable[..., Any]
    numpy: Callable[..., Any]
    exact: str = "yes"
    grows: str = "no"
    jump: Distance | None = None
    kink: Distance | None = None


def _wide(x: Array) -> Array:
    """The array in which NumPy has bits enough for a sum of it."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and kind_of(x) == "f" else x


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _reduced(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def reduce(x: Array, axis: Any, keepdims: bool) -> Any:
        work = x.astype(np.int64) if kind_of(x) in "bi" and name in ("sum", "prod") else _wide(x)
        out = np.asarray(function(work, axis=_axes(axis), keepdims=keepdims))
        return out if kind_of(x) in "bi" else out.astype(x.dtype)

    return reduce


def _meet(*operands: Any, dtype: str) -> tuple[Any, ...]:
    """Operands cast to the dtype in which they meet."""
    return tuple(np.asarray(x).astype(numpy_of(dtype)) for x in operands)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Computed in the dtype in which operands meet."""
    return lambda *xs, dtype, **scalars: function(*_meet(*_operands(xs, **scalars), dtype=dtype))


def _arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same; of half precision in float32, which numbers of the program are not rounded further than."""

    def compute(*xs: Any, dtype: str, **scalars: Any) -> Any:
        operands = [x.astype(numpy_of(dtype)) if isinstance(x, np.ndarray) else x for x in _operands(xs, **scalars)]
        if dtype[:2] != "f2":
            return function(*_meet(*operands, dtype=dtype))
        return function(*[np.asarray(x).astype(np.float32) for x in operands]).astype(numpy_of(dtype))

    return compute


def _operands(xs: Sequence[Any], left: Any = None, right: Any = None) -> tuple[Any, ...]:
    """Two operands, of which a Python scalar may be one."""
    return (left, *xs) if left is not None else (*xs, right) if right is not None else tuple(xs)


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs, dtype, **scalars: function(*_operands(xs, **scalars))


def _difference(*xs: Any, dtype: str, **scalars: Any) -> Any:
    a, b = (np.asarray(x, np.float64) for x in _operands(xs, **scalars))
    return a - b


def _rounded(x: Any, by: float = 1.0) -> Any:
    """How far from a whole multiple of `by`."""
    scaled = np.asarray(x, np.float64) / by
    return (scaled - np.rint(scaled)) * by


def _gap(axis: int | None) -> Distance:
    def gap(x: Array, axis: Any = axis, **_: Any) -> Any:
        """The distance of the largest from the next (and of the smallest): an arg-reduction jumps where they are equal."""
        flat = np.asarray(x, np.float64)
        flat = flat.reshape(-1) if axis is None else np.moveaxis(flat, axis, -1)
        if flat.shape[-1] < 2 or flat.size == 0:
            return np.ones(1)
        ordered = np.sort(flat, axis=-1)
        return np.concatenate(
            [(ordered[..., -1] - ordered[..., -2]).ravel(), (ordered[..., 1] - ordered[..., 0]).ravel()]
        )

    return gap


def _extreme_gap(x: Array, axis: Any, keepdims: bool) -> Any:
    if axis is None:
        return _gap(None)(x)
    axes = [a % x.ndim for a in (axis if isinstance(axis, list) else [axis])]
    rest = [a for a in range(x.ndim) if a not in axes]
    moved = np.transpose(x, rest + axes)
    return _gap(-1)(moved.reshape(*(x.shape[a] for a in rest), -1) if moved.size else moved)


def _wider(*parts: Array) -> list[Array]:
    """Of half precision the parts of a complex number are float32."""
    return [_wide(part) for part in parts]


def _complex_of(x: Array) -> Any:
    return np.complex128 if x.dtype == np.float64 else np.complex64


def _softmax(x: Array, axis: int) -> Any:
    shifted = _wide(x) - _wide(x).max(axis=axis, keepdims=True, initial=-np.inf)
    powers = np.exp(shifted)
    return (powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype)


def _log_softmax(x: Array, axis: int) -> Any:
    shifted = _wide(x) - _wide(x).max(axis=axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))).astype(x.dtype)


def _var(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.asarray(_wide(x).var(axis=_axes(axis), keepdims=keepdims)).astype(x.dtype)


def _mean(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.asarray(_wide(x).mean(axis=_axes(axis), keepdims=keepdims)).astype(x.dtype)


def _matmul(a: Array, b: Array) -> Any:
    return np.asarray(np.matmul(_wide(a), _wide(b))).astype(a.dtype)


def _linear(x: Array, weight: Array, bias: Array) -> Any:
    return (np.matmul(_wide(x), _wide(weight).T) + _wide(bias)).astype(x.dtype)


def _cross_entropy(x: Array, target: Array) -> Any:
    scores = _log_softmax(x, 1)
    return np.asarray(-np.take_along_axis(scores, target[:, None], 1).mean()).astype(x.dtype)


def _scatter_add(x: Array, index: Array, values: Array, axis: int) -> Any:
    out = x.copy()
    for at in np.ndindex(index.shape):
        out[(*at[:axis], index[at], *at[axis + 1 :])] += values[at]
    return out


def _gather(x: Array, index: Array, axis: int) -> Any:
    """Beside the axis, an index's places are the first of the operand's."""
    window = tuple(slice(None) if a == axis % x.ndim else slice(n) for a, n in enumerate(index.shape))
    return np.take_along_axis(x[window], index, axis)


def _uniform(shape: tuple[int, ...], dtype: str, counter: int, seed: int) -> Any:
    """Element i takes word i of NumPy's own Philox, keyed by seed and counter."""
    words = np.random.Philox(key=[seed, counter]).random_raw(int(np.prod(shape)) or 1)[: int(np.prod(shape))]
    bits = {"f4": 24, "f8": 53}[dtype]
    return ((words >> np.uint64(64 - bits)).astype(dtype) * np.dtype(dtype).type(2.0**-bits)).reshape(shape)


def _normal(shape: tuple[int, ...], dtype: str, counter: int, seed: int) -> Any:
    words = np.random.Philox(key=[seed, counter]).random_raw(int(np.prod(shape)) or 1)[: int(np.prod(shape))]
    return special.ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52).astype(dtype).reshape(shape)


def _randint(low: int, high: int, shape: tuple[int, ...], counter: int, seed: int) -> Any:
    return (np.floor(_uniform(shape, "f8", counter, seed) * (high - low)) + low).astype(np.int64)


def _dropout(x: Array, p: float, counter: int, seed: int) -> Any:
    kept = _uniform(x.shape, x.dtype.str[1:], counter, seed) >= x.dtype.type(p)
    return np.where(kept, x * x.dtype.type(1 / (1 - p)), x.dtype.type(0))


def data(seed: int, shape: tuple[int, ...], dtype: str, grid: bool) -> Array:
    """What the program puts: small multiples of 1/4, of which sums are exact, or numbers with all their bits."""
    draws = np.random.default_rng(seed)
    if dtype == "b1":
        return draws.integers(0, 2, shape).astype(bool)
    if dtype[0] == "i":
        return draws.integers(-5, 6, shape).astype(numpy_of(dtype))
    if dtype[0] == "c":
        shape = (*shape, 2)
    values = np.asarray(draws.integers(-8, 9, shape) / 4 if grid else draws.standard_normal(shape))
    return (values.view(np.complex128)[..., 0] if dtype[0] == "c" else values).astype(numpy_of(dtype))


def _smooth(there: Callable[..., Any], here: Callable[..., Any], grows: str = "no") -> Meaning:
    """Computed with rounding: an integer comes out as a float32."""

    def rounded(x: Array) -> Any:
        x = x if kind_of(x) == "f" else x.astype(np.float32)
        return here(_wide(x)).astype(x.dtype)

    return Meaning(there, rounded, exact="no", grows=grows)


def _part(x: Array, index: tuple[Any, ...]) -> Any:
    """A view, where NumPy would make a number of a single element."""
    return x[index] if Ellipsis in index else x[(*index, ...)]


def _put(x: Array, slot: Any, value: Any) -> None:
    x[slot] = value


def _set(x: Any, *value: Any, index: Any, scalar: Any = None) -> None:
    x[index] = value[0] if value else scalar


def _assign(function: Callable[..., Any]) -> Callable[..., None]:
    def assign(x: Array, *rest: Any, **arguments: Any) -> None:
        x[...] = function(x, *rest, **arguments)

    return assign


def _inplace_operator(name: str) -> Callable[..., None]:
    def change(x: Any, *other: Any, scalar: Any = None) -> None:
        getattr(x, name)(other[0] if other else scalar)

    return change


def _changed(function: Callable[..., Any]) -> Callable[..., None]:
    def change(x: Array, *other: Any, scalar: Any = None) -> None:
        y = other[0] if other else scalar
        x[...] = function(x, np.asarray(y).astype(x.dtype))

    return change


RANDOM: Final = frozenset({"rand", "randn", "randint", "dropout"})
"""Each draws once; in NumPy it is told the seed and the number of the draw."""
IN_PLACE: Final = frozenset({"set", "add_", "mul_", "copy_", "clamp_", "tanh_", "zero_", "masked_fill_"})
"""These change their first operand, and with it all that shares its memory."""

MEANINGS: Final[dict[str, Meaning]] = {
    # element-wise, one operand, exact in IEEE arithmetic
    "neg": Meaning(gt.neg, np.negative),
    "abs": Meaning(gt.abs, np.abs, kink=lambda x: x),
    "square": Meaning(gt.square, np.square, grows="product"),
    "relu": Meaning(gt.relu, lambda x: np.maximum(x, x.dtype.type(0)), kink=lambda x: x),
    "sign": Meaning(gt.sign, np.sign, jump=lambda x: x),
    "floor": Meaning(gt.floor, np.floor, jump=_rounded),
    "ceil": Meaning(gt.ceil, np.ceil, jump=_rounded),
    "round": Meaning(gt.round, np.rint, jump=lambda x: _rounded(x + 0.5)),
    "not": Meaning(gt.logical_not, np.logical_not, jump=lambda x: x),
    "clone": Meaning(gt.clone, np.copy),
    # element-wise, one operand, rounded
    "tanh": _smooth(gt.tanh, np.tanh),
    "sin": _smooth(gt.sin, np.sin),
    "cos": _smooth(gt.cos, np.cos),
    "sigmoid": _smooth(gt.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "exp_sin": _smooth(lambda x: gt.exp(gt.sin(x)), lambda x: np.exp(np.sin(x))),
    "expm1_tanh": _smooth(lambda x: gt.expm1(gt.tanh(x)), lambda x: np.expm1(np.tanh(x))),
    "log1p_square": _smooth(lambda x: gt.log1p(x * x), lambda x: np.log1p(np.square(x)), "product"),
    "sqrt_square": _smooth(lambda x: gt.sqrt(x * x + 1), lambda x: np.sqrt(np.square(x) + 1), "product"),
    "rsqrt_square": _smooth(lambda x: gt.rsqrt(x * x + 1), lambda x: 1 / np.sqrt(np.square(x) + 1), "product"),
    "reciprocal": _smooth(lambda x: gt.reciprocal(x * x + 1), lambda x: 1 / (np.square(x) + 1), "product"),
    "power": _smooth(lambda x: (x * x + 1) ** 0.75, lambda x: (np.square(x) + 1) ** 0.75, "product"),
    "gelu": _smooth(
        lambda x: F.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "product",
    ),
    "silu": _smooth(F.silu, lambda x: x / (1 + np.exp(-x)), "product"),
    "cube": _smooth(lambda x: x**3, lambda x: x**3, "product"),
    # element-wise, two operands
    "add": Meaning(_called(gt.add), _arithmetic(np.add)),
    "sub": Meaning(_called(gt.sub), _arithmetic(np.subtract)),
    "mul": Meaning(_called(gt.mul), _arithmetic(np.multiply), exact="factor", grows="product"),
    "div": Meaning(
        lambda a, b: a / (b * b + 1), lambda a, b: a / (b * b + a.dtype.type(1)), exact="factor", grows="product"
    ),
    "power_of": Meaning(
        lambda a, b: (a * a + 1) ** gt.tanh(b),
        lambda a, b: (a * a + a.dtype.type(1)) ** np.tanh(b),
        exact="no",
        grows="product",
    ),
    "maximum": Meaning(_called(arithmetic.maximum), _binary(np.maximum), kink=_difference),
    "minimum": Meaning(_called(arithmetic.minimum), _binary(np.minimum), kink=_difference),
    "floor_divide": Meaning(
        lambda x, scalar: x // scalar,
        lambda x, scalar: np.floor_divide(x, x.dtype.type(scalar)),
        jump=lambda x, scalar: _rounded(x, scalar),
    ),
    "remainder": Meaning(
        lambda x, scalar: x % scalar,
        lambda x, scalar: np.remainder(x, x.dtype.type(scalar)),
        jump=lambda x, scalar: _rounded(x, scalar),
    ),
    "lt": Meaning(_called(arithmetic.lt), _binary(np.less), jump=_difference),
    "le": Meaning(_called(arithmetic.le), _binary(np.less_equal), jump=_difference),
    "gt": Meaning(_called(arithmetic.gt), _binary(np.greater), jump=_difference),
    "ge": Meaning(_called(arithmetic.ge), _binary(np.greater_equal), jump=_difference),
    "eq": Meaning(_called(arithmetic.eq), _binary(np.equal), jump=_difference),
    "ne": Meaning(_called(arithmetic.ne), _binary(np.not_equal), jump=_difference),
    "and": Meaning(gt.logical_and, np.logical_and),
    "or": Meaning(gt.logical_or, np.logical_or),
    "xor": Meaning(gt.logical_xor, np.logical_xor),
    # element-wise, three operands
    "where": Meaning(
        lambda c, *xs, dtype, **s: gt.where(c, *_operands(xs, **s)),
        lambda c, *xs, dtype, **s: np.where(c, *_meet(*_operands(xs, **s), dtype=dtype)),
    ),
    "clamp": Meaning(
        lambda x, low, high: gt.clamp(x, low, high),
        lambda x, low, high: np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high)),
        kink=lambda x, low, high: np.minimum(np.abs(x - low), np.abs(x - high)),
    ),
    "masked_fill": Meaning(
        lambda x, c, scalar: gt.Tensor.masked_fill(x, c, scalar),
        lambda x, c, scalar: np.where(c, x.dtype.type(scalar), x),
    ),
    "cast": Meaning(
        lambda x, dtype: x.to(DTYPES[dtype]),
        lambda x, dtype: x.astype(numpy_of(dtype)),
        jump=lambda x, dtype: _cast_jump(x, dtype),
    ),
    # complex numbers; what is rounded differs from NumPy's where theirs is computed another way
    "complex": Meaning(gt.complex, lambda a, b: np.stack(_wider(a, b), -1).view(_complex_of(a))[..., 0]),
    "conj": Meaning(gt.conj, np.conj),
    "real": Meaning(lambda z: z.real, lambda z: z.real),
    "imag": Meaning(lambda z: z.imag, lambda z: z.imag),
    "view_as_real": Meaning(gt.view_as_real, lambda z: np.stack([z.real, z.imag], -1)),
    "size_c": Meaning(
        lambda z: gt.sqrt(gt.square(gt.abs(z)) + 1), lambda z: np.sqrt(np.abs(z) ** 2 + 1), "no", "product"
    ),
    "mul_c": Meaning(_called(gt.mul), _binary(np.multiply), exact="no", grows="product"),
    "square_c": Meaning(gt.square, np.square, exact="no", grows="product"),
    "exp_sin_c": Meaning(
        lambda z: gt.exp(gt.sin(gt.tanh(gt.abs(z)) * 1j)),
        lambda z: np.exp(np.sin(np.tanh(np.abs(z)) * 1j)),
        exact="no",
        kink=np.abs,
    ),
    "reciprocal_c": Meaning(
        lambda z: z / (z * z.conj() + 1), lambda z: z / (z * z.conj() + 1), exact="no", grows="product"
    ),
    "tanh_c": Meaning(
        lambda z: gt.tanh(z.real) + z.imag.tanh() * 1j, lambda z: np.tanh(z.real) + 1j * np.tanh(z.imag), "no"
    ),
    # products
    "matmul": Meaning(gt.matmul, _matmul, exact="matmul", grows="product"),
    "linear": Meaning(F.linear, _linear, exact="no", grows="product"),
    # reductions
    "sum": Meaning(lambda x, axis, keepdims: x.sum(axis, keepdims), _reduced("sum"), exact="sum", grows="sum"),
    "mean": Meaning(lambda x, axis, keepdims: x.mean(axis, keepdims), _mean, exact="mean"),
    "prod": Meaning(lambda x, axis, keepdims: x.prod(axis, keepdims), _reduced("prod"), exact="no", grows="product"),
    "amax": Meaning(lambda x, axis, keepdims: x.amax(axis, keepdims), _reduced("max"), kink=_extreme_gap),
    "amin": Meaning(lambda x, axis, keepdims: x.amin(axis, keepdims), _reduced("min"), kink=_extreme_gap),
    "var": Meaning(
        lambda x, axis, keepdims: x.var(axis, keepdim=keepdims, correction=0), _var, exact="no", grows="product"
    ),
    "any": Meaning(lambda x, axis, keepdims: x.any(axis, keepdims), _reduced("any"), jump=lambda x, **_: x),
    "all": Meaning(lambda x, axis, keepdims: x.all(axis, keepdims), _reduced("all"), jump=lambda x, **_: x),
    "argmax": Meaning(lambda x, axis: x.argmax(axis), lambda x, axis: np.argmax(x, axis), jump=_gap(None)),
    "argmin": Meaning(lambda x, axis: x.argmin(axis), lambda x, axis: np.argmin(x, axis), jump=_gap(None)),
    "max": Meaning(
        lambda x, axis: tuple(x.max(axis)), lambda x, axis: (x.max(axis), np.argmax(x, axis)), jump=_gap(None)
    ),
    "logsumexp": Meaning(
        lambda x, axis: gt.logsumexp(x, axis),
        lambda x, axis: special.logsumexp(_wide(x), axis=axis).astype(x.dtype),
        exact="no",
    ),
    "softmax": Meaning(lambda x, axis: x.softmax(axis), _softmax, exact="no"),
    "log_softmax": Meaning(lambda x, axis: x.log_softmax(axis), _log_softmax, exact="no"),
    "cross_entropy": Meaning(F.cross_entropy, _cross_entropy, exact="no"),
    "mse_loss": Meaning(F.mse_loss, lambda a, b: np.asarray(np.square(a - b).mean()), exact="no", grows="product"),
    # shapes: views
    "reshape": Meaning(lambda x, shape: x.reshape(shape), lambda x, shape: x.reshape(shape)),
    "permute": Meaning(lambda x, axes: x.permute(axes), lambda x, axes: x.transpose(axes)),
    "unsqueeze": Meaning(lambda x, axis: x.unsqueeze(axis), np.expand_dims),
    "squeeze": Meaning(lambda x, axis: x.squeeze(axis), np.squeeze),
    "expand": Meaning(lambda x, shape: x.expand(shape), np.broadcast_to),
    "index": Meaning(lambda x, index: x[index], _part),
    "split": Meaning(
        lambda x, parts, axis: x.split(parts, axis),
        lambda x, parts, axis: np.split(x, np.cumsum(parts)[:-1], axis),
    ),
    "detach": Meaning(lambda x: x.detach(), lambda x: x.view()),
    # shapes: copies
    "cat": Meaning(lambda *xs, axis: gt.cat(xs, axis), lambda *xs, axis: np.concatenate(xs, axis)),
    "stack": Meaning(lambda *xs, axis: gt.stack(xs, axis), lambda *xs, axis: np.stack(xs, axis)),
    "repeat": Meaning(lambda x, times: x.repeat(times), lambda x, times: np.tile(x, times)),
    "tril": Meaning(lambda x, diagonal: x.tril(diagonal), lambda x, diagonal: np.tril(x, diagonal)),
    "gather": Meaning(lambda x, i, axis: x.gather(axis, i), _gather),
    "index_select": Meaning(lambda x, i, axis: x.index_select(axis, i), lambda x, i, axis: np.take(x, i, axis)),
    "scatter_add": Meaning(lambda x, i, v, axis: x.scatter_add(axis, i, v), _scatter_add, exact="no", grows="sum"),
    "one_hot": Meaning(F.one_hot, lambda x, num_classes: (x[..., None] == np.arange(num_classes)).astype(np.int64)),
    "tag": Meaning(gt.signal.tensor, lambda x, name: np.copy(x)),
    # creation
    "put": Meaning(lambda **a: gt.tensor(data(**a)), data),
    "full": Meaning(
        lambda shape, value, dtype: gt.full(shape, value, dtype=DTYPES[dtype]),
        lambda shape, value, dtype: np.full(shape, value, numpy_of(dtype)),
    ),
    "arange": Meaning(
        lambda start, step, size, dtype: gt.arange(start, start + step * size, step, dtype=DTYPES[dtype]),
        lambda start, step, size, dtype: (start + step * np.arange(size)).astype(numpy_of(dtype)),
    ),
    "like": Meaning(gt.full_like, lambda x, fill_value: np.full(x.shape, fill_value, x.dtype)),
    "rand": Meaning(lambda shape, dtype: gt.rand(shape, dtype=DTYPES[dtype]), _uniform),
    "randn": Meaning(lambda shape, dtype: gt.randn(shape, dtype=DTYPES[dtype]), _normal),
    "randint": Meaning(lambda low, high, shape: gt.randint(low, high, shape), _randint),
    "dropout": Meaning(lambda x, p: F.dropout(x, p), _dropout, exact="factor"),
    # in place
    "set": Meaning(_set, lambda x, *value, index, scalar=None: _put(x, index, value[0] if value else scalar)),
    "add_": Meaning(_inplace_operator("add_"), _changed(np.add)),
    "mul_": Meaning(_inplace_operator("mul_"), _changed(np.multiply), exact="factor", grows="product"),
    "copy_": Meaning(_inplace_operator("copy_"), _changed(lambda x, y: y)),
    "clamp_": Meaning(
        lambda x, low, high: x.clamp_(low, high),
        _assign(lambda x, low, high: np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))),
        kink=lambda x, low, high: np.minimum(np.abs(x - low), np.abs(x - high)),
    ),
    "tanh_": Meaning(lambda x: x.tanh_(), _assign(np.tanh), exact="no"),
    "zero_": Meaning(lambda x: x.zero_(), _assign(lambda x: np.zeros_like(x))),
    "masked_fill_": Meaning(
        lambda x, c, scalar: x.masked_fill_(c, scalar),
        _assign(lambda x, c, scalar: np.where(c, x.dtype.type(scalar), x)),
    ),
}


def _cast_jump(x: Array, dtype: str) -> Any:
    """A cast to integers jumps at integers, one to booleans at 0, one to floating-point numbers nowhere."""
    if kind_of(x) != "f" or dtype[0] in "fc":
        return np.ones(1)
    return x if dtype == "b1" else _rounded(x)
