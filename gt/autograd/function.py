"""Functions with gradients of their own, under the name by which programs import them."""

from __future__ import annotations

from gt.client.tensor.custom_function import Function, FunctionCtx, once_differentiable

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
