"""PyTorch's native functions, which its modules call: normalisations with their statistics, and older orders of arguments.

They are composed of the functions of `gt.nn.functional`, under the names by which PyTorch's own code knows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.client.functional import embeddings, normalization, spatial_transformers
from gt.client.ops import arithmetic, creation, join_and_pad, random, scatter_reductions, shape_ops
from gt.client.ops.arithmetic import add, mul, rsqrt, square, sub
from gt.client.tensor import emission, operands
from gt.client.tensor.operands import cast, clone, of_kinds, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import float32

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "constant_pad_nd", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "native_batch_norm", "native_dropout",
    "native_dropout_backward", "native_group_norm", "native_layer_norm", "nonzero_static", "segment_reduce",
]  # fmt: skip


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:  # fmt: skip
    """`gt.nn.functional.batch_norm` in the order of `torch.batch_norm`."""
    return normalization.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool, momentum: float,
    eps: float, cudnn_enabled: bool = False,
) -> Tensor:  # fmt: skip
    """`gt.nn.functional.instance_norm` in the order of `torch.instance_norm`."""
    return normalization.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """`gt.nn.functional.embedding`, the table first; no row is padding if `padding_idx` is negative."""
    row = None if padding_idx < 0 else padding_idx
    return embeddings.embedding(indices, weight, row, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def constant_pad_nd(input: Any, pad: Sequence[int], value: Any = 0) -> Tensor:
    """`gt.nn.functional.pad` by one value."""
    return join_and_pad.pad(input, tuple(pad), value=value)


_INTERPOLATION: Final = ("bilinear", "nearest", "bicubic")
_PADDING: Final = ("zeros", "border", "reflection")


def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """`gt.nn.functional.grid_sample`, its modes by number."""
    return spatial_transformers.grid_sample(
        input, grid, _INTERPOLATION[interpolation_mode], _PADDING[padding_mode], align_corners
    )


grid_sampler_2d = grid_sampler_3d = grid_sampler


# normalisations with their statistics


def _moments(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x less its mean over axes, that mean, and 1 / √(variance + eps), both with their axes kept."""
    count = float(math.prod(x.shape[axis] for axis in axes))
    mean = arithmetic.div(emission.emit("sum", (x,), axes, True), count)
    center = sub(x, mean)
    spread = arithmetic.div(emission.emit("sum", (square(center),), axes, True), count)
    return center, mean, rsqrt(add(spread, float(eps)))


def _noted(x: Tensor, mean: Tensor, scale: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The statistics that are given back, off the tape."""
    plain = [each.detach() for each in (mean, scale)]
    first, second = (cast(each if each.shape == shape else shape_ops.reshape(each, shape), x.dtype) for each in plain)
    return first, second


def _wide(name: str, input: Any) -> tuple[Tensor, Tensor]:
    x = of_kinds(name, input, "f")
    return x, cast(x, float32) if x.dtype.itemsize == 2 else x


def native_layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm`, the means, and 1 / √(variance + eps)."""
    x, wide = _wide("native_layer_norm", input)
    sizes = tuple(normalized_shape)
    if not sizes or x.shape[-len(sizes) :] != sizes:
        raise ShapeError(f"native_layer_norm: input {x.shape} does not end in normalized_shape {sizes}")
    center, mean, scale = _moments(wide, tuple(range(x.ndim - len(sizes), x.ndim)), eps)
    out = mul(center, scale)
    out = out if weight is None else mul(out, tensor_of("native_layer_norm", weight))
    out = out if bias is None else add(out, tensor_of("native_layer_norm", bias))
    return cast(out, x.dtype), *_noted(x, mean, scale, mean.shape)


def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float  # PyTorch's names
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`group_norm`, the means (N, group), and 1 / √(variance + eps)."""
    x, wide = _wide("native_group_norm", input)
    if group < 1 or C % group or x.numel() != N * C * HxW:
        raise ShapeError(f"native_group_norm: {group} groups of {C} channels, {N} · {C} · {HxW} elements, in {x.shape}")
    center, mean, scale = _moments(shape_ops.reshape(wide, (N, group, C // group * HxW)), (2,), eps)
    out = normalization._channelled(shape_ops.reshape(mul(center, scale), x.shape), weight, bias)
    rest = [cast(shape_ops.reshape(each, (N, group)), x.dtype) for each in (mean, scale)]
    return cast(out, x.dtype), rest[0], rest[1]


def native_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch_norm`, and in training the batch's means and 1 / √(variance + eps), else nothing."""
    x, wide = _wide("native_batch_norm", input)
    out = normalization.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        empty = creation.zeros(0, dtype=x.dtype)
        return out, empty, empty
    _, mean, scale = _moments(wide, (0, *range(2, x.ndim)), eps)
    return out, *_noted(x, mean, scale, (x.shape[1],))


# dropout with its mask


def native_dropout(input: Any, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """`dropout`, and where elements were kept."""
    x = tensor_of("native_dropout", input)
    if train is False or p == 0:
        return clone(x), creation.full(x.shape, True)
    kept = arithmetic.logical_not(random.truths(x.shape, p))
    return native_dropout_backward(x, kept, 0.0 if p == 1 else 1 / (1 - p)), kept


def native_dropout_backward(grad_output: Any, mask: Any, scale: float) -> Tensor:
    """`scale` times the elements that were kept, 0 elsewhere."""
    x = tensor_of("native_dropout_backward", grad_output)
    return mul(mul(x, cast(mask, x.dtype)), scale)


# places and segments


def nonzero_static(input: Any, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` non-zero elements, one row each, filled up with `fill_value`. Fetches nothing."""
    x = tensor_of("nonzero_static", input)
    if size < 0:
        raise ShapeError(f"nonzero_static: a size of at least 0, not {size}")
    count = x.numel()
    flat = shape_ops.reshape(operands.cast(x, "bool"), (count,))
    order = emission.emit("argsort", (flat,), 0, True)
    total = emission.emit("sum", (cast(flat, "int64"),), (0,), False)
    if size > count:
        order = join_and_pad.cat([order, creation.zeros(size - count, dtype="int64")])
    left = shape_ops.narrow(order, 0, 0, size)
    columns: list[Tensor] = []
    for extent in reversed(x.shape):
        columns.append(arithmetic.remainder(left, max(extent, 1)))
        left = arithmetic.floor_divide(left, max(extent, 1))
    if not columns:
        return creation.zeros((size, 0), dtype="int64")
    rows = join_and_pad.stack(columns[::-1], 1)
    valid = arithmetic.lt(creation.arange(size), total)
    return arithmetic.where(shape_ops.unsqueeze(valid, 1), rows, fill_value)


_REDUCTIONS: Final = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "prod": "prod"}


def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Runs of slices along an axis, of these `lengths` or from one of the `offsets` to the next, reduced one by one:
    'sum', 'mean', 'max', 'min' or 'prod', together with `initial`.

    Lengths or offsets have the shape of what comes before the axis, and one dimension more.
    """
    x = tensor_of("segment_reduce", data)
    if reduce not in _REDUCTIONS:
        raise ValueError(f"segment_reduce: reduce is one of {', '.join(_REDUCTIONS)}, not {reduce!r}")
    if (lengths is None) is (offsets is None) or indices is not None:
        raise TypeError("segment_reduce takes either lengths or offsets")
    at = shape_ops.axis_of("segment_reduce", axis, x.shape)
    ends = tensor_of("segment_reduce", lengths if offsets is None else offsets)
    if ends.ndim != at + 1 or ends.shape[:at] != x.shape[:at]:
        raise ShapeError(f"segment_reduce: lengths {ends.shape} for axis {at} of shape {x.shape}")
    if offsets is None:
        ends = emission.emit("cumsum", (cast(ends, "int64"),), at)
    else:
        ends = shape_ops.narrow(cast(ends, "int64"), at, 1, ends.shape[at] - 1)
    count, size = ends.shape[at], x.shape[at]
    rows = creation.arange(size)
    passed = arithmetic.le(shape_ops.unsqueeze(ends, at + 1), rows)
    segment = emission.emit("sum", (cast(passed, "int64"),), (at,), False)
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[reduce]
    begin = neutral if initial is None else float(initial)
    # what lies beyond the last segment goes to one more, which is dropped
    shape = (*x.shape[:at], count + 1, *x.shape[at + 1 :])
    out = creation.full(shape, begin, dtype=x.dtype)
    spread = shape_ops.expand(shape_ops.reshape(segment, (*segment.shape, *(1,) * (x.ndim - at - 1))), x.shape)
    if reduce == "mean":
        total = scatter_reductions.scatter_reduce(out, at, spread, x, "sum")
        ones = creation.ones(x.shape, dtype=x.dtype)
        many = scatter_reductions.scatter_reduce(creation.zeros(shape, dtype=x.dtype), at, spread, ones, "sum")
        empty = arithmetic.eq(many, 0)
        kept = math.nan if initial is None else begin
        joined = arithmetic.where(empty, kept, arithmetic.div(total, arithmetic.where(empty, 1.0, many)))
    else:
        joined = scatter_reductions.scatter_reduce(out, at, spread, x, _REDUCTIONS[reduce])
    return shape_ops.narrow(joined, at, 0, count)
