"""Instance norms, under the path by which programs import their base."""

from __future__ import annotations

from gt.client.nn.normalization import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, _InstanceNorm

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "_InstanceNorm"]
