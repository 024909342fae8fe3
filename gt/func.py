"""Functions of functions, under the names by which programs import them."""

from __future__ import annotations

from gt.client.jacobians import grad, grad_and_value, value_and_grad

__all__ = ["grad", "grad_and_value", "value_and_grad"]
