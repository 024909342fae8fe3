"""How each of JAX's primitives is computed with GT: one literal table by the primitive's name.

A rule takes the equation's operands (tensors; of an element-wise rule also Python numbers), and its parameters by name. Its
result gets the equation's dtype afterwards.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import gt
from gt.client.ops import arithmetic, elementwise

from .arrangement import expanded, permuted, shaped
from .indexing import dynamic_slice, dynamic_update_slice, gather, scatter
from .random_bits import threefry
from .values import dtype_of
from .windows import convolution, padded, pooled, scattered_to_best

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["ELEMENTWISE", "HAVE_PARAMETERS", "RULES", "TAKES_NUMBERS"]

Rule = Callable[..., Any]


def _dot_general(x: Tensor, y: Tensor, *, dimension_numbers: Any, **_: Any) -> Tensor:
    (x_summed, y_summed), (x_batch, y_batch) = dimension_numbers
    letters = iter(string.ascii_letters)
    x_names = [next(letters) for _ in range(x.ndim)]
    y_names = [next(letters) for _ in range(y.ndim)]
    for a, b in zip((*x_summed, *x_batch), (*y_summed, *y_batch), strict=True):
        y_names[b] = x_names[a]
    out = [x_names[at] for at in x_batch]
    out += [name for at, name in enumerate(x_names) if at not in x_batch and at not in x_summed]
    out += [name for at, name in enumerate(y_names) if at not in y_batch and at not in y_summed]
    wide = gt.promote(x.dtype, y.dtype)
    x, y = gt.cast(x, wide), gt.cast(y, wide)
    return gt.einsum(f"{''.join(x_names)},{''.join(y_names)}->{''.join(out)}", x, y)


def _broadcast(x: Any, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Tensor:
    if not isinstance(x, gt.Tensor):
        return gt.full(tuple(shape), x)
    sizes = [1] * len(shape)
    for at, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[at] = size
    return expanded(shaped(x, tuple(sizes)), tuple(shape))


def _select_n(which: Any, *cases: Any) -> Any:
    if len(cases) == 1:
        return cases[0]
    if isinstance(which, gt.Tensor) and which.dtype is gt.bool_:
        return gt.where(which, cases[1], cases[0])
    out = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        out = gt.where(gt.le(which, number), cases[number], out)
    return out


def _divided(x: Any, y: Any) -> Any:
    whole = any(isinstance(each, gt.Tensor) and each.dtype.kind in "iu" for each in (x, y))
    return gt.div(x, y, rounding_mode="trunc") if whole else gt.div(x, y)


def _integer_pow(x: Tensor, *, y: int) -> Tensor:
    return gt.pow(x, y)


def _round(x: Any, *, rounding_method: Any) -> Any:
    if int(rounding_method) == 1:
        return gt.round(x)
    return gt.mul(gt.sign(x), gt.floor(gt.add(gt.abs(x), 0.5)))


def _bit_not(x: Tensor) -> Tensor:
    return gt.logical_not(x) if x.dtype is gt.bool_ else gt.bitwise_not(x)


def _bits(on_booleans: Rule, on_numbers: Rule) -> Rule:
    def rule(x: Any, y: Any) -> Any:
        of = next(each for each in (x, y) if isinstance(each, gt.Tensor))
        return (on_booleans if of.dtype is gt.bool_ else on_numbers)(x, y)

    return rule


def _shifted_right(x: Any, y: Any) -> Any:
    of = x if isinstance(x, gt.Tensor) else y
    if not of.dtype.name.removeprefix("gt.").startswith("uint"):
        raise NotImplementedError("gt.jax cannot compute JAX's primitive shift_right_logical of signed integers")
    return gt.bitwise_right_shift(x, y)


def _reduced(function: Rule) -> Rule:
    def rule(x: Tensor, *, axes: Sequence[int], **_: Any) -> Any:
        return function(x, tuple(axes)) if axes else x

    return rule


def _product(x: Tensor, *, axes: Sequence[int], **_: Any) -> Tensor:
    for at in sorted(axes, reverse=True):
        x = gt.prod(x, at)
    return x


def _best(function: Rule) -> Rule:
    def rule(x: Tensor, *, axes: Sequence[int], **_: Any) -> Any:
        (axis,) = axes
        return function(x, axis)

    return rule


def _running(function: Rule) -> Rule:
    def rule(x: Tensor, *, axis: int, reverse: bool, **_: Any) -> Any:
        out = function(gt.flip(x, (axis,)) if reverse else x, axis)
        out = out if isinstance(out, gt.Tensor) else out[0]
        return gt.flip(out, (axis,)) if reverse else out

    return rule


def _sort(*operands: Tensor, dimension: int, num_keys: int, **_: Any) -> list[Tensor]:
    if num_keys == 1 and len(operands) == 1:
        return [gt.sort(operands[0], dimension, stable=True)[0]]
    order = gt.argsort(operands[num_keys - 1], dimension, stable=True)
    for key in reversed(operands[: num_keys - 1]):
        order = gt.gather(order, dimension, gt.argsort(gt.gather(key, dimension, order), dimension, stable=True))
    return [gt.gather(each, dimension, order) for each in operands]


def _top_k(x: Tensor, *, k: int, axis: int = -1, **_: Any) -> list[Tensor]:
    order = gt.argsort(gt.flip(x, (axis,)), axis, stable=True)  # of equals the first comes first
    places = gt.narrow(gt.flip(gt.sub(x.shape[axis] - 1, order), (axis,)), axis, 0, k)
    return [gt.gather(x, axis, places), places]


def _sliced(x: Tensor, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any) -> Tensor:
    steps = strides or (1,) * x.ndim
    cut: Tensor = x[tuple(slice(*each) for each in zip(start_indices, limit_indices, steps, strict=True))]
    return cut


def _split(x: Tensor, *, sizes: Sequence[int], axis: int) -> list[Tensor]:
    return list(gt.split(x, [int(size) for size in sizes], axis))


def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> Tensor:
    numbers = gt.arange(shape[dimension], dtype=dtype_of(dtype))
    return _broadcast(numbers, shape=shape, broadcast_dimensions=(dimension,))


def _squeezed(x: Tensor, *, dimensions: Sequence[int]) -> Tensor:
    return shaped(x, tuple(size for at, size in enumerate(x.shape) if at not in dimensions))


def _expanded(x: Tensor, *, dimensions: Sequence[int], **_: Any) -> Tensor:
    sizes = list(x.shape)
    for at in sorted(dimensions):
        sizes.insert(at, 1)
    return shaped(x, tuple(sizes))


def _reshaped(x: Tensor, *, new_sizes: Sequence[int], dimensions: Any, **_: Any) -> Tensor:
    return shaped(x if dimensions is None else permuted(x, tuple(dimensions)), tuple(new_sizes))


def _converted(x: Tensor, *, new_dtype: Any, **_: Any) -> Tensor:
    return gt.cast(x, dtype_of(new_dtype))


def _reread(x: Tensor, *, new_dtype: Any) -> Tensor:
    """The same bits as numbers of another dtype: one dimension more or fewer at the end where sizes differ."""
    dtype = dtype_of(new_dtype)
    size, wanted = x.dtype.itemsize, dtype.itemsize
    if size == wanted:
        return x.view(dtype)
    if size > wanted:
        return gt.view(gt.unsqueeze(x, -1), dtype)
    return gt.squeeze(gt.view(x, dtype), -1)


def _reduced_precision(x: Tensor, *, exponent_bits: int, mantissa_bits: int) -> Tensor:
    forms = {(8, 23): gt.float32, (8, 7): gt.bfloat16, (5, 10): gt.float16, (11, 52): gt.float64}
    return gt.cast(gt.cast(x, forms[exponent_bits, mantissa_bits]), x.dtype)


def _same(x: Any, **_: Any) -> Any:
    return x


ELEMENTWISE: Final[dict[str, Rule]] = {
    # one operand
    "abs": gt.abs, "acos": gt.acos, "acosh": gt.acosh, "asin": gt.asin, "asinh": gt.asinh, "atan": gt.atan,
    "atanh": gt.atanh, "cbrt": lambda x: gt.mul(gt.sign(x), gt.pow(gt.abs(x), 1 / 3)), "ceil": gt.ceil,
    "conj": gt.conj, "cos": gt.cos, "cosh": gt.cosh, "digamma": gt.digamma,
    "erf": gt.erf, "erf_inv": gt.erfinv, "erfc": gt.erfc, "exp": gt.exp,
    "exp2": gt.exp2, "expm1": gt.expm1, "floor": gt.floor, "imag": gt.imag,
    "integer_pow": _integer_pow, "is_finite": gt.isfinite, "lgamma": gt.lgamma, "log": gt.log,
    "log1p": gt.log1p, "logistic": gt.sigmoid, "neg": gt.neg, "not": _bit_not,
    "real": gt.real, "reduce_precision": _reduced_precision, "round": _round,
    "rsqrt": gt.rsqrt, "sign": gt.sign, "sin": gt.sin, "sinh": gt.sinh,
    "sqrt": gt.sqrt, "square": gt.square, "tan": gt.tan,
    "tanh": gt.tanh,
    # two
    "add": gt.add, "add_any": gt.add, "and": _bits(arithmetic.logical_and, gt.bitwise_and), "atan2": elementwise.atan2,
    "complex": gt.complex, "div": _divided, "eq": arithmetic.eq, "ge": arithmetic.ge, "gt": arithmetic.gt,
    "le": arithmetic.le, "lt": arithmetic.lt,
    "max": arithmetic.maximum, "min": arithmetic.minimum, "mul": gt.mul, "ne": arithmetic.ne, "nextafter": elementwise.nextafter,
    "or": _bits(arithmetic.logical_or, gt.bitwise_or), "pow": gt.pow, "rem": elementwise.fmod,
    "shift_left": gt.bitwise_left_shift,
    "shift_right_arithmetic": gt.bitwise_right_shift, "shift_right_logical": _shifted_right, "sub": gt.sub,
    "xor": _bits(arithmetic.logical_xor, gt.bitwise_xor),
    # three and more
    "clamp": lambda least, x, most: arithmetic.minimum(arithmetic.maximum(x, least), most), "select_n": _select_n,
}  # fmt: skip
"""Primitives of one element each, whose operands may be numbers."""

HAVE_PARAMETERS: Final = frozenset({"integer_pow", "reduce_precision", "round"})
"""Element-wise primitives whose parameters change their values. Those of others choose an accuracy or a dtype."""

RULES: Final[dict[str, Rule]] = {
    **ELEMENTWISE,
    # dtypes and identity
    "bitcast_convert_type": _reread, "convert_element_type": _converted, "copy": _same, "copy_p": _same,
    "optimization_barrier": lambda *operands: list(operands), "stop_gradient": _same,
    # shapes
    "broadcast_in_dim": _broadcast, "concatenate": lambda *parts, dimension: gt.cat(parts, dimension),
    "expand_dims": _expanded, "iota": _iota, "pad": padded, "reshape": _reshaped,
    "rev": lambda x, *, dimensions: gt.flip(x, tuple(dimensions)) if dimensions else x, "slice": _sliced, "split": _split,
    "squeeze": _squeezed, "stack": lambda *parts, axis: gt.stack(parts, axis),
    "transpose": lambda x, *, permutation: permuted(x, tuple(permutation)),
    "unstack": lambda x, *, axis: list(gt.unbind(x, axis)),
    # reductions
    "argmax": _best(gt.argmax), "argmin": _best(gt.argmin), "reduce_and": _reduced(gt.all), "reduce_max": _reduced(gt.amax),
    "reduce_min": _reduced(gt.amin), "reduce_or": _reduced(gt.any), "reduce_prod": _product, "reduce_sum": _reduced(gt.sum),
    # along an axis
    "cumlogsumexp": _running(gt.logcumsumexp), "cummax": _running(gt.cummax), "cummin": _running(gt.cummin),
    "cumprod": _running(gt.cumprod), "cumsum": _running(gt.cumsum), "sort": _sort, "top_k": _top_k,
    # products and windows
    "conv_general_dilated": convolution, "dot_general": _dot_general,
    "reduce_window_max": pooled(gt.amax, -math.inf), "reduce_window_min": pooled(gt.amin, math.inf),
    "reduce_window_sum": pooled(gt.sum, 0), "select_and_scatter_add": scattered_to_best,
    # indices
    "dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice, "gather": gather,
    "scatter": scatter(None), "scatter-add": scatter("sum"), "scatter-max": scatter("amax"),
    "scatter-min": scatter("amin"), "scatter-mul": scatter("prod"), "scatter_add": scatter("sum"),
    "scatter_max": scatter("amax"), "scatter_min": scatter("amin"), "scatter_mul": scatter("prod"),
    # random bits
    "threefry2x32": threefry,
}  # fmt: skip
"""Every primitive that is computed. Those that hold other equations are `equations`' business."""

TAKES_NUMBERS: Final = frozenset({*ELEMENTWISE, "broadcast_in_dim", "dynamic_slice", "dynamic_update_slice", "pad"})
"""Primitives whose operands may be Python numbers."""
