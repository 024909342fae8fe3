"""What transformers are made of: look-ups, normalisation over the last dimensions, attention. All of it is composed.

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
from . import arithmetic, creation, functional, reductions

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


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query keyᵀ · scale + mask) value (Vaswani et al., 2017, arXiv:1706.03762), scale 1/√size unless given.

    query (..., l, size), key (..., s, size), value (..., s, out); leading dimensions broadcast. A boolean `attn_mask`
    says what takes part, any other is added; a query that may see nothing gets zeros. `is_causal`: query i sees keys up
    to i. Dropout is applied whenever `dropout_p` is not 0. `enable_gqa`: heads (dimension −3) of keys and values serve
    several heads of queries each, in order.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: give either attn_mask or is_causal, not both")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"scaled_dot_product_attention: shapes {query.shape}, {key.shape} and {value.shape}: "
            "each has at least two dimensions"
        )
    if enable_gqa:
        key, value = (_shared(x, query) for x in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    order = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = functional.matmul(arithmetic.mul(query, factor), emission.apply("permute", (key,), order))
    if is_causal:
        weights = reductions.softmax(arithmetic.where(_causal(*scores.shape[-2:]), scores, -math.inf), -1)
    elif attn_mask is not None:
        weights = masked_softmax(scores, arithmetic.tensor_of("scaled_dot_product_attention", attn_mask))
    else:
        weights = reductions.softmax(scores, -1)
    if dropout_p:
        weights = functional.dropout(weights, dropout_p)
    return functional.matmul(weights, value)


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Each head of `x` repeated for the heads of queries that it serves."""
    if min(x.ndim, query.ndim) < 3 or not x.shape[-3] or query.shape[-3] % x.shape[-3]:
        raise ShapeError(f"scaled_dot_product_attention: heads of {x.shape} do not divide those of {query.shape}")
    *lead, heads, rows, size = x.shape
    times = query.shape[-3] // heads
    apart = emission.apply("reshape", (x,), (*lead, heads, 1, rows, size))
    spread = emission.apply("expand", (apart,), (*lead, heads, times, rows, size))
    return emission.apply("reshape", (spread,), (*lead, heads * times, rows, size))


def _causal(queries: int, keys: int) -> Tensor:
    """(queries, keys): whether the key does not come after the query."""
    rows = emission.apply("reshape", (creation.arange(queries),), (queries, 1))
    return arithmetic.le(creation.arange(keys), rows)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the last axis under a mask of booleans (what takes part) or of numbers (added).

    Rows of which nothing is left are zeros, and pass no gradient.
    """
    if mask.dtype.kind == "b":
        scores = arithmetic.where(mask, scores, -math.inf)
    else:
        scores = arithmetic.add(scores, arithmetic.cast(mask, scores.dtype))
    with emission.with_changes(grad=False):
        nothing = reductions.all(arithmetic.eq(scores, -math.inf), -1, True)
    weights = reductions.softmax(arithmetic.where(nothing, 0.0, scores), -1)
    return arithmetic.where(nothing, 0.0, weights)
