"""Differentiation by hand: the client's functions, under the names by which programs import them."""

from __future__ import annotations

from gt.client.autograd.entry_points import backward, grad
from gt.client.autograd.gradcheck import gradcheck, gradgradcheck
from gt.client.tensor.custom_function import Function
from gt.client.tensor.grad_mode import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.client.torch_compat.legacy_variable import Variable

from . import function, functional, variable

__all__ = [
    "Function", "Variable", "backward", "enable_grad", "function", "functional", "grad", "gradcheck", "gradgradcheck",
    "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled", "variable",
]  # fmt: skip
