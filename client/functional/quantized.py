"""Linear maps by weights that are kept as int8 with one scale for each output, and how such weights are made.

Symmetric, as in "Integer quantization for deep learning inference" (Wu et al., 2020, arXiv:2004.09602): w[o, i] is about
scale[o] · q[o, i], with |q| ≤ 127. A rounding is off by half a scale at most, so |w[o, i] − scale[o] · q[o, i]| is at most
max |w[o]| / 254.
"""

from __future__ import annotations

from typing import Any

from gt.client.ops import arithmetic, reductions, shape_ops
from gt.client.tensor import emission, grad_mode
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GradientError, ShapeError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import DType, float32, float64, int8

__all__ = ["linear_int8", "quantize_rows"]

LARGEST_INT8 = 127.0
"""The largest quantised number. −128 is left out, so that a number and its negative are quantised alike."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The int8 numbers of floating-point x [..., k], and the scale of each row [..., 1]. A row with NaN has the scale NaN."""
    wide = cast(x, _computed_in(x.dtype))
    largest = reductions.amax(arithmetic.abs(wide), -1, True)
    scale = arithmetic.maximum(
        arithmetic.div(largest, LARGEST_INT8), finfo(wide.dtype).tiny
    )  # of zeros, by which nothing divides
    return cast(arithmetic.round(arithmetic.div(wide, scale)), int8), scale


def linear_int8(
    input: Any, weight: Tensor, scale: Tensor, bias: Tensor | None = None, *, dynamic: bool = False
) -> Tensor:
    """`input @ (scale · weight)ᵀ + bias`, with an int8 weight of shape (out, in) and one scale for each output.

    `dynamic`: the input is quantised too, each row by its own scale, and products are added up exactly, in int32. Half precision
    is computed in float32 and rounded once. Raises `GradientError` where a gradient would be recorded.
    """
    x = tensor_of("linear_int8", input)
    if x.dtype.kind != "f":
        raise DTypeError(f"linear_int8 takes floating-point input, not {x.dtype}: cast it first")
    if not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear_int8: input {x.shape} and weight {weight.shape}: inner sizes differ")
    if x.requires_grad and grad_mode.is_grad_enabled():
        raise GradientError(
            "linear_int8: a quantised layer is for inference and has no gradient: call it inside gt.no_grad(), and "
            "quantise a model after it has been trained"
        )
    rows = shape_ops.reshape(x, (1, *x.shape)) if x.ndim == 1 else x
    work = _computed_in(x.dtype)
    factor = cast(scale, work)
    if dynamic:
        numbers, steps = quantize_rows(rows)
        sums = cast(emission.emit("matmul_int8", (numbers, weight)), work)
        out = arithmetic.mul(arithmetic.mul(sums, steps), factor)
    else:
        out = arithmetic.mul(emission.emit("linear_int8", (cast(rows, work), weight)), factor)
    if bias is not None:
        out = arithmetic.add(out, cast(bias, work))
    out = cast(out, x.dtype)
    return shape_ops.reshape(out, out.shape[1:]) if x.ndim == 1 else out


def _computed_in(dtype: DType) -> DType:
    return float64 if dtype is float64 else float32
