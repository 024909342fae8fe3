"""Pooling: PyTorch's names, arguments and layouts, composed of sliding windows and reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of, unrolled
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import int64
from gt.ir.infer import conv_extent

from .convolution import Sizes, each_of, padded, windows

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d",
    "max_pool3d",
]  # fmt: skip


def _pooled(
    name: str, count: int, input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, filler: Any
) -> tuple[Tensor, Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
    """The windows [N, C, count …, size …] of a padded input; the input with a batch, kernel, strides, pads."""
    whole, x, form, pads, batched = _whole(name, count, input, kernel, stride, padding, dilation, ceil, filler)
    return windows(whole, *form), x, form[1], form[2], pads, batched


_Form = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Axes, sizes, strides and dilations of windows."""


def _whole(
    name: str, count: int, input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, filler: Any
) -> tuple[Tensor, Tensor, _Form, tuple[int, ...], bool]:
    """A padded input, of which windows are to be cut; the input with a batch, the form of the windows, pads."""
    x = tensor_of(name, input)
    batched = x.ndim == count + 2
    if not batched and x.ndim != count + 1:
        raise ShapeError(f"{name}: input {x.shape} has {count + 1} or (with a batch) {count + 2} dimensions")
    if not batched:
        x = shape_ops.unsqueeze(x, 0)
    sizes = each_of(name, "kernel_size", kernel, count)
    strides = sizes if stride is None or stride == () else each_of(name, "stride", stride, count)
    pads, dilations = each_of(name, "padding", padding, count, 0), each_of(name, "dilation", dilation, count)
    if any(2 * pad > size for pad, size in zip(pads, sizes, strict=True)):
        raise ShapeError(f"{name}: padding {pads} is at most half of the kernel {sizes}")
    whole = padded(x, pads, filler)
    if ceil:
        whole = _filled_up(whole, x.shape[2:], sizes, strides, pads, dilations, filler)
    return whole, x, (tuple(range(2, 2 + count)), sizes, strides, dilations), pads, batched


def _filled_up(
    x: Tensor, space: Sequence[int], sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int],
    dilations: Sequence[int], filler: Any,
) -> Tensor:  # fmt: skip
    """Filled up at the end, so that the last window, begun within input or padding before it, is whole."""
    shape = list(x.shape)
    for axis, (size, window, stride, pad, dilation) in enumerate(
        zip(space, sizes, strides, pads, dilations, strict=True), 2
    ):
        reach = conv_extent(window, dilation)
        count = -(-(shape[axis] - reach) // stride) + 1
        if (count - 1) * stride >= size + pad:
            count -= 1
        shape[axis] = max(shape[axis], (count - 1) * stride + reach)
    if tuple(shape) == x.shape:
        return x
    whole = creation.full(tuple(shape), filler, dtype=x.dtype)
    axes = tuple(range(2, x.ndim))
    return emission.emit("update_slice", (whole, x, *[0] * len(axes)), axes, x.shape[2:], (1,) * len(axes))


def _lowest(name: str, x: Tensor) -> float | int:
    if x.dtype.kind not in "fi":
        raise DTypeError(f"{name} takes real numbers, not {x.dtype}: cast first")
    return -math.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype.name).min)


def _max_pool(
    name: str, count: int, input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, indices: bool
) -> Any:
    known = tensor_of(name, input)
    if 0 in known.shape[max(known.ndim - count - 1, 0) :]:
        raise ShapeError(f"{name}: of an input only the batch may have size 0, not {known.shape}")
    lowest = _lowest(name, known)
    if not indices:
        whole, _, form, _, batched = _whole(name, count, input, kernel, stride, padding, dilation, ceil, lowest)
        out = emission.emit("max_pool", (whole,), *form)
        return out if batched else shape_ops.squeeze(out, 0)
    cut, x, sizes, strides, pads, batched = _pooled(name, count, input, kernel, stride, padding, dilation, ceil, lowest)
    flat = emission.emit("reshape", (cut,), (*cut.shape[: 2 + count], math.prod(sizes)))
    at = emission.emit("argmax", (flat,), 2 + count, True)
    out = shape_ops.squeeze(emission.emit("gather", (flat, at), 2 + count), 2 + count)
    out = out if batched else shape_ops.squeeze(out, 0)
    at = shape_ops.squeeze(at, 2 + count)
    place = None
    apart = each_of(name, "dilation", dilation, count)
    for axis in range(count):
        inner = math.prod(sizes[axis + 1 :])
        within = arithmetic.remainder(arithmetic.floor_divide(at, inner), sizes[axis])
        first = creation.arange(out.shape[axis - count]) * strides[axis] - pads[axis]
        first = emission.emit("reshape", (first,), (first.shape[0], *[1] * (count - 1 - axis)))
        along = within * apart[axis] + first
        place = along if place is None else place * x.shape[2 + axis] + along
    assert place is not None, "there is at least one dimension"
    return out, place if batched else shape_ops.squeeze(place, 0)


def max_pool1d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest of each window of (N, C, L); the first of equal ones gets the gradient."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest of each window of (N, C, H, W); with `return_indices` also where in the plane it is, int64."""
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """The largest of each window of (N, C, D, H, W); as `max_pool2d`."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    name: str, count: int, input: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: Any
) -> Tensor:
    if tensor_of(name, input).dtype is not int64 and input.dtype.kind in "bi":
        raise DTypeError(f"{name}: means are no {input.dtype}: cast to a floating-point dtype first")
    cut, x, sizes, strides, pads, batched = _pooled(name, count, input, kernel, stride, padding, 1, ceil, 0)
    total = emission.emit("sum", (cut,), tuple(range(2 + count, 2 + 2 * count)), False)
    if divisor == 0:
        raise ValueError(f"{name}: divisor_override is not 0")
    if divisor is not None:
        counted: Any = float(divisor)
    elif not ceil and (include or not any(pads)):
        counted = float(math.prod(sizes))
    else:
        shares = [
            _inside(size, made, window, stride, pad, include)
            for size, made, window, stride, pad in zip(x.shape[2:], total.shape[2:], sizes, strides, pads, strict=True)
        ]
        grid = shares[0]
        for share in shares[1:]:
            grid = grid[..., None] * share
        counted = creation.tensor(grid, dtype=x.dtype)
    if x.dtype.kind == "i":
        whole = cast(counted, x.dtype) if isinstance(counted, Tensor) else int(counted)
        out = arithmetic.div(total, whole, rounding_mode="trunc")
    else:
        out = arithmetic.div(total, counted)
    return out if batched else shape_ops.squeeze(out, 0)


def _inside(size: int, made: int, window: int, stride: int, pad: int, include: bool) -> np.ndarray[Any, Any]:
    """The number of elements of each window that count: those of the input, or of input and padding."""
    first = np.arange(made) * stride - pad
    low, high = (-pad, size + pad) if include else (0, size)
    return np.minimum(first + window, high) - np.maximum(first, low)


def avg_pool1d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean of each window of (N, C, L)."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window of (N, C, H, W), or its sum over `divisor_override`."""
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window of (N, C, D, H, W); as `avg_pool2d`."""
    return _avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _bins(size: int, made: int) -> list[tuple[int, int]]:
    """From where to where each of the outputs of an adaptive pooling looks."""
    return [(at * size // made, -(-(at + 1) * size // made)) for at in range(made)]


def _targets(name: str, x: Tensor, output_size: Any, count: int) -> tuple[int, ...]:
    wanted = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * count
    if len(wanted) != count or x.ndim not in (count + 1, count + 2):
        raise ShapeError(f"{name}: {count} sizes for an input of {count + 1} or {count + 2} dimensions, not {x.shape}")
    sizes = tuple(x.shape[x.ndim - count + at] if size is None else index(size) for at, size in enumerate(wanted))
    for size in sizes:
        if size < 0:
            raise ShapeError(f"{name}: sizes from 0, not {sizes}")
        unrolled(name, size)
    return sizes


def _adaptive(name: str, count: int, input: Any, output_size: Any, reduce: str) -> Tensor:
    """Axis by axis, for means and maxima of means and maxima are those of the whole (bins of one axis have one size or its
    means are weighted alike along the others)."""
    x = tensor_of(name, input)
    for at, made in enumerate(_targets(name, x, output_size, count)):
        axis = x.ndim - count + at
        size = x.shape[axis]
        if made == size:
            continue
        if made and size % made == 0:
            shape = (*x.shape[:axis], made, size // made, *x.shape[axis + 1 :])
            split = emission.emit("reshape", (x,), shape)
            x = reductions.mean(split, axis + 1) if reduce == "mean" else reductions.max(split, axis + 1)[0]
            continue
        parts = [shape_ops.narrow(x, axis, first, last - first) for first, last in _bins(size, made)]
        whole = [
            reductions.mean(p, axis, True) if reduce == "mean" else reductions.max(p, axis, True)[0] for p in parts
        ]
        x = join_and_pad.cat(whole, axis)
    return x


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Tensor:
    """(N, C, L) averaged to a length, in windows as even as may be."""
    return _adaptive("adaptive_avg_pool1d", 1, input, output_size, "mean")


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Tensor:
    """(N, C, H, W) averaged to a height and a width; None keeps one."""
    return _adaptive("adaptive_avg_pool2d", 2, input, output_size, "mean")


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Tensor:
    """(N, C, D, H, W) averaged to three sizes; None keeps one."""
    return _adaptive("adaptive_avg_pool3d", 3, input, output_size, "mean")


def _adaptive_max(name: str, count: int, input: Any, output_size: Any, return_indices: bool) -> Any:
    """With indices the bins of all dimensions are gathered at once: as large as the largest, cut off at the end."""
    if not return_indices:
        return _adaptive(name, count, input, output_size, "max")
    x = tensor_of(name, input)
    space = x.shape[-count:]
    place, inside = np.zeros((1,) * (2 * count), np.int64), np.ones((1,) * (2 * count), np.bool_)
    for axis, (size, made) in enumerate(zip(space, _targets(name, x, output_size, count), strict=True)):
        bins = _bins(size, made)
        widest = max((last - first for first, last in bins), default=1)
        listed = np.array([first for first, _ in bins], np.int64)[:, None] + np.arange(widest)
        ends = np.array([last for _, last in bins], np.int64)[:, None]
        shape = [1] * (2 * count)
        shape[axis], shape[count + axis] = listed.shape
        place = place * size + np.minimum(listed, size - 1).reshape(shape)
        inside = inside & (listed < ends).reshape(shape)
    place, inside = np.broadcast_arrays(place, inside)
    out, window = place.shape[:count], math.prod(place.shape[count:])
    where = creation.tensor(np.ascontiguousarray(place).reshape(-1, window))
    kept = creation.tensor(np.ascontiguousarray(inside).reshape(-1, window))
    flat = emission.emit("reshape", (x,), (*x.shape[:-count], math.prod(space)))
    axis = flat.ndim - 1
    each = emission.emit("take", (flat, where), axis)
    at = emission.emit("argmax", (arithmetic.where(kept, each, _lowest(name, x)),), axis + 1, True)
    values = emission.emit("gather", (each, at), axis + 1)
    rows = emission.emit("expand", (where,), (*x.shape[:-count], *where.shape))
    found = emission.emit("gather", (rows, at), axis + 1)
    whole = (*x.shape[:-count], *out)
    return emission.emit("reshape", (values,), whole), emission.emit("reshape", (found,), whole)


def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest in each window of (N, C, L), as many windows as `output_size` says; and, when asked, where it is."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest in each window of (N, C, H, W); None keeps a size. As `adaptive_max_pool1d`."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest in each window of (N, C, D, H, W); None keeps a size. As `adaptive_max_pool1d`."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)
