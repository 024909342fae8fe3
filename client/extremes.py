"""Values that meet at a place, where several may be the one that is kept: which of them the gradient goes to.

These are functions of the tape's own kind, for what they are composed of would give all to the last.
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


class Laid(Function):
    """The last of the values for each place of an empty tensor; all of them get the gradient, as PyTorch has it: where windows
    overlap, they come from one element."""

    @staticmethod
    def forward(ctx: FunctionCtx, empty: Tensor, places: Tensor, values: Tensor, at: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.at = at  # type: ignore[attr-defined]  # any attribute may be set on it
        return emission.apply("scatter", (empty, places, values), at)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Any, ...]:
        (places,) = ctx.saved_tensors
        return None, None, emission.apply("gather", (g, places), ctx.at), None  # type: ignore[attr-defined]
