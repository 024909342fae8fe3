"""Dropout: elements or whole channels are zeroed at random while training, and what remains is scaled."""

from __future__ import annotations

from typing import Any

from gt.client.ops import arithmetic, random
from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]


def _drop(name: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    """Zeros where a draw of `shape`, which broadcasts, says so; the rest scaled by 1 / (1 − p)."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies from 0 to 1, not {p}")
    if not training or p == 0:
        return x
    if p == 1:
        out = arithmetic.mul(x, 0.0)
    else:
        draw = random.draw("uniform", shape, x.dtype)
        out = arithmetic.where(emission.emit("ge", (draw, float(p))), arithmetic.mul(x, 1 / (1 - p)), 0.0)
    return x._write(name, out) if inplace else out


@also_named(train="training")
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element is 0 with probability `p`, the others are scaled by 1 / (1 − p); outside training nothing is."""
    x = tensor_of("dropout", input)
    return _drop("dropout", x, x.shape, p, training, inplace)


def _drop_channels(name: str, input: Any, field: int, p: float, training: bool, inplace: bool) -> Tensor:
    x = tensor_of(name, input)
    if x.ndim not in (field + 1, field + 2):
        raise ShapeError(f"{name} takes (N, C, …) or (C, …) with {field} more dimensions, not shape {x.shape}")
    return _drop(name, x, (*x.shape[:-field], *(1,) * field), p, training, inplace)


def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, L) or (C, L)."""
    return _drop_channels("dropout1d", input, 1, p, training, inplace)


def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, H, W) or (C, H, W)."""
    return _drop_channels("dropout2d", input, 2, p, training, inplace)


def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    return _drop_channels("dropout3d", input, 3, p, training, inplace)


@also_named(train="training")
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1 of what goes through `selu` (Klambauer et al., 2017, arXiv:1706.02515)."""
    x = tensor_of("alpha_dropout", input)
    return _alpha_dropped("alpha_dropout", x, x.shape, p, training, inplace)


@also_named(train="training")
def feature_alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, …)."""
    x = tensor_of("feature_alpha_dropout", input)
    if training and x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout takes (N, C, …), not shape {x.shape}")
    return _alpha_dropped("feature_alpha_dropout", x, (*x.shape[:2], *(1,) * (x.ndim - 2)), p, training, inplace)


def _alpha_dropped(name: str, x: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: a probability lies from 0 to 1, not {p}")
    if not training or p == 0:
        return x
    if p == 1:
        out = arithmetic.mul(x, 0.0)
    else:
        low = -1.7580993408473766
        scale = ((1 - p) * (1 + p * low**2)) ** -0.5
        kept = emission.emit("ge", (random.draw("uniform", shape, x.dtype), float(p)))
        out = arithmetic.add(arithmetic.mul(arithmetic.where(kept, x, low), scale), -scale * low * p)
    return x._write(name, out) if inplace else out
