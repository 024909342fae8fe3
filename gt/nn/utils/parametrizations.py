"""Parametrizations that are there already, under the name by which programs import them."""

from __future__ import annotations

from gt.client.nn.weight_norm import spectral_norm, weight_norm

__all__ = ["spectral_norm", "weight_norm"]
