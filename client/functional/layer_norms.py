"""Normalisation over the last dimensions: `layer_norm` and `rms_norm`. Both are composed.

PyTorch's names, arguments and defaults; it is reached as `gt.nn.functional`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gt.client.ops import arithmetic
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import DTypeError, ShapeError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import HALF_DTYPES, DType, float32

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """(x − mean) / √(variance + eps) over the last dimensions, then `· weight + bias` (Ba et al., 2016, arXiv:1607.06450)."""
    x, axes, count = _normalised("layer_norm", input, normalized_shape)
    center = arithmetic.sub(x, arithmetic.div(_sum(x, axes), count))
    spread = arithmetic.div(_sum(arithmetic.square(center), axes), count)
    out = arithmetic.mul(center, arithmetic.rsqrt(arithmetic.add(spread, float(eps))))
    return _scaled("layer_norm", out, weight, bias, input.dtype)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + eps) over the last dimensions, then `· weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).

    Without `eps` it is the smallest step of the dtype.
    """
    x, axes, count = _normalised("rms_norm", input, normalized_shape)
    small = finfo(x.dtype).eps if eps is None else float(eps)
    spread = arithmetic.div(_sum(arithmetic.square(x), axes), count)
    return _scaled(
        "rms_norm", arithmetic.mul(x, arithmetic.rsqrt(arithmetic.add(spread, small))), weight, None, input.dtype
    )


def _normalised(name: str, input: Tensor, shape: Sequence[int]) -> tuple[Tensor, tuple[int, ...], float]:
    """The operand (half precision in float32, where squares fit), the axes to normalise over, and how many elements they have."""
    x, sizes = tensor_of(name, input), tuple(shape)
    if x.dtype.kind != "f":
        raise DTypeError(f"{name} takes floating-point numbers, not {x.dtype}")
    if not sizes or x.shape[-len(sizes) :] != sizes:
        raise ShapeError(f"{name}: input {x.shape} does not end in normalized_shape {sizes}")
    wide = cast(x, float32) if x.dtype in HALF_DTYPES else x
    return wide, tuple(range(x.ndim - len(sizes), x.ndim)), float(math.prod(sizes))


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return emission.emit("sum", (x,), axes, True)


def _scaled(name: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    if weight is not None:
        x = arithmetic.mul(x, tensor_of(name, weight))
    if bias is not None:
        x = arithmetic.add(x, tensor_of(name, bias))
    return cast(x, dtype)
