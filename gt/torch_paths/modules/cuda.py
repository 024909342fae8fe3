"""What programs ask of PyTorch's `cuda`: GT's workers may have GPUs, the program's own process has none to manage.

So there is no device here, and what manages one does nothing; `synchronize` waits for the workers.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

__all__ = [
    "current_device", "device_count", "empty_cache", "is_available", "is_bf16_supported", "manual_seed", "manual_seed_all",
    "max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "set_device", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """False: tensors live where the service's workers are."""
    return False


def is_bf16_supported() -> bool:
    """True: every worker computes with bfloat16."""
    return True


def device_count() -> int:
    """0: see `gt.devices()` for the workers."""
    return 0


def current_device() -> int:
    """−1: none."""
    return -1


def set_device(device: Any) -> None:
    """Nothing."""


def synchronize(device: Any = None) -> None:
    """Wait until the workers have done all that was sent."""
    from gt.service.session import synchronize

    synchronize()


def empty_cache() -> None:
    """Nothing: workers manage their memory."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Nothing."""


def memory_allocated(device: Any = None) -> int:
    """0: there is no device memory in this process; `gt.memory()` says what the workers hold."""
    return 0


def max_memory_allocated(device: Any = None) -> int:
    """0: there is no device memory in this process."""
    return 0


def manual_seed(seed: int) -> None:
    """As `gt.manual_seed`."""
    from gt.client.ops.random import manual_seed

    manual_seed(seed)


manual_seed_all = manual_seed


_TYPES: Final = frozenset(
    f"{kind}Tensor" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
)
"""PyTorch's older constructors of tensors on a GPU: those of `gt`, as tensors live where the workers are."""


def __getattr__(name: str) -> Any:
    if name in _TYPES:
        return getattr(importlib.import_module("gt"), name)
    if name == "OutOfMemoryError":
        return importlib.import_module("gt.errors").OutOfMemory
    raise AttributeError(
        f"module 'gt.cuda' has no attribute {name!r}: GPUs are the workers', not this process's; `gt.devices()` lists them"
    )
