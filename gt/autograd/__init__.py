"""Differentiation by hand: the client's functions, under the names by which programs import them."""

from __future__ import annotations

from gt.client.derivatives import backward, grad
from gt.client.function import Function
from gt.client.gradcheck import gradcheck, gradgradcheck
from gt.client.modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.variable import Variable

from . import function, functional, variable

__all__ = [
    "Function", "Variable", "backward", "enable_grad", "function", "functional", "grad", "gradcheck", "gradgradcheck",
    "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled", "variable",
]  # fmt: skip
