"""Dask's distributed scheduler in the rows of `run.py`: a local cluster of one worker process, which has all cores.

An operation is a task (`submit`), which reads the future of the one before; nothing is fetched before the end.
"""

from __future__ import annotations

import operator
import os

import numpy as np
from distributed import Client, LocalCluster
from peers import Contender, serve

COUNT = 100


def chain() -> list[Contender]:
    """Additions of 16×16, each a task, and the result in the program's memory."""
    x = CLIENT.scatter(np.full((16, 16), 0.5, np.float32))

    def run() -> None:
        y = x
        for _ in range(COUNT):
            y = CLIENT.submit(operator.add, y, x, pure=False)
        y.result()

    return [Contender("Dask", "GT", run, COUNT)]


def round_trip() -> list[Contender]:
    """One element that the worker has, fetched."""
    x = CLIENT.scatter(np.ones(1, np.float32))

    def run() -> None:
        for _ in range(COUNT):
            x.result()

    return [Contender("Dask", "GT", run, COUNT)]


def bulk() -> list[Contender]:
    """256 MiB to the worker and from it. `hash=False`: nobody looks whether the same was there before."""
    host = np.random.default_rng(0).standard_normal(64 << 20, dtype=np.float32)
    there = CLIENT.scatter(host, hash=False)
    held: dict[str, object] = {}

    def put() -> None:
        held["put"] = CLIENT.scatter(host, hash=False)

    def fetch() -> None:
        held["fetched"] = CLIENT.gather(there)

    return [Contender("Dask scatter", "GT put", put), Contender("Dask gather", "GT fetch", fetch)]


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    with (
        LocalCluster(n_workers=1, threads_per_worker=cores, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as CLIENT,
    ):
        serve({"chain": chain, "round_trip": round_trip, "bulk": bulk})
