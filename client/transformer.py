"""What transformers are made of beside attention: look-ups, and normalisation over the last dimensions. All of it is composed.

PyTorch's names, arguments and defaults; it is reached as `gt.nn.functional`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gt.dtypes import HALVES, DType, float32
from gt.errors import DTypeError, ShapeError
from gt.limits import finfo

from . import apply as emission
from . import arithmetic

if TYPE_CHECKING:
    from .tensor import Tensor


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` (rows, size) that integers list: (..., size). The row `padding_idx` gets no gradient.

    With `max_norm` rows that are listed and longer are scaled down in place first. An index out of range is an error at the
    fetch.
    """
    if scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding: gradients are dense and unscaled: leave scale_grad_by_freq and sparse")
    places, rows = arithmetic.tensor_of("embedding", input), arithmetic.tensor_of("embedding", weight)
    if rows.ndim != 2:
        raise ShapeError(f"embedding: a weight of shape (rows, size), not {rows.shape}")
    if max_norm is not None:
        from .bags import renormed  # which is above this module

        renormed(rows, places, max_norm, norm_type)
    found = emission.apply("take", (rows, places), 0)
    if padding_idx is None:
        return found
    row = place_of("embedding", padding_idx, rows.shape[0])
    padding = emission.apply("reshape", (arithmetic.eq(places, row),), (*places.shape, 1))
    return arithmetic.where(padding, found.detach(), found)


def place_of(name: str, padding_idx: int, rows: int) -> int:
    """The row that `padding_idx` names, which may count from the end."""
    if not -rows <= padding_idx < rows:
        raise ShapeError(f"{name}: padding_idx {padding_idx} is not one of {rows} rows")
    return padding_idx % rows


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) / √(variance + eps) over the last dimensions, then `· weight + bias` (Ba et al., 2016, arXiv:1607.06450)."""
    x, axes, count = _normalised("layer_norm", input, normalized_shape)
    center = arithmetic.sub(x, arithmetic.div(_sum(x, axes), count))
    spread = arithmetic.div(_sum(arithmetic.square(center), axes), count)
    out = arithmetic.mul(center, arithmetic.rsqrt(arithmetic.add(spread, float(eps))))
    return _scaled(out, weight, bias, input.dtype)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + eps) over the last dimensions, then `· weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).

    Without `eps` it is the smallest step of the dtype.
    """
    x, axes, count = _normalised("rms_norm", input, normalized_shape)
    small = finfo(x.dtype).eps if eps is None else float(eps)
    spread = arithmetic.div(_sum(arithmetic.square(x), axes), count)
    return _scaled(arithmetic.mul(x, arithmetic.rsqrt(arithmetic.add(spread, small))), weight, None, input.dtype)


def _normalised(name: str, input: Tensor, shape: Sequence[int]) -> tuple[Tensor, tuple[int, ...], float]:
    """The operand (half precision in float32, where squares fit), the axes to normalise over, and how many elements they have."""
    x, sizes = arithmetic.tensor_of(name, input), tuple(shape)
    if x.dtype.kind != "f":
        raise DTypeError(f"{name} takes floating-point numbers, not {x.dtype}")
    if not sizes or x.shape[-len(sizes) :] != sizes:
        raise ShapeError(f"{name}: input {x.shape} does not end in normalized_shape {sizes}")
    wide = arithmetic.cast(x, float32) if x.dtype in HALVES else x
    return wide, tuple(range(x.ndim - len(sizes), x.ndim)), float(math.prod(sizes))


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return emission.apply("sum", (x,), axes, True)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    if weight is not None:
        x = arithmetic.mul(x, weight)
    if bias is not None:
        x = arithmetic.add(x, bias)
    return arithmetic.cast(x, dtype)
