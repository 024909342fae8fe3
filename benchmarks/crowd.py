"""Many programs at once on two CPU workers, in this tree and, with `--before`, in another checkout of this project.

    python benchmarks/crowd.py [--programs 100] [--seconds 120] [--before CHECKOUT] [--json FILE]

Each program always has plans queued, of about 1, 3, 10 or 30 ms, all of one user. Each adds a number of its own to what its
plans compute, and checks the last result. For each tree, one after the other (the other checkout first), each in processes of
its own: how many products of matrices all programs together have had in a second, which is comparable between trees because
the programs are the same; Jain's index of the products of each, and of the workers' time that each of the first
`sharing.MAX_COUNTED` has got by the service's accounts, in trees that have some; what memory the daemons have had, a quarter of
the way and at the end; and what is left when the service has been closed. The exit status is 1 for a wrong result, for what is
left, and for a throughput below `LEAST_THROUGHPUT` of the other tree's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import sharing
from compare import Checkout
from forked_programs import Program, together

import gt
from gt.service.launch import Local
from gt.wire import telemetry

LEAST_THROUGHPUT: Final = 0.97
PRODUCTS: Final = tuple(round(each * 10_000) for each in sharing.SHORT_SECONDS)
"""How many products the plans have: the same in all trees. One of `sharing.SIDE` takes about 0.1 ms."""
START_SECONDS: Final = 5.0
"""For so long plans run before memory is looked at and plans are counted."""


def program(number: int, seconds: float) -> Program:
    """One of the programs. Finds its products, in which time, and whether its last result was right."""
    count = PRODUCTS[number // sharing.WORKERS % len(PRODUCTS)]

    def run(address: str, start: int, report: int) -> None:
        session = gt.connect(address)
        gt.signal.enter(f"program {number}" if number < sharing.MAX_COUNTED else "others")
        matrix = gt.from_numpy(np.full((sharing.SIDE, sharing.SIDE), 1 / sharing.SIDE, np.float32))

        def plans(until: float) -> gt.Tensor:
            while True:
                session.wait_for(lambda: session.sent - session.credited < sharing.IN_FLIGHT, "plans", None)
                x = matrix
                for _ in range(count):
                    x = x @ matrix
                x = x + number
                gt.flush()
                if time.monotonic() >= until:
                    return x

        plans(0.0)
        os.write(report, b"\n")
        os.read(start, 1)
        plans(time.monotonic() + START_SECONDS)
        begin, before = time.monotonic(), session.credited
        x = plans(begin + seconds)
        done, passed = session.credited - before, time.monotonic() - begin
        is_right = bool(np.allclose(x.numpy(), np.float32(1 / sharing.SIDE + number), rtol=1e-5))
        os.write(report, json.dumps([done * count, passed, is_right]).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def watcher(processes: list[int], seconds: float) -> Program:
    """It looks at the programs from outside: at the memory of processes, a quarter of the way and at the end, and at what the
    service's accounts say. Finds MiB, twice, and what part of a worker's time each program has got, by signal, if there are
    accounts: a program that asks for its own is answered after all plans that it has sent before."""

    def memory() -> list[float]:
        return [psutil.Process(process).memory_info().rss / (1 << 20) for process in processes]

    def run(address: str, start: int, report: int) -> None:
        def used() -> dict[str, float]:
            if not hasattr(gt, "usage"):
                return {}
            from gt.monitor.stream import Stream

            with closing(Stream(address, level=telemetry.OFF)) as stream:  # one that is not read for long is given up
                return {row[1]: row[2] / 1e9 for row in stream.usage()["rows"]}

        os.write(report, b"\n")
        os.read(start, 1)
        time.sleep(START_SECONDS)
        begin, before = time.monotonic(), used()
        time.sleep(seconds / 4)
        early = memory()
        time.sleep(seconds * 3 / 4)
        after, passed = used(), time.monotonic() - begin
        parts = {name: (spent - before.get(name, 0.0)) / passed for name, spent in after.items()}
        os.write(report, json.dumps([early, memory(), parts]).encode() + b"\n")
        os.read(start, 1)

    return run


def jain(values: list[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one of n has all."""
    return sum(values) ** 2 / (len(values) * sum(each * each for each in values))


def measure(programs: int, seconds: float) -> dict[str, Any]:
    """The figures of the tree that is imported here."""
    gt.connect("inproc")  # everything that a program imports is there before the first is forked
    (gt.ones(2) + 1).sum().item()
    gt.disconnect()
    local = Local(sharing.WORKERS)
    try:
        daemons, folder = [process.pid for _, process in local.children], local.folder
        *found, (early, late, parts) = together(
            local.address, [*(program(n, seconds) for n in range(programs)), watcher(daemons, seconds)]
        )
    finally:
        local.close()
    got = [parts.get(f"program {n}", 0.0) for n in range(min(programs, sharing.MAX_COUNTED))]
    return {
        "products": sum(done / passed for done, passed, _ in found),
        "jain of products": jain([done / passed for done, passed, _ in found]),
        "jain of time": jain(got) if any(got) else None,
        "least and most of a worker": [min(got), max(got)] if any(got) else None,
        "wrong": sum(not is_right for *_, is_right in found),
        "memory": [early, late],
        "left": [*map(str, filter(psutil.pid_exists, daemons))] + [str(folder)] * folder.exists(),
    }


def of(name: str, path: Path, arguments: list[str]) -> dict[str, Any]:
    """The figures of a checkout, printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Checkout(name, path, Path(folder)).environment
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--here"], env=environment, stdout=subprocess.PIPE, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    time_of = "" if found["jain of time"] is None else (
        f", of workers' time {found['jain of time']:.4f} "
        f"({found['least and most of a worker'][0]:.4f} to {found['least and most of a worker'][1]:.4f} of a worker)"
    )  # fmt: skip
    print(
        f"{name}: {found['products']:.0f} products a second; Jain of products {found['jain of products']:.4f}{time_of}"
    )
    early, late = ([round(each) for each in line] for line in found["memory"])
    left = ", ".join(found["left"]) or "nothing"
    print(
        f"    MiB of dispatcher and workers: {early}, at the end {late}; {found['wrong']} results wrong; left: {left}",
        flush=True,
    )
    return found


def main() -> int:
    """Measure and print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--before", type=Path, help="another checkout, which is measured first")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.programs, options.seconds)))
        return 0
    arguments = ["--programs", str(options.programs), "--seconds", str(options.seconds)]
    trees = {"before": options.before.resolve()} if options.before else {}
    rows = {name: of(name, path, arguments) for name, path in (trees | {"now": Path(__file__).parent.parent}).items()}
    failed = any(row["wrong"] or row["left"] for name, row in rows.items() if name == "now")
    if "before" in rows:
        ratio = rows["now"]["products"] / rows["before"]["products"]
        print(f"throughput now / before: {ratio:.3f}")
        failed |= ratio < LEAST_THROUGHPUT
    if options.json:
        known = {"cores": len(os.sched_getaffinity(0)), "rows": rows}
        options.json.write_text(json.dumps(known, indent=1), "utf-8")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
