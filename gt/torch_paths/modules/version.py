"""The version, under PyTorch's path: of GT; of what PyTorch was built with there is none."""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["cuda", "debug", "hip", "xpu"]

__version__ = version("gt-tensor")
cuda = hip = xpu = None
debug = False
