"""Attention: one instruction where its matrix of weights would be large, and what it is composed of where that is small.

PyTorch's names, arguments and defaults; it is reached as `gt.nn.functional`. Which form is taken follows from shapes, dtypes and
what requires grad, never from values; both give the same numbers up to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gt.client.ops import arithmetic, creation, reductions
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission, emission_context
from gt.client.tensor.operands import cast, tensor_of
from gt.errors import ShapeError
from gt.ir.infer import broadcast

from . import dropout_functions

if TYPE_CHECKING:
    from gt.client.tensor.tape import TapeNode
    from gt.client.tensor.tensor import Tensor

OP_NAME: Final = "scaled_dot_product_attention"
FUSED_FROM_WEIGHTS: Final = 1 << 22
"""Weights from which attention is one instruction, `attention`, whose kernel never holds them all."""
FUSED_WITHOUT_GRADIENT: Final = 1 << 21
"""The same where nothing is recorded: the gradient computes the weights anew, which takes longer than to keep so few."""


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

    From `FUSED_FROM_WEIGHTS` (2²²) weights on, or half as many where no gradient is recorded, memory grows with l and s, not
    with their product, there and in the gradient: unless there is dropout, the mask requires grad, or the gradient is itself
    recorded (`create_graph`).
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: give either attn_mask or is_causal, not both")
    query, key, value = [tensor_of("scaled_dot_product_attention", each) for each in (query, key, value)]
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"scaled_dot_product_attention: shapes {query.shape}, {key.shape} and {value.shape}: "
            "each has at least two dimensions"
        )
    if enable_gqa:
        key, value = (_shared(x, query) for x in (key, value))
    query = arithmetic.mul(query, 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))
    mask = None if attn_mask is None else tensor_of(OP_NAME, attn_mask)
    if not dropout_p and _is_large(query, key, value, mask):
        return _attended(query, key, value, mask, is_causal)
    weights = _weights(query, key, mask, is_causal)
    if dropout_p:
        weights = dropout_functions.dropout(weights, dropout_p)
    return matmul(weights, value)


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    scores = matmul(query, _turned(key))
    if causal:
        return reductions.softmax(arithmetic.where(_causal(*scores.shape[-2:]), scores, -math.inf), -1)
    return reductions.softmax(scores, -1) if mask is None else masked_softmax(scores, mask)


def _turned(x: Tensor) -> Tensor:
    return emission.emit("permute", (x,), (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Each head of `x` repeated for the heads of queries that it serves."""
    if min(x.ndim, query.ndim) < 3 or not x.shape[-3] or query.shape[-3] % x.shape[-3]:
        raise ShapeError(f"scaled_dot_product_attention: heads of {x.shape} do not divide those of {query.shape}")
    *lead, heads, rows, size = x.shape
    times = query.shape[-3] // heads
    apart = emission.emit("reshape", (x,), (*lead, heads, 1, rows, size))
    spread = emission.emit("expand", (apart,), (*lead, heads, times, rows, size))
    return emission.emit("reshape", (spread,), (*lead, heads * times, rows, size))


def _causal(queries: int, keys: int) -> Tensor:
    """(queries, keys): whether the key does not come after the query."""
    rows = emission.emit("reshape", (creation.arange(queries),), (queries, 1))
    return arithmetic.le(creation.arange(keys), rows)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the last axis under a mask of booleans (what takes part) or of numbers (added).

    Rows of which nothing is left are zeros, and pass no gradient.
    """
    if mask.dtype.kind == "b":
        scores = arithmetic.where(mask, scores, -math.inf)
    else:
        scores = arithmetic.add(scores, cast(mask, scores.dtype))
    with emission_context.with_changes(grad=False):
        nothing = reductions.all(arithmetic.eq(scores, -math.inf), -1, True)
    weights = reductions.softmax(arithmetic.where(nothing, 0.0, scores), -1)
    return arithmetic.where(nothing, 0.0, weights)


# as one instruction


def _is_large(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the weights are many, and the instruction takes such operands. What does not fit is refused as it is composed."""
    (*stack, queries, size), (keys, out) = query.shape, value.shape[-2:]
    recorded = emission_context.current().grad and (query.requires_grad or key.requires_grad or value.requires_grad)
    least = FUSED_FROM_WEIGHTS if recorded else min(FUSED_FROM_WEIGHTS, FUSED_WITHOUT_GRADIENT)
    if queries * keys * math.prod(stack) < least or (size, keys) != (key.shape[-1], key.shape[-2]) or not out:
        return False
    if query.dtype.kind != "f" or not query.dtype is key.dtype is value.dtype:
        return False
    if mask is None:
        return True
    whole = (*broadcast(OP_NAME, [x.shape[:-2] for x in (query, key, value)]), queries, keys)
    ends = zip(reversed(mask.shape), reversed(whole), strict=False)
    return not mask.requires_grad and mask.ndim <= len(whole) and all(have in (1, want) for have, want in ends)


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    stack = broadcast(OP_NAME, [x.shape[:-2] for x in (query, key, value)])
    operands = [
        x if x.shape[:-2] == stack else emission.emit("expand", (x,), (*stack, *x.shape[-2:]))
        for x in (query, key, value)
    ]
    if mask is not None:
        operands.append(mask if mask.dtype.kind == "b" else cast(mask, query.dtype))
    return emission.emit("attention", tuple(operands), causal)


def gradient(n: TapeNode, g: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of queries, keys and values, and none of the mask. Where they are recorded themselves they are composed."""
    q, k, v = (n.operand(at) for at in range(3))
    masks = tuple(n.operand(3) for _ in n.edges[3:])
    causal = n.attribute("causal")
    if emission_context.current().grad:
        weights = _weights(q, k, masks[0] if masks else None, causal)
        slope = matmul(g, _turned(v)) * weights
        slope = slope - weights * reductions.sum(slope, -1, True)
        found = (
            matmul(slope, k),
            matmul(_turned(slope), q),
            matmul(_turned(weights), g),
        )
        return (*found, *(None for _ in masks))
    flat = emission.emit("attention_grad", (q, k, v, g, *masks), causal)
    parts: list[Tensor | None] = []
    start, axis = 0, flat.ndim - 1
    for at in range(3):
        shape = n.shape(at)
        size = math.prod(shape[-2:])
        wanted = n.needs(at)
        part = emission.emit("slice", (flat, start), (axis,), (size,), (1,)) if wanted else None
        parts.append(None if part is None else emission.emit("reshape", (part,), shape))
        start += size
    return (*parts, *(None for _ in masks))
