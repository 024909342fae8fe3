"""Changes of shape that emit nothing where there is nothing to change: JAX's programs are full of those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import gt

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["expanded", "permuted", "shaped"]


def shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x` in this shape."""
    return x if x.shape == tuple(shape) else gt.reshape(x, tuple(shape))


def expanded(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x` broadcast to this shape."""
    return x if x.shape == tuple(shape) else gt.broadcast_to(x, tuple(shape))


def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """`x` with its dimensions in this order."""
    return x if tuple(order) == tuple(range(x.ndim)) else gt.permute(x, tuple(order))
