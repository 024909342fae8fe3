"""Ray in the rows of `run.py`: an operation is a call of an actor, which is given references and gives one.

Nothing is fetched before the end of a chain. `ray.get` of a large array gives a view of shared memory that cannot be written
to; it is copied once, since what GT gives is the program's own.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import ray
from peers import Contender, serve

COUNT = 200
STORE = 2 << 30
"""Bytes of the object store: room for a few of the large arrays."""


@ray.remote
class Worker:
    """Adds, and has one small array."""

    def __init__(self) -> None:
        self.kept = np.ones(1, np.float32)

    def add(self, a: Any, b: Any) -> Any:
        """The sum."""
        return a + b

    def small(self) -> Any:
        """One element."""
        return self.kept


def chain() -> list[Contender]:
    """Additions of 16×16, each a call that reads the result of the one before."""
    worker = Worker.remote()
    x = ray.put(np.full((16, 16), 0.5, np.float32))

    def run() -> None:
        y = x
        for _ in range(COUNT):
            y = worker.add.remote(y, x)
        ray.get(y)

    return [Contender("Ray", "GT", run, COUNT)]


def round_trip() -> list[Contender]:
    """One element that an actor has, fetched."""
    worker = Worker.remote()

    def run() -> None:
        for _ in range(COUNT):
            ray.get(worker.small.remote())

    return [Contender("Ray", "GT", run, COUNT)]


def bulk() -> list[Contender]:
    """256 MiB to the object store and from it."""
    host = np.random.default_rng(0).standard_normal(64 << 20, dtype=np.float32)
    there = ray.put(host)
    held: dict[str, Any] = {"copy": np.empty_like(host)}

    def put() -> None:
        held["put"] = ray.put(host)

    def fetch() -> None:
        np.copyto(held["copy"], ray.get(there))

    return [Contender("Ray put", "GT put", put), Contender("Ray get, copied", "GT fetch", fetch)]


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=len(os.sched_getaffinity(0)), object_store_memory=STORE, include_dashboard=False,
            log_to_driver=False, configure_logging=False, _temp_dir=folder,
        )  # fmt: skip
        try:
            serve({"chain": chain, "round_trip": round_trip, "bulk": bulk})
        finally:
            ray.shutdown()
