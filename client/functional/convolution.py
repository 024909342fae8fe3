"""Convolutions and sliding windows: PyTorch's names, arguments and layouts over three instructions.

`conv` is general enough to be its own gradient (as XLA's `ConvGeneralDilated`): the operand's elements may be spread apart
and cropped. `windows` and `overlap_add` are each other's transpose. Pooling, in `pooling.py`, is composed of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, creation, shape_ops
from gt.client.tensor import emission, emission_context
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import float64
from gt.ir.infer import conv_extent

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "unfold",
]  # fmt: skip

Sizes = int | Sequence[int]


def each_of(name: str, what: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """One number for each of `count` dimensions."""
    sizes = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * count
    if len(sizes) == 1:
        sizes *= count
    if len(sizes) != count or any(type(size) is not int or size < least for size in sizes):
        raise ShapeError(f"{name}: {what} is an integer from {least}, or {count} of them, not {value!r}")
    return sizes


def _correlated(
    x: Tensor, w: Tensor, strides: Sequence[int], pads: Sequence[int], spreads: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    if x.dtype.kind == "i":  # whole numbers are exact in float64 up to 2^53
        wide = [cast(each, float64) for each in (x, w)]
        return cast(_correlated(wide[0], wide[1], strides, pads, spreads, dilations), x.dtype)
    if x.dtype.kind == "c":
        parts = [[complex_numbers.real(each), complex_numbers.imag(each)] for each in (x, w)]
        (a, b), (c, d) = parts
        terms = [_correlated(p, q, strides, pads, spreads, dilations) for p, q in ((a, c), (b, d), (a, d), (b, c))]
        return complex_numbers.complex(arithmetic.sub(terms[0], terms[1]), arithmetic.add(terms[2], terms[3]))
    return emission.emit("conv", (x, w), tuple(strides), tuple(pads), tuple(spreads), tuple(dilations))


def _operands(
    name: str, count: int, input: Any, weight: Any, bias: Any, groups: int, *, transposed: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """The input with a batch, the weight, the bias, and whether the input had a batch."""
    x, w = tensor_of(name, input), tensor_of(name, weight)
    bias = None if bias is None else tensor_of(name, bias)
    batched = x.ndim == count + 2
    if not batched and x.ndim != count + 1:
        raise ShapeError(f"{name}: input {x.shape} has {count + 1} or (with a batch) {count + 2} dimensions")
    if x.dtype is not w.dtype:
        raise DTypeError(f"{name}: input and weight have one dtype, not {x.dtype} and {w.dtype}")
    if transposed and x.dtype.kind in "bi" and x.dtype.itemsize == 1:
        raise DTypeError(f"{name}: sums are no {x.dtype}: cast to a wider dtype first")
    if not batched:
        x = shape_ops.unsqueeze(x, 0)
    channels = w.shape[0] if transposed and w.ndim else w.shape[1] * groups if w.ndim > 1 else -1
    made = w.shape[0] if not transposed and w.ndim else -1
    if w.ndim != count + 2 or groups < 1 or x.shape[1] != channels or (w.shape[0] % groups):
        raise ShapeError(
            f"{name}: input {x.shape} and weight {w.shape} with groups={groups}: the weight is "
            + ("(in, out / groups, …)" if transposed else "(out, in / groups, …)")
            + f", for {x.shape[1]} channels in"
        )
    expected = w.shape[1] * groups if transposed else made
    if bias is not None and bias.dtype is not w.dtype and emission_context.current().lower is None:
        raise DTypeError(f"{name}: a bias of the dtype of the weight, {w.dtype}, not {bias.dtype}")
    if bias is not None and bias.shape != (expected,):
        raise ShapeError(f"{name}: a bias of shape ({expected},), not {bias.shape}")
    return x, w, bias, batched


def _finished(out: Tensor, count: int, bias: Tensor | None, batched: bool) -> Tensor:
    """[n, g, o, …] as [n, g·o, …], with the bias."""
    n, g, o, *space = out.shape
    out = emission.emit("reshape", (out,), (n, g * o, *space))
    if bias is not None:
        moved = emission.emit("reshape", (bias,), (g * o, *[1] * count))
        out = arithmetic.add(out, cast(moved, out.dtype))
    return out if batched else shape_ops.squeeze(out, 0)


def _conv(
    name: str, count: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    x, w, bias, batched = _operands(name, count, input, weight, bias, groups)
    strides, dilations = each_of(name, "stride", stride, count), each_of(name, "dilation", dilation, count)
    if isinstance(padding, str):
        if padding not in ("valid", "same") or (padding == "same" and any(step != 1 for step in strides)):
            raise ValueError(f"{name}: padding is numbers, 'valid' or (with stride 1) 'same', not {padding!r}")
        missing = [conv_extent(size, step) - 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
        pads = [part for each in missing for part in ((each // 2, each - each // 2) if padding == "same" else (0, 0))]
    else:
        pads = [each for size in each_of(name, "padding", padding, count, 0) for each in (size, size)]
    n, c, *space = x.shape
    grouped = emission.emit("reshape", (x,), (n, groups, c // groups, *space))
    kernel = emission.emit("reshape", (w,), (groups, w.shape[0] // groups, *w.shape[1:]))
    return _finished(_correlated(grouped, kernel, strides, pads, (1,) * count, dilations), count, bias, batched)


def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Any = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Cross-correlation of (N, C, L) or (C, L) with a weight (out, C / groups, k). `padding` may be 'same' or 'valid'."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Any = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Cross-correlation of (N, C, H, W) or (C, H, W) with a weight (out, C / groups, h, w); as `conv1d`."""
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Any = 0, dilation: Sizes = 1, groups: int = 1
) -> Tensor:
    """Cross-correlation of (N, C, D, H, W) or (C, D, H, W) with a weight (out, C / groups, d, h, w); as `conv1d`."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    name: str, count: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    x, w, bias, batched = _operands(name, count, input, weight, bias, groups, transposed=True)
    strides, dilations = each_of(name, "stride", stride, count), each_of(name, "dilation", dilation, count)
    extra = each_of(name, "output_padding", output_padding, count, 0)
    if any(more >= max(pair) for more, *pair in zip(extra, strides, dilations, strict=True)):
        raise ShapeError(f"{name}: output_padding {extra} is smaller than stride {strides} or dilation {dilations}")
    pads = []
    for size, step, cut, more in zip(
        w.shape[2:], dilations, each_of(name, "padding", padding, count, 0), extra, strict=True
    ):
        reach = conv_extent(size, step) - 1 - cut
        pads += [reach, reach + more]
    n, c, *space = x.shape
    grouped = emission.emit("reshape", (x,), (n, groups, c // groups, *space))
    kernel = emission.emit("reshape", (w,), (groups, c // groups, *w.shape[1:]))
    return _finished(
        _correlated(grouped, _turned(kernel), (1,) * count, pads, strides, dilations), count, bias, batched
    )


def conv_transpose1d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transpose of `conv1d` (its gradient in the input), with a weight (in, out / groups, k)."""
    return _conv_transpose(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transpose of `conv2d` (its gradient in the input), with a weight (in, out / groups, h, w)."""
    return _conv_transpose(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The transpose of `conv3d` (its gradient in the input), with a weight (in, out / groups, d, h, w)."""
    return _conv_transpose(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def _turned(w: Tensor) -> Tensor:
    """A weight [g, o, c, …] as the transposed convolution reads it: [g, c, o, …], every dimension of space backwards."""
    count = w.ndim - 3
    axes, sizes = tuple(range(3, w.ndim)), w.shape[3:]
    if any(size > 1 for size in sizes):
        w = emission.emit("slice", (w, *(size - 1 for size in sizes)), axes, sizes, (-1,) * count)
    return emission.emit("permute", (w,), (0, 2, 1, *axes))


# gradients of conv


def input_gradient(x: tuple[int, ...], w: Tensor, g: Tensor, attributes: dict[str, Any]) -> Tensor:
    """The gradient of `conv` in an operand of shape `x`: what it gave, spread by its strides, with the weight turned."""
    pads = []
    for at, (size, kernel, made) in enumerate(zip(x[3:], w.shape[3:], g.shape[3:], strict=True)):
        stride, reach = attributes["strides"][at], (kernel - 1) * attributes["dilations"][at]
        before = reach - attributes["pads"][2 * at]
        pads += [before, (size - 1) * attributes["spreads"][at] + reach - (made - 1) * stride - before]
    return _correlated(g, _turned(w), attributes["spreads"], pads, attributes["strides"], attributes["dilations"])


def weight_gradient(x: Tensor, w: tuple[int, ...], g: Tensor, attributes: dict[str, Any]) -> Tensor:
    """The gradient of `conv` in a weight of shape `w`: examples and channels change places.

    Of what `conv` gave and its input, the one that is spread further is the weight: what lies apart in a weight costs nothing.
    """
    if math.prod(attributes["spreads"]) > math.prod(attributes["strides"]):
        return _turned_weight_gradient(x, w, g, attributes)
    pads = []
    for at, (size, kernel, made) in enumerate(zip(x.shape[3:], w[3:], g.shape[3:], strict=True)):
        before = attributes["pads"][2 * at]
        reach = (kernel - 1) * attributes["dilations"][at] + (made - 1) * attributes["strides"][at]
        pads += [before, reach - (size - 1) * attributes["spreads"][at] - before]
    space = tuple(range(3, x.ndim))
    turned = emission.emit("permute", (x,), (2, 1, 0, *space)), emission.emit("permute", (g,), (1, 2, 0, *space))
    out = _correlated(*turned, attributes["dilations"], pads, attributes["spreads"], attributes["strides"])
    return emission.emit("permute", (out,), (1, 2, 0, *space))


def _turned_weight_gradient(x: Tensor, w: tuple[int, ...], g: Tensor, attributes: dict[str, Any]) -> Tensor:
    """The same with x as the weight: it has the elements of each dimension of space backwards."""
    pads = []
    for at, (size, kernel, made) in enumerate(zip(x.shape[3:], w[3:], g.shape[3:], strict=True)):
        before = (kernel - 1) * attributes["dilations"][at] - attributes["pads"][2 * at]
        reach = (size - 1) * attributes["spreads"][at] + (kernel - 1) * attributes["dilations"][at]
        pads += [before, reach - (made - 1) * attributes["strides"][at] - before]
    space = tuple(range(3, x.ndim))
    moved = emission.emit("permute", (g,), (2, 1, 0, *space)), emission.emit("permute", (x,), (1, 2, 0, *space))
    out = _correlated(*moved, attributes["dilations"], pads, attributes["strides"], attributes["spreads"])
    return _turned(emission.emit("permute", (out,), (1, 2, 0, *space)))


# windows


def windows(
    x: Tensor, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """Every window along `axes`, one dimension more at the end for each."""
    return emission.emit("windows", (x,), tuple(axes), tuple(sizes), tuple(strides), tuple(dilations))


def unfold(input: Any, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """The windows of (N, C, H, W) as columns (N, C · window, count), row-major in both."""
    x = tensor_of("unfold", input)
    if x.ndim not in (3, 4):
        raise ShapeError(f"unfold: input {x.shape} is (C, H, W) or (N, C, H, W)")
    size, step = each_of("unfold", "kernel_size", kernel_size, 2), each_of("unfold", "stride", stride, 2)
    x, batched = (x, True) if x.ndim == 4 else (shape_ops.unsqueeze(x, 0), False)
    whole = padded(x, each_of("unfold", "padding", padding, 2, 0), 0)
    cut = windows(whole, (2, 3), size, step, each_of("unfold", "dilation", dilation, 2))
    n, c, h, w = cut.shape[:4]
    out = emission.emit("permute", (cut,), (0, 1, 4, 5, 2, 3))
    out = emission.emit("reshape", (out,), (n, c * math.prod(size), h * w))
    return out if batched else shape_ops.squeeze(out, 0)


def fold(
    input: Any, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The transpose of `unfold`: columns (N, C · window, count) laid where they were cut from and added."""
    x = tensor_of("fold", input)
    size, step = each_of("fold", "kernel_size", kernel_size, 2), each_of("fold", "stride", stride, 2)
    apart, pad = each_of("fold", "dilation", dilation, 2), each_of("fold", "padding", padding, 2, 0)
    whole = [each + 2 * more for each, more in zip(each_of("fold", "output_size", output_size, 2), pad, strict=True)]
    x, batched = (x, True) if x.ndim == 3 else (shape_ops.unsqueeze(x, 0), False)
    counts = [
        (length - conv_extent(window, d)) // s + 1
        for length, window, d, s in zip(whole, size, apart, step, strict=True)
    ]
    if x.ndim != 3 or x.shape[1] % math.prod(size) or x.shape[2] != math.prod(counts):
        raise ShapeError(f"fold: input {input.shape} is not (N, C · {math.prod(size)}, {math.prod(counts)})")
    n, c = x.shape[0], x.shape[1] // math.prod(size)
    cut = emission.emit("reshape", (x,), (n, c, *size, *counts))
    cut = emission.emit("permute", (cut,), (0, 1, 4, 5, 2, 3))
    out = emission.emit("overlap_add", (cut,), (2, 3), tuple(whole), step, apart)
    for axis, (length, more) in enumerate(zip(whole, pad, strict=True), 2):
        out = shape_ops.narrow(out, axis, more, length - 2 * more) if more else out
    return out if batched else shape_ops.squeeze(out, 0)


def padded(x: Tensor, pads: Sequence[int], value: Any) -> Tensor:
    """`x` with `pads` elements of a value on both sides of its last dimensions."""
    if not any(pads):
        return x
    first = x.ndim - len(pads)
    shape = (*x.shape[:first], *(size + 2 * pad for size, pad in zip(x.shape[first:], pads, strict=True)))
    whole = creation.full(shape, value, dtype=x.dtype)
    sizes = x.shape[first:]
    return emission.emit("update_slice", (whole, x, *pads), tuple(range(first, x.ndim)), sizes, (1,) * len(pads))
