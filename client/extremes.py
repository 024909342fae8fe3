"""The largest or smallest of the values that meet at a place, which has a gradient of its own: equals share it.

It is a function of the tape's own kind, for what it is composed of would give all to one of equals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import apply as emission
from . import arithmetic
from .function import Function

if TYPE_CHECKING:
    from .function import FunctionCtx
    from .tensor import Tensor


def _turned(x: Tensor) -> Tensor:
    """In the opposite order, exactly: −x of floating-point numbers, −x − 1 of integers."""
    return arithmetic.neg(x) if x.dtype.kind == "f" else arithmetic.bitwise_not(x)


class Extreme(Function):
    """The largest or smallest at each place; equals share the gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, places: Tensor, values: Tensor, at: int, largest: bool) -> Tensor:
        mine, others = (x, values) if largest else (_turned(x), _turned(values))
        order = emission.apply("argsort", (others,), at, False)
        where = emission.apply("gather", (places, order), at)
        last = emission.apply("scatter", (mine, where, emission.apply("gather", (others, order), at)), at)
        out = arithmetic.maximum(mine, last)
        out = out if largest else _turned(out)
        ctx.save_for_backward(x, places, values, out)
        ctx.at = at  # type: ignore[attr-defined]  # any attribute may be set on it
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Any, ...]:
        x, places, values, out = ctx.saved_tensors
        assert x is not None, "it was saved"
        assert values is not None, "it was saved"
        at: int = ctx.at  # type: ignore[attr-defined]
        kept = arithmetic.cast(arithmetic.eq(x, out), g.dtype)
        taken = arithmetic.cast(arithmetic.eq(values, emission.apply("gather", (out, places), at)), g.dtype)
        share = arithmetic.div(g, emission.apply("scatter_add", (kept, places, taken), at))
        return (
            arithmetic.mul(kept, share), None,
            arithmetic.mul(taken, emission.apply("gather", (share, places), at)), None, None,
        )  # fmt: skip
