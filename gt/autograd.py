"""Differentiation by hand: the client's functions, under the name by which programs import them."""

from __future__ import annotations

from gt.client.autograd import grad
from gt.client.modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled

__all__ = ["enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]
