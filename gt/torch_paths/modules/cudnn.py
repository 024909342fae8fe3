"""What programs set in PyTorch's `backends.cudnn`: may be set and read again, without effect, as workers use no cuDNN."""

from __future__ import annotations

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

allow_tf32 = True
benchmark = False
deterministic = False
enabled = True


def is_available() -> bool:
    """False."""
    return False


def version() -> None:
    """None."""
