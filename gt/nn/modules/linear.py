"""Linear layers, under the path that PyTorch's files have for them."""

from __future__ import annotations

from gt.client.nn import Bilinear, Identity, Linear

__all__ = ["Bilinear", "Identity", "Linear"]
