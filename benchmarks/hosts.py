"""All-reduces between hosts: GT's flat and hierarchical ones and PyTorch's gloo, by time and by bytes on each host's link.

    PYTHONPATH=tests python benchmarks/hosts.py [--hosts 2,4] [--workers 2] [--rates 1gbit,10gbit]
        [--sizes 1048576,16777216,67108864] [--rounds 3] [--json FILE]

Hosts are network namespaces of this machine with processes and shared memory of their own, joined by a bridge; `tc tbf` limits
what each sends and gets. All of them share this machine's cores, and the network has no delay but the kernel's. Workers send
pieces over TCP with keys between hosts, and through shared memory within; the words of the dispatcher, a few bytes for each plan,
take a Unix socket. GT and gloo take turns; times are medians, and bytes the most that one host sent for one all-reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from collectives import Gloo, Workers, torch
from network_hosts import NetworkHosts, missing

from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.placement import parse_layout
from gt.wire import messages as m

ALGORITHMS = ("two-step", "ring", "hierarchical")
MOVED_BYTES = 64 << 20
"""A measurement makes so many all-reduces that their values together have these bytes, at most `MAX_REPEATS`."""
MAX_REPEATS = 16


def measure(count: int, near: int, rate: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """A row for each size and each that does it."""
    network = NetworkHosts(count, rate)
    places = [(host.prefix, f"tcp://{host.address}:*") for host in network.hosts for _ in range(near)]
    workers = Workers(len(places), places=places)
    peer = Gloo(len(places), [prefix for prefix, _ in places]) if torch is not None else None
    rows = []
    try:
        for nbytes in sizes:
            whole, repeat = spec(float32, (nbytes // 4,)), max(1, min(MAX_REPEATS, MOVED_BYTES // nbytes))
            before, after = parse_layout("P(sum)"), parse_layout("R")
            noise = np.random.default_rng(0).standard_normal(whole.shape).astype(np.float32)  # hardly to be compressed
            workers.store(whole, before, noise)
            plans = {name: workers.define(whole, before, after, repeat, name) for name in ALGORITHMS}
            found: dict[str, list[tuple[float, float]]] = {}
            for turn in range(rounds + 1):
                for name in (*ALGORITHMS, *(["gloo"] if peer is not None else [])):
                    sent = [host.traffic()[1] for host in network.hosts]
                    start = time.perf_counter()
                    if name == "gloo" and peer is not None:
                        took = peer.run("all_reduce", nbytes, repeat)
                    else:
                        workers.run(plans[name])
                        took = time.perf_counter() - start
                    crossed = max(host.traffic()[1] - was for host, was in zip(network.hosts, sent, strict=True))
                    if turn:
                        found.setdefault(name, []).append((took / repeat, crossed / repeat))
            for plan in plans.values():
                workers.tell(m.DropPlan(plan))
            rows += [
                {"hosts": count, "workers": near, "rate": rate, "bytes": nbytes, "by": name,
                 "seconds": statistics.median(each[0] for each in some), "sent": statistics.median(each[1] for each in some)}
                for name, some in found.items()
            ]  # fmt: skip
    finally:
        workers.close()
        if peer is not None:
            peer.close()
        network.close()
    return rows


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--workers", type=int, default=2, help="on each host (default: %(default)s)")
    parser.add_argument("--rates", default="1gbit,10gbit")
    parser.add_argument("--sizes", default="1048576,16777216,67108864")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    if lacks := missing():
        print(f"nothing is measured: {lacks}")
        return
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    rows = []
    for count in map(int, options.hosts.split(",")):
        for rate in options.rates.split(","):
            for row in measure(
                count, options.workers, rate, [int(size) for size in options.sizes.split(",")], options.rounds
            ):
                rows.append(row)
                print(
                    f"{count} hosts of {options.workers}  {rate:7} {row['bytes'] / 2**20:5.0f} MiB  {row['by']:13}"
                    f"{row['seconds'] * 1e3:9.1f} ms  {row['sent'] / 2**20:7.2f} MiB from a host",
                    flush=True,
                )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
