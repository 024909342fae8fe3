"""Norms over layers and groups, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm

__all__ = ["GroupNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]
