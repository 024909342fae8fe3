"""The norm of a tensor or along some of its dimensions, as PyTorch's `norm` has it, which `linalg` names otherwise."""

from __future__ import annotations

import math
from typing import Any

from gt.client.ops import arithmetic, reductions, statistics
from gt.client.ops.reductions import UNSET, axes_of, spelled
from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.ir.dtypes import HALF_DTYPES, as_dtype, float32

from .norms import matrix_norm

__all__ = ["norm"]


def norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None, *, axis: Any = None,
    keepdims: Any = UNSET,
) -> Tensor:  # fmt: skip
    """`(Σ |x|ᵖ)^(1/p)` over axes: for p = 0 how many are not zero, for ±∞ the largest or smallest |x|; 'fro' is 2, and 'nuc' of
    matrices the sum of their singular values."""
    x = tensor_of("norm", input)
    if dtype is not None:
        x = cast(x, as_dtype(dtype))
    if x.dtype.kind not in "fc":
        raise DTypeError(f"norm takes floating-point or complex numbers, not {x.dtype}: cast first, or pass dtype=")
    if x.dtype in HALF_DTYPES:  # whose squares may be beyond what float16 holds
        wide = norm(cast(x, float32), p, dim, keepdim, axis=axis, keepdims=keepdims)
        return cast(wide, x.dtype)
    chosen = spelled("norm", dim, axis, None)
    keep = spelled("norm", keepdim, keepdims, False)
    if p == "nuc":
        return matrix_norm(x, "nuc", (-2, -1) if chosen is None else chosen, keep)
    power = 2.0 if p in ("fro", None) else float(p)
    if x.ndim == 0:
        axes: tuple[int, ...] = ()
    else:
        axes = axes_of("norm", chosen, x)
    size = arithmetic.abs(x)
    if power == math.inf:
        return reductions.amax(size, axes or None, keep)
    if power == -math.inf:
        return reductions.amin(size, axes or None, keep)
    if power == 0:
        return emission.emit("sum", (statistics.nonzero(size),), axes, bool(keep))
    if power == 1:
        return emission.emit("sum", (size,), axes, bool(keep))
    if power == 2:
        return statistics._root(
            emission.emit("sum", (arithmetic.square(x if x.dtype.kind == "f" else size),), axes, bool(keep))
        )
    total = emission.emit("sum", (statistics._power(size, power),), axes, bool(keep))
    return statistics._power(total, 1 / power)
