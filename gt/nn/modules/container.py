"""Containers, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]
