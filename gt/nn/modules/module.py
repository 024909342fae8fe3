"""The base of all modules, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import Module

__all__ = ["Module"]
