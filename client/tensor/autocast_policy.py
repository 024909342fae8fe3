"""The policy of automatic mixed precision: in which dtype each op computes inside `autocast`, as PyTorch's lists have it."""

from __future__ import annotations

from typing import Final

from gt.ir.dtypes import HALF_DTYPES, DType, float32

LOWERED: Final = frozenset({"matmul", "conv", "attention"})
"""Ops whose operands are cast to the half-precision dtype."""

WIDENED: Final = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "pow", "rsqrt", "reciprocal"),
        *("acos", "asin", "tan", "cosh", "sinh", "erfinv", "lgamma", "digamma"),
        *("sum", "prod", "softmax", "log_softmax", "cumsum", "cumprod"),
        *("solve", "cholesky", "inverse", "det", "slogdet", "qr", "svd", "eigh", "eig"),
    }
)
"""Ops whose operands are cast to float32."""

ELIGIBLE: Final = frozenset({float32, *HALF_DTYPES})
"""The dtypes that are cast at all."""


def computed_in(op: str, lower: DType) -> DType | None:
    """The dtype to which an op's operands are cast where products are computed in `lower`; None: as they are."""
    if op in LOWERED:
        return lower
    return float32 if op in WIDENED else None
