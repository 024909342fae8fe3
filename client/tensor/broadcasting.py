"""Broadcasting backwards: gradients of operands that were broadcast."""

from __future__ import annotations

from . import emission
from .tensor import Tensor


def unbroadcast(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of an operand of `shape` that was broadcast: `g` summed over what broadcasting made."""
    have = g.shape
    if have == shape:
        return g
    lead = len(have) - len(shape)
    axes = tuple(i for i, size in enumerate(have) if i < lead or (size != 1 and shape[i - lead] == 1))
    if axes:
        g = emission.emit("sum", (g,), axes, lead == 0)
    return g if g.shape == shape else emission.emit("reshape", (g,), shape)
