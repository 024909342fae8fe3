"""Growth of resident memory and of descriptors over many operations: python benchmarks/memory.py [--rounds 1] [--json FILE]

Client, dispatcher and worker of one session are looked at before and after, once a warm-up has filled the caches, which are
bounded. After it nothing may grow, but that what runs seldom is compiled late.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np

import gt


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    """Number of files that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def measure(scale: float) -> list[tuple[str, str, str, str]]:
    """A row for each load and process; `scale` times as many operations."""
    local = gt.client.session.sessions.current().link.local
    processes = {"client": os.getpid(), **{name: child.pid for name, child in local.children}}
    x = gt.from_numpy(np.ones((16, 16), np.float32))
    rows = []
    sizes = itertools.count(200_000, -1)

    def operations(count: int) -> None:
        y = x
        for index in range(count):
            y = y + x
            if index % 10_000 == 9_999:
                y.sum().item()

    def shapes(count: int) -> None:
        for index in range(count):
            (gt.zeros(next(sizes)) + 1.0).sum()
            if index % 1_000 == 999:
                gt.synchronize()

    loads = (
        ("operations", operations, 100_000, 1_000_000),
        ("operations more", operations, 0, 1_000_000),
        ("steps with ever-new shapes", shapes, 50_000, 100_000),
    )
    for name, run, warm, count in loads:
        run(int(warm * scale))
        before = {who: (resident(pid), descriptors(pid)) for who, pid in processes.items()}
        begin = time.perf_counter()
        run(int(count * scale))
        gt.synchronize()
        took = time.perf_counter() - begin
        for who, pid in processes.items():
            grown, more = resident(pid) - before[who][0], descriptors(pid) - before[who][1]
            what = f"memory over {int(count * scale):,} {name}" if who == "client" else ""
            size = f"{before[who][0] / 2**20:.1f} MiB, {grown / 2**20:+.1f} MiB"
            rows.append((what, who, size, f"{more:+d} descriptors, {took:.0f} s"))
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=float, default=1.0, help="times as many operations (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    gt.init(workers=1)
    rows = measure(options.rounds)
    for row in rows:
        print(f"{row[0]:50} {row[1]:12} {row[2]:22} {row[3]}".rstrip())
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
