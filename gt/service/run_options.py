"""Run-time options of sessions and workers as programs set them: `gt.config.set` and `gt.config.get`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.sharding import options

from .session import send_options, set_for_workers


def set(values: Mapping[str, Any]) -> None:  # read as gt.config.set(...)
    """Set run-time options for the running session and for later ones. Raises `ConfigError` for invalid ones.

    * `verify` (0): the share of instructions, from 0 to 1, that are recomputed unsharded and compared. A difference
      raises `gt.errors.VerificationError` at the next fetch that depends on it.
    * `tf32` (false): whether GPUs may round the operands of float32 matrix products to TF32 (10 bits of fraction,
      accumulated in float32), which tensor cores multiply faster. Applies to this session only and has no effect on
      CPUs. `gt.set_float32_matmul_precision("high")` is the same.
    * `progress` (true): whether a terminal shows a progress bar for large, slow transfers.

    These options are for the workers that this process will start, so set them before its first operation. On a
    shared service they belong to whoever starts its workers (`gt worker --memory-pool-size`, …):

    * `memory_pool_size`: the memory that a worker's tensors may take ('8GB'). What does not fit is evicted, on a GPU
      first to pinned host memory, and then to a temporary file, and is brought back before it is read. 0, the
      default, means all memory; on a GPU, nine tenths of what is free when the worker starts.
    * `nvlink_group_size`: how many workers of a host NVLink joins, in groups by GPU number (4: cuda:0 to cuda:3, …).
      The planner prices moves accordingly, and meshes keep the members of a group adjacent. 0, the default: as links
      were measured.
    * `cpu_spill_threshold` (0.8): the share of the memory pool above which tensors are evicted; for a GPU's worker
      also the share of its part of the host's memory that may be pinned for evicted data before it goes to the file.
    * `prefetch_buffer_size` ('256MiB'): how much spilled data may be read back before it is needed.
    """
    workers = {name: value for name, value in values.items() if name in options.WORKER_OPTIONS}
    options.check_options({name: value for name, value in values.items() if name not in workers})
    if workers:
        set_for_workers(workers)
    options.choose({name: value for name, value in values.items() if name not in workers})
    send_options()


def get(key: str) -> Any:
    """The value of a run-time option. Raises `ConfigError` for an unknown one."""
    if key in options.WORKER_OPTIONS:
        return options.for_workers.get(key, options.WORKER_OPTIONS[key].default)
    return options.chosen.get(key, options.known(key).default)
