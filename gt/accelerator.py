"""What programs ask of PyTorch's `accelerator`: as of `gt.cuda`, there is none in the program's own process."""

from __future__ import annotations

from typing import Any

from gt.cuda import current_device as current_device_index
from gt.cuda import device_count, is_available, set_device, synchronize
from gt.cuda import set_device as set_device_index

__all__ = [
    "current_accelerator", "current_device_index", "device_count", "is_available", "set_device", "set_device_index",
    "synchronize",
]  # fmt: skip


def current_accelerator(check_available: bool = False) -> Any:
    """None: `gt.devices()` shows the workers."""
    return None
