"""Rearranged pixels, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import PixelShuffle, PixelUnshuffle

__all__ = ["PixelShuffle", "PixelUnshuffle"]
