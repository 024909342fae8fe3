"""PyTorch's operators of scaled dot product attention, which know the logarithms of each row's sum of exponentials.

Where the backward pass runs beside the forward pass it finds the weights; else it computes them again from the logarithms, as
FlashAttention does (Dao et al., 2022, arXiv:2205.14135), without sums along rows but one of the gradient. Where the weights are
too many to be kept, GT's own instruction computes both passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

import gt
from gt.client.functional import functional as F
from gt.client.functional.attention import FUSED_FROM_WEIGHTS

from .aten_functions import gradients
from .kept_values import KeptValues
from .pytorch_internals import own_attention_enabled

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["attention", "backward", "forward", "fused", "fused_backward"]

aten: Final = torch.ops.aten

_WEIGHTS: Final = KeptValues()
"""For logarithms that `forward` gave, the weights and the scaled queries."""


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`scaled_dot_product_attention` of tensors of PyTorch: GT's, or PyTorch's composition of it from other operators where
    weights are dropped, heads are shared, numbers are not float32, or the program wants that one."""
    given = (query, key, value)
    plain = all(x.dim() == 4 and x.dtype is torch.float32 and x.numel() for x in given) and not (
        dropout_p or enable_gqa
    )
    if plain and query.shape[:2] == key.shape[:2] == value.shape[:2] and own_attention_enabled():
        return aten._scaled_dot_product_fused_attention_overrideable(
            *given, attn_mask, 0.0, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # which PyTorch's composition would add as 0 and 1
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -math.inf)
    return aten._scaled_dot_product_attention_math(
        *given, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The products of scaled queries with keys; −∞ for what takes no part."""
    scores = query @ key.transpose(-2, -1)
    if causal:
        queries, keys = scores.shape[-2:]
        scores = gt.where(gt.arange(keys) <= gt.arange(queries).reshape(queries, 1), scores, -math.inf)
    if mask is not None:
        scores = gt.where(mask, scores, -math.inf) if mask.dtype is gt.bool else scores + mask.to(scores.dtype)
    return scores


def _scaled(query: Tensor, scale: float | None) -> tuple[Tensor, float]:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return query * factor, factor


def _finite(x: Tensor, mask: Tensor | None) -> Tensor:
    """At least the lowest number instead of −∞, as rows have of which a mask leaves nothing: their weights become 0, not NaN."""
    return x if mask is None else gt.clamp_min(x, gt.finfo(x.dtype).min)


def _is_large(query: Tensor, key: Tensor) -> bool:
    return math.prod(query.shape[:-1]) * key.shape[-2] >= FUSED_FROM_WEIGHTS


def forward(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention, and the logarithms of each row's sum of exponentials."""
    if dropout or _is_large(query, key):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout, causal, scale=scale)
        return out, _logarithms(_scaled(query, scale)[0], key, attn_mask, causal)
    scaled = _scaled(query, scale)[0]
    scores = _scores(scaled, key, attn_mask, causal)
    largest = _finite(scores.amax(-1, True), attn_mask)
    weights = gt.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    divisor = total if attn_mask is None else gt.clamp_min(total, gt.finfo(total.dtype).tiny)
    logarithms, weights = (total.log() + largest).squeeze(-1), weights / divisor
    _WEIGHTS.keep(logarithms, (weights, scaled))
    return weights @ value, logarithms


def _logarithms(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Those of many rows, some queries after the other, so that not all weights are there at once."""
    queries, keys = query.shape[-2], key.shape[-2]
    height = max(1, FUSED_FROM_WEIGHTS // (math.prod(query.shape[:-2]) * keys))
    if causal:
        inside = gt.arange(keys) <= gt.arange(queries).reshape(queries, 1)
        mask = inside if mask is None else inside & mask if mask.dtype is gt.bool else gt.where(inside, mask, -math.inf)
    parts = []
    for start in range(0, queries, height):
        rows = slice(start, start + height)
        part = mask if mask is None or mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., rows, :]
        parts.append(gt.logsumexp(_scores(query[..., rows, :], key, part, False), -1))
    return parts[0] if len(parts) == 1 else gt.cat(parts, -1)


def backward(
    given: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logarithms: Tensor, dropout: float, causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of `forward` in queries, keys and values."""
    return _backward(given, query, key, value, attn_mask, out, logarithms, dropout, causal, scale)[0]


def _backward(
    given: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, out: Tensor, logarithms: Tensor,
    dropout: float, causal: bool, scale: float | None,
) -> tuple[tuple[Any, ...], Tensor | None]:  # fmt: skip
    """The gradients, and that of the scores if it was computed."""
    if dropout or _is_large(query, key):

        def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale)

        return tuple(gradients(function, [query, key, value], given, [True] * 3)), None
    scaled, factor = _scaled(query, scale)
    kept = _WEIGHTS.of(logarithms)
    if kept is None:
        weights = gt.exp(_scores(scaled, key, mask, causal) - _finite(logarithms.unsqueeze(-1), mask))
    else:
        weights, scaled = kept
    slope = weights * (given @ value.transpose(-2, -1) - (given * out).sum(-1, keepdim=True))
    of_query, of_key = (slope @ key) * factor, slope.transpose(-2, -1) @ scaled
    return (of_query, of_key, weights.transpose(-2, -1) @ given), slope


def fused(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, dropout: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """`forward` with what other devices keep for their backward passes: the seed and offset of what they draw, here none."""
    out, logarithms = forward(query, key, value, dropout, causal, attn_mask=bias, scale=scale)
    nothing = gt.zeros((), dtype=gt.int64)
    return out, logarithms, None, None, query.shape[-2], key.shape[-2], nothing, nothing, None


def fused_backward(
    given: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, wanted: Sequence[bool], out: Tensor,
    logarithms: Tensor, first: Any, second: Any, queries: int, keys: int, dropout: float, causal: bool, *rest: Any,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of `fused` in queries, keys, values and the bias."""
    found, slope = _backward(given, query, key, value, bias, out, logarithms, dropout, causal, scale)
    of_bias = None
    if wanted[3] and bias is not None:
        if slope is None:

            def function(bias: Tensor) -> Tensor:
                return F.scaled_dot_product_attention(query, key, value, bias, dropout, causal, scale=scale)

            (of_bias,) = gradients(function, [bias], given, [True])
        else:
            of_bias = slope.sum_to_size(bias.shape).to(bias.dtype)
    return (*(each if asked else None for each, asked in zip(found, wanted[:3], strict=True)), of_bias)
