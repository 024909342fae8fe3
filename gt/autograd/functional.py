"""Derivatives of functions as matrices and products with them, under the name by which programs import them."""

from __future__ import annotations

from gt.client.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
