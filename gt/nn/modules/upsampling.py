"""Upsampling, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import Upsample, UpsamplingBilinear2d, UpsamplingNearest2d

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]
