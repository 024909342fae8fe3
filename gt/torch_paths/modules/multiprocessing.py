"""PyTorch's `multiprocessing`, which GT has not: programs that only could start processes import this and run."""

from __future__ import annotations

from gt.torch_paths.instead import PROCESSES, refused

__all__ = ["Process", "get_context", "set_start_method", "spawn"]

Process, get_context, set_start_method, spawn = (
    refused(f"gt.multiprocessing.{name}", PROCESSES) for name in ("Process", "get_context", "set_start_method", "spawn")
)
