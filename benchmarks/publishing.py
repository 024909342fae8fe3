"""Measures the time to publish a tensor, and to subscribe to it, on one CPU worker.

    python benchmarks/publishing.py [--mib 64] [--times 11]

Each line is a median. `subscribe, in memory` is a tensor that the worker keeps; `subscribe, from files` one that it does not,
because its values lie in the program's memory. Both end with a fetch of one element. `fetch and put` is what a program would do
instead that passes the values on itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gt


def median(act: Callable[[], Any], times: int) -> float:
    """The median time of an act, in milliseconds."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=64, help="how large the tensor is")
    parser.add_argument("--times", type=int, default=11, help="how often each is measured")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gt-publishing-") as folder:
        os.environ["GT_SNAPSHOTS"] = folder
        gt.init(workers=1)
        made = gt.randn(said.mib << 10, 256) * 2
        values = made.numpy()
        gt.publish("put", gt.from_numpy(values))
        rows = {
            "publish": lambda: gt.publish("made", made),
            "subscribe, in memory": lambda: gt.subscribe("made")[0, 0].item(),
            "subscribe, from files": lambda: gt.subscribe("put")[0, 0].item(),
            "fetch and put": lambda: gt.from_numpy(made.numpy())[0, 0].item(),
        }
        for name, act in rows.items():
            act()
            print(f"{name:22} {median(act, said.times):8.1f} ms")
        gt.disconnect()


if __name__ == "__main__":
    main()
