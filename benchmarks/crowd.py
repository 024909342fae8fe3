"""Many programs at once on two CPU workers, in this tree and, with `--before`, in another checkout of this project.

    python benchmarks/crowd.py [--programs 100] [--seconds 120 | --products 1500 --rounds 2] [--before CHECKOUT] [--json FILE]

Each program always has plans queued, of about 1, 3, 10 or 30 ms, all of one user. Each adds a number of its own to what its
plans compute, and checks the last result. For each tree, one after the other (the other checkout first), each in processes of
its own: how many products of matrices all programs together have had in a second, which is comparable between trees because
the programs are the same; Jain's index of the products of each, and of the workers' time that each of the first
`sharing.MAX_COUNTED` has got by the service's accounts, in trees that have some; what memory the daemons have had, a quarter of
the way and at the end; and what is left when the service has been closed. The exit status is 1 for a wrong result, for what is
left, and for a throughput below `LEAST_THROUGHPUT` of the other tree's.

With `--products` each program has the same work in place of the same time: so many products of matrices. Trees then differ in
nothing but how long it takes, since the mixture of plans is the same too. The trees take turns, the other one first in each of
the `--rounds`. Printed are for each run the seconds until all have their last result, the processor time that a product has
taken of all processes together, and Jain's index of the workers' time that the programs have had by the last look before the
first of them was done; and in the end the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
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
LOOK_SECONDS: Final = 1.0
"""So often the accounts are looked at while programs have the same work."""
DAEMONS_SECONDS: Final = 60.0
"""So long the daemons may take to begin."""
START_SECONDS: Final = 5.0
"""For so long plans run before memory is looked at and plans are counted."""


def joined(address: str) -> Any:
    """A session of a service whose daemons may have just been started, on a machine that is busy."""
    until = time.monotonic() + DAEMONS_SECONDS
    while True:
        try:
            return gt.connect(address)
        except gt.ConnectionFailed:
            if time.monotonic() > until:
                raise


class Plans:
    """The session of one program, and its plans."""

    def __init__(self, address: str, number: int) -> None:
        self.number = number
        self.count = PRODUCTS[number // sharing.WORKERS % len(PRODUCTS)]
        self.session = joined(address)
        gt.signal.enter(f"program {number}" if number < sharing.MAX_COUNTED else "others")
        self.matrix = gt.from_numpy(np.full((sharing.SIDE, sharing.SIDE), 1 / sharing.SIDE, np.float32))

    def send(self) -> gt.Tensor:
        """Send a plan, when there are few enough queued. Returns its result."""
        session = self.session
        session.wait_for(lambda: session.sent - session.credited < sharing.IN_FLIGHT, "plans", None)
        x = self.matrix
        for _ in range(self.count):
            x = x @ self.matrix
        x = x + self.number
        gt.flush()
        return x

    def is_right(self, x: gt.Tensor) -> bool:
        """Whether a result is right. Waits for it."""
        return bool(np.allclose(x.numpy(), np.float32(1 / sharing.SIDE + self.number), rtol=1e-5))


def program(number: int, seconds: float) -> Program:
    """One of the programs. Finds its products, in which time, and whether its last result was right."""

    def run(address: str, start: int, report: int) -> None:
        own = Plans(address, number)
        session = own.session

        def plans(until: float) -> gt.Tensor:
            while True:
                x = own.send()
                if time.monotonic() >= until:
                    return x

        plans(0.0)
        os.write(report, b"\n")
        os.read(start, 1)
        plans(time.monotonic() + START_SECONDS)
        begin, before = time.monotonic(), session.credited
        x = plans(begin + seconds)
        done, passed = session.credited - before, time.monotonic() - begin
        os.write(report, json.dumps([done * own.count, passed, own.is_right(x)]).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def fixed_program(number: int, products: int, ended: int) -> Program:
    """A program that makes so many products of matrices, and says at the descriptor `ended` that it has its last result. Finds
    when that was, the processor time that it took, and whether its result was right."""

    def run(address: str, start: int, report: int) -> None:
        own = Plans(address, number)
        own.is_right(own.send())  # its plan is compiled
        os.write(report, b"\n")
        os.read(start, 1)
        before = time.process_time()
        for _ in range(products // own.count):
            x = own.send()
        is_right, end = own.is_right(x), time.monotonic()
        os.write(ended, b"x")
        os.write(report, json.dumps([end, time.process_time() - before, is_right]).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def used_by_signal(address: str) -> dict[str, float]:
    """The seconds of workers that each signal has used by the service's accounts; nothing in a tree without accounts."""
    if not hasattr(gt, "usage"):
        return {}
    from gt.monitor.stream import Stream

    with closing(Stream(address, level=telemetry.OFF)) as stream:  # one that is not read for long is given up
        return {row[1]: row[2] / 1e9 for row in stream.usage()["rows"]}


def memory_of(processes: list[int]) -> list[float]:
    """The MiB of processes."""
    return [psutil.Process(process).memory_info().rss / (1 << 20) for process in processes]


def fixed_watcher(processes: list[int], programs: int, ended: int) -> Program:
    """It looks at the service until so many programs have ended. Finds when they began, the processor time of the processes
    since, and, for each look, when it was, their memory and what each signal had used since the beginning."""

    def processor_time() -> float:
        return sum(sum(psutil.Process(process).cpu_times()[:2]) for process in processes)

    def run(address: str, start: int, report: int) -> None:
        os.write(report, b"\n")
        os.read(start, 1)
        begin, before, spent, left = time.monotonic(), used_by_signal(address), processor_time(), programs
        looks: list[tuple[float, list[float], dict[str, float]]] = []
        while left:
            if select.select([ended], [], [], LOOK_SECONDS)[0]:
                left -= len(os.read(ended, left))
                continue
            used = {name: value - before.get(name, 0.0) for name, value in used_by_signal(address).items()}
            looks.append((time.monotonic(), memory_of(processes), used))
        looks.append((time.monotonic(), memory_of(processes), {}))
        os.write(report, json.dumps([begin, processor_time() - spent, looks]).encode() + b"\n")
        os.read(start, 1)

    return run


def watcher(processes: list[int], seconds: float) -> Program:
    """It looks at the programs from outside: at the memory of processes, a quarter of the way and at the end, and at what the
    service's accounts say. Finds MiB, twice, and what part of a worker's time each program has got, by signal, if there are
    accounts: a program that asks for its own is answered after all plans that it has sent before."""

    def run(address: str, start: int, report: int) -> None:
        os.write(report, b"\n")
        os.read(start, 1)
        time.sleep(START_SECONDS)
        begin, before = time.monotonic(), used_by_signal(address)
        time.sleep(seconds / 4)
        early = memory_of(processes)
        time.sleep(seconds * 3 / 4)
        after, passed = used_by_signal(address), time.monotonic() - begin
        parts = {name: (spent - before.get(name, 0.0)) / passed for name, spent in after.items()}
        os.write(report, json.dumps([early, memory_of(processes), parts]).encode() + b"\n")
        os.read(start, 1)

    return run


def jain(values: list[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one of n has all."""
    return sum(values) ** 2 / (len(values) * sum(each * each for each in values))


def measure(programs: int, seconds: float) -> dict[str, Any]:
    """The figures of the tree that is imported here, for programs that run for so long."""

    def members(daemons: list[int]) -> list[Program]:
        return [*(program(n, seconds) for n in range(programs)), watcher(daemons, seconds)]

    (*found, (early, late, parts)), left = on_a_service(members)
    got = [parts.get(f"program {n}", 0.0) for n in range(min(programs, sharing.MAX_COUNTED))]
    return {
        "products": sum(done / passed for done, passed, _ in found),
        "jain of products": jain([done / passed for done, passed, _ in found]),
        "jain of time": jain(got) if any(got) else None,
        "least and most of a worker": [min(got), max(got)] if any(got) else None,
        "wrong": sum(not is_right for *_, is_right in found),
        "memory": [early, late],
        "left": left,
    }


def measure_fixed(programs: int, products: int) -> dict[str, Any]:
    """The figures of the tree that is imported here, for programs that have so much work."""
    reads, ended = os.pipe()

    def members(daemons: list[int]) -> list[Program]:
        return [*(fixed_program(n, products, ended) for n in range(programs)), fixed_watcher(daemons, programs, reads)]

    (*found, (begin, spent, looks)), left = on_a_service(members)
    first, last = min(end for end, *_ in found), max(end for end, *_ in found)
    _, early, parts = max((look for look in looks if look[0] < first), default=(first, looks[0][1], {}))
    got = [parts.get(f"program {n}", 0.0) for n in range(min(programs, sharing.MAX_COUNTED))]
    return {
        "seconds": last - begin,
        "first": first - begin,
        "products": programs * products / (last - begin),
        "processor": (spent + sum(taken for _, taken, _ in found)) / (programs * products),
        "jain of time": jain(got) if any(got) else None,
        "least and most of a worker": [each / (first - begin) for each in (min(got), max(got))] if any(got) else None,
        "wrong": sum(not is_right for *_, is_right in found),
        "memory": [early, looks[-1][1]],
        "left": left,
    }


def on_a_service(members: Callable[[list[int]], list[Program]]) -> tuple[list[Any], list[str]]:
    """Run programs on a new service of `sharing.WORKERS` workers. `members` makes them from its daemons' process numbers.
    Returns what each has found, and what is left of the service when it has been closed."""
    gt.connect("inproc")  # everything that a program imports is there before the first is forked
    (gt.ones(2) + 1).sum().item()
    gt.disconnect()
    local = Local(sharing.WORKERS)
    try:
        daemons, folder = [process.pid for _, process in local.children], local.folder
        found = together(local.address, members(daemons))
    finally:
        local.close()
    return found, [*map(str, filter(psutil.pid_exists, daemons))] + [str(folder)] * folder.exists()


def of(name: str, path: Path, arguments: list[str]) -> dict[str, Any]:
    """The figures of a checkout, printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Checkout(name, path, Path(folder)).environment
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--here"], env=environment, stdout=subprocess.PIPE, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    time_of = "" if found["jain of time"] is None else (
        f"Jain of workers' time {found['jain of time']:.4f} "
        f"({found['least and most of a worker'][0]:.4f} to {found['least and most of a worker'][1]:.4f} of a worker)"
    )  # fmt: skip
    if "seconds" in found:
        print(
            f"{name}: {found['seconds']:.1f} s until all were done (the first after {found['first']:.1f} s); "
            f"{found['processor'] * 1e6:.1f} us of processor time for a product; {time_of}"
        )
    else:
        print(
            f"{name}: {found['products']:.0f} products a second; Jain of products {found['jain of products']:.4f}; {time_of}"
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
    parser.add_argument("--products", type=int, help="how many each program makes, in place of --seconds")
    parser.add_argument("--rounds", type=int, default=2, help="how often each tree runs, with --products")
    parser.add_argument("--before", type=Path, help="another checkout, which is measured first")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.products and options.products % math.lcm(*PRODUCTS):
        parser.error(f"--products: not whole plans of all programs; say a multiple of {math.lcm(*PRODUCTS)}")
    if options.here:
        fixed = options.products
        print(
            json.dumps(measure_fixed(options.programs, fixed) if fixed else measure(options.programs, options.seconds))
        )
        return 0
    arguments = ["--programs", str(options.programs), "--seconds", str(options.seconds)]
    arguments += ["--products", str(options.products)] if options.products else []
    trees = {"before": options.before.resolve()} if options.before else {}
    trees["now"] = Path(__file__).parent.parent
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(options.rounds if options.products else 1):
        for name, path in trees.items():
            rows[name].append(of(name, path, arguments))
    failed = any(row["wrong"] or row["left"] for row in rows["now"])
    if options.before:
        ratio = median(
            now["products"] / before["products"] for now, before in zip(rows["now"], rows["before"], strict=True)
        )
        print(f"throughput now / before: {ratio:.3f}")
        failed |= ratio < LEAST_THROUGHPUT
    if options.json:
        known = {"cores": len(os.sched_getaffinity(0)), "rows": rows}
        options.json.write_text(json.dumps(known, indent=1), "utf-8")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
