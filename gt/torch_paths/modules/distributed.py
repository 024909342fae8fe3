"""Counterpart of PyTorch's `distributed`. A GT program is one process: it has no process group, and needs none."""

from __future__ import annotations

from gt.torch_paths.instead import PROCESSES, refused

__all__ = [
    "all_gather", "all_reduce", "barrier", "broadcast", "destroy_process_group", "get_rank", "get_world_size",
    "init_process_group", "is_available", "is_initialized", "is_torchelastic_launched", "reduce", "reduce_scatter", "scatter",
]  # fmt: skip


def is_available() -> bool:
    """False."""
    return False


def is_initialized() -> bool:
    """False."""
    return False


def is_torchelastic_launched() -> bool:
    """False."""
    return False


def get_rank() -> int:
    """0: this process is the only one."""
    return 0


def get_world_size() -> int:
    """1: this process is the only one. `gt.devices()` shows the workers."""
    return 1


init_process_group, destroy_process_group, barrier = (
    refused(f"gt.distributed.{name}", PROCESSES) for name in ("init_process_group", "destroy_process_group", "barrier")
)
all_reduce, all_gather, broadcast, reduce, reduce_scatter, scatter = (
    refused(f"gt.distributed.{name}", PROCESSES)
    for name in ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "scatter")
)
