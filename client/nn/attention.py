"""Attention with several heads, as PyTorch's module of that name computes it, masks included."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functional import attention, dropout_functions, functional, linear
from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.ops.matrix_products import matmul
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from . import init
from .linear import NonDynamicallyQuantizableLinear
from .module import Module
from .parameter import Parameter


class MultiheadAttention(Module):
    """Attention of queries to keys and values, in `num_heads` parts (Vaswani et al., 2017, arXiv:1706.03762).

    Shapes are (L, N, E), with `batch_first` (N, L, E), or (L, E). A query that may see nothing gets zeros.
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"MultiheadAttention: {num_heads} heads do not divide embed_dim {embed_dim}")
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        shapes: dict[str, tuple[int, ...] | None] = dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"))
        if self._qkv_same_embed_dim:
            shapes = {"in_proj_weight": (3 * embed_dim, embed_dim), **shapes}
        else:
            sizes = (embed_dim, self.kdim, self.vdim)
            shapes = {
                **{name: (embed_dim, size) for name, size in zip(shapes, sizes, strict=True)},
                "in_proj_weight": None,
            }
        shapes["in_proj_bias"] = (3 * embed_dim,) if bias else None
        for name, shape in shapes.items():
            self._make(name, shape, dtype)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        for name in ("bias_k", "bias_v"):
            self._make(name, (1, 1, embed_dim) if add_bias_kv else None, dtype)
        self._reset_parameters()

    def _make(self, name: str, shape: tuple[int, ...] | None, dtype: Any) -> None:
        self.register_parameter(name, None if shape is None else Parameter(creation.empty(shape, dtype=dtype)))

    def _reset_parameters(self) -> None:
        """Weights by Glorot and Bengio, biases 0, those of keys and values normal."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(outputs, weights or None). True in a boolean mask says what does not take part; other masks are added.

        `key_padding_mask` is (N, S) or (S), `attn_mask` (L, S) or (N · heads, L, S); `is_causal` says that `attn_mask`
        is the causal one, which it must be.
        """
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal is a hint about attn_mask, which has to be given with it")
        if query.ndim not in (2, 3) or query.ndim != key.ndim or key.ndim != value.ndim:
            raise ShapeError(f"MultiheadAttention: query {query.shape}, key {key.shape} and value {value.shape}")
        single = query.ndim == 2
        q, k, v = self._project(query, key, value, single)
        mask = self._mask(key_padding_mask, attn_mask, q, k.shape[1], single)
        k, v, mask = self._append_rows(k, v, mask)
        qh, kh, vh = (self._heads(x) for x in (q, k, v))
        drop = self.dropout if self.training else 0.0
        if need_weights:
            scores = matmul(arithmetic.mul(qh, 1 / math.sqrt(self.head_dim)), kh.transpose(-2, -1))
            weights = reductions.softmax(scores, -1) if mask is None else attention.masked_softmax(scores, mask)
            weights = dropout_functions.dropout(weights, drop) if drop else weights
            out = matmul(weights, vh)
            shown = reductions.mean(weights, 1) if average_attn_weights else weights
        else:
            out = functional.scaled_dot_product_attention(qh, kh, vh, mask, drop)
            shown = None
        joined = self.out_proj(shape_ops.reshape(shape_ops.transpose(out, 1, 2), q.shape))
        if single:
            return shape_ops.squeeze(joined, 0), None if shown is None else shape_ops.squeeze(shown, 0)
        return joined if self.batch_first else joined.transpose(0, 1), shown

    def _project(self, query: Tensor, key: Tensor, value: Tensor, single: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (N, length, E)."""
        size, bias = self.embed_dim, self.in_proj_bias
        biases = (None,) * 3 if bias is None else shape_ops.chunk(bias, 3)
        if self._qkv_same_embed_dim:
            assert self.in_proj_weight is not None
            if query is key is value:
                x = self._with_batch(query, single)
                q, k, v = shape_ops.split(linear.linear(x, self.in_proj_weight, bias), size, -1)
                return q, k, v
            weights: Any = shape_ops.chunk(self.in_proj_weight, 3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        q, k, v = (
            linear.linear(self._with_batch(x, single), weight, each)
            for x, weight, each in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v

    def _with_batch(self, x: Tensor, single: bool) -> Tensor:
        return shape_ops.unsqueeze(x, 0) if single else x if self.batch_first else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        """(N, length, E) as (N, heads, length, E / heads)."""
        return shape_ops.transpose(shape_ops.reshape(x, (*x.shape[:2], self.num_heads, self.head_dim)), 1, 2)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, q: Tensor, keys: int, single: bool) -> Tensor | None:
        """One mask that broadcasts to (N, heads, L, S): of booleans, of what takes part; else to be added."""
        batch, queries, _ = q.shape
        found: Tensor | None = None
        if mask is not None:
            if mask.shape not in ((queries, keys), (batch * self.num_heads, queries, keys)):
                raise ShapeError(f"MultiheadAttention: attn_mask {mask.shape} for {queries} queries and {keys} keys")
            found = shape_ops.reshape(mask, (batch, self.num_heads, queries, keys)) if mask.ndim == 3 else mask
        if padding is not None:
            if padding.shape != ((keys,) if single else (batch, keys)):
                raise ShapeError(f"MultiheadAttention: key_padding_mask {padding.shape} for {batch} times {keys} keys")
            hidden = shape_ops.reshape(padding, (batch, 1, 1, keys))
            found = hidden if found is None else _merge_masks(found, hidden, q)
        if found is None or found.dtype.kind != "b":
            return found
        return arithmetic.logical_not(found)

    def _append_rows(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The learnt key and value, and those of zeros, after the others; no mask hides them."""
        batch = k.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                join_and_pad.cat([x, shape_ops.expand(bias, (batch, 1, self.embed_dim))], 1)
                for x, bias in ((k, self.bias_k), (v, self.bias_v))
            )
            mask = _one_more(mask)
        if self.add_zero_attn:
            k, v = (join_and_pad.cat([x, creation.zeros((batch, 1, self.embed_dim), dtype=x.dtype)], 1) for x in (k, v))
            mask = _one_more(mask)
        return k, v, mask


def _additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of PyTorch's kind as numbers to be added to scores."""
    if mask.dtype.kind != "b":
        return cast(mask, like.dtype)
    return arithmetic.where(mask, creation.full((), -math.inf, dtype=like.dtype), 0.0)


def _merge_masks(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    if a.dtype.kind == b.dtype.kind == "b":
        return arithmetic.logical_or(a, b)
    return arithmetic.add(_additive_mask(a, like), _additive_mask(b, like))


def _one_more(mask: Tensor | None) -> Tensor | None:
    """A mask for one key more, which takes part."""
    if mask is None:
        return None
    column = creation.full((*mask.shape[:-1], 1), mask.dtype.kind == "b", dtype=mask.dtype)
    return join_and_pad.cat([mask, column], -1)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `MultiheadAttention` computes, of weights that are given: (L, N, E) or (L, E), and the weights of keys or None.

    Without `need_weights`, `is_causal` may be said without a mask.
    """
    if static_k is not None or static_v is not None:
        raise NotImplementedError(
            "multi_head_attention_forward: keys and values are projected: leave static_k and static_v"
        )
    query, key, value = [tensor_of("multi_head_attention_forward", each) for each in (query, key, value)]
    if num_heads < 1 or embed_dim_to_check % num_heads:
        raise ShapeError(f"multi_head_attention_forward: {num_heads} heads do not divide {embed_dim_to_check} features")
    if query.shape[-1] != embed_dim_to_check:
        raise ShapeError(f"multi_head_attention_forward: queries {query.shape} of {embed_dim_to_check} features")
    if is_causal and attn_mask is None and not need_weights:
        attn_mask = arithmetic.logical_not(attention._causal(query.shape[0], key.shape[0]))
    layer = object.__new__(MultiheadAttention)
    Module.__init__(layer)
    layer.__dict__.update(
        training=training,
        embed_dim=embed_dim_to_check,
        num_heads=num_heads,
        head_dim=embed_dim_to_check // num_heads,
        dropout=dropout_p,
        batch_first=False,
        add_zero_attn=add_zero_attn,
        _qkv_same_embed_dim=not use_separate_proj_weight,
        in_proj_weight=in_proj_weight,
        q_proj_weight=q_proj_weight,
        k_proj_weight=k_proj_weight,
        v_proj_weight=v_proj_weight,
        in_proj_bias=in_proj_bias,
        bias_k=bias_k,
        bias_v=bias_v,
        out_proj=lambda x: linear.linear(x, out_proj_weight, out_proj_bias),
    )
    return layer.forward(
        query,
        key,
        value,
        key_padding_mask,
        need_weights,
        attn_mask,
        average_attn_weights,
        is_causal and attn_mask is not None,
    )
