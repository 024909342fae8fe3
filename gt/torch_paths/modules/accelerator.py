"""What programs ask of PyTorch's `accelerator`: as of `gt.cuda`, there is none in the program's own process."""

from __future__ import annotations

from typing import Any

__all__ = ["current_accelerator"]


def current_accelerator(check_available: bool = False) -> Any:
    """None: `gt.devices()` shows the workers."""
    return None
