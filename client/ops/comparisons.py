"""Comparisons of whole tensors, which wait for an answer."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.operands import tensor_of
from gt.client.tensor.tensor import Tensor

from . import reductions
from .arithmetic import eq, isclose

__all__ = ["allclose", "equal"]


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and equal elements; waits."""
    a, b = tensor_of("equal", input), tensor_of("equal", other)
    return a.shape == b.shape and bool(reductions.all(eq(a, b)))


def allclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close, as `isclose` has it; waits."""
    return bool(reductions.all(isclose(input, other, rtol, atol, equal_nan)))
