"""What watching costs: the same work in the same service, in short turns watched and not watched: `make bench`.

    python benchmarks/events.py [--rounds 30] [--workers 1,2] [--seconds 0.25] [--only plans,step] [--json FILE]

A round has four turns in an order drawn by lot: watched by nobody, by nobody again, as monitors do, as traces do. The watcher is
a process of its own on the same machine, and reads all that comes; a turn begins when its level holds. Figures are medians
over the rounds of the difference to nobody in the same round, with the interval in which that median lies with 95 %
confidence (of the sign test, which asks nothing of the noise). Nobody against nobody is the noise itself: what is smaller has
not been measured. Beside the time on the clock there is the processor time of each process, all its threads, to the
nanosecond, which says more where others use the machine. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gt
from gt import nn

Work = Callable[[], Any]
TURNS = {"nobody": 0, "again": 0, "summary": 1, "trace": 2}
"""The turns of a round, and at which level each is watched."""
RULES = {"sharding_config": {"net": {"strategy": "data_parallel"}}}
Turn = dict[str, float]
"""Seconds that one unit of work took: on the clock ('wall'), of all processors ('cpu'), and of each process by its name."""


def plans() -> Work:
    """A hundred plans of two operations on 16×16, and the last value fetched."""
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((16, 16), np.float32))

    def run() -> None:
        y = x
        for _ in range(100):
            y = y * 0.99 + x
            gt.flush()
        y.sum().item()

    return run


def chain() -> Work:
    """A chain of 200 additions and products of 64×64, and its sum fetched."""
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((64, 64), np.float32))

    def run() -> None:
        y = x
        for _ in range(100):
            y = y * 0.99 + x
        y.sum().item()

    return run


def step() -> Work:
    """A training step of an MLP (784, 256, 10; batch 128, AdamW), and its loss fetched."""
    rng = np.random.default_rng(0)
    with gt.signal.context("net"):
        model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        images = gt.from_numpy(rng.standard_normal((128, 784), np.float32))
        labels = gt.from_numpy(rng.integers(0, 10, 128))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        with gt.signal.context("net"):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return run


WORKS = {"plans": plans, "chain": chain, "step": step}


class Watcher:
    """The process that watches, at whichever level it is told."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--watch", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")

    def expect(self, text: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if text not in line:
            raise RuntimeError(f"the watcher said {line!r}")

    def set_level(self, level: int) -> None:
        """Watch at this level from now on; returns when it is so."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{level}\n")
        self.process.stdin.flush()
        self.expect(f"level {level}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def watch(address: str) -> None:
    """Be the watcher: levels come as lines."""
    from gt.monitor.stream import Stream
    from gt.telemetry import Utilisation

    wanted = [0]

    def hear() -> None:
        wanted.extend(map(int, sys.stdin))

    with Stream(address, level=0) as stream:
        threading.Thread(target=hear, daemon=True).start()
        print("ready", flush=True)
        told = 1
        while True:
            stream.read(0.02)
            if len(wanted) > told:
                told = len(wanted)
                stream.set_level(wanted[-1])
                ends = time.monotonic() + 5.0
                while wanted[-1] and time.monotonic() < ends:
                    if any(isinstance(event, Utilisation) for event in stream.read(0.5)):
                        break  # workers record: what comes first is over
                time.sleep(0.02)
                print(f"level {wanted[-1]}", flush=True)


def clock_of(pid: int) -> int:
    """The clock that counts a process' processor time, as `clock_getcpuclockid` makes it on Linux."""
    return (~pid << 3) | 2


def timed(work: Work, count: int, processes: Mapping[str, int] = {}) -> Turn:
    """What so many units of work take, each, on the clock and of this process (the client) and others by their numbers."""
    clocks = {"client": clock_of(os.getpid()), **{name: clock_of(pid) for name, pid in processes.items()}}
    before = {name: time.clock_gettime_ns(clock) for name, clock in clocks.items()}
    began = time.perf_counter_ns()
    for _ in range(count):
        work()
    took = {"wall": time.perf_counter_ns() - began}
    took |= {name: time.clock_gettime_ns(clock) - before[name] for name, clock in clocks.items()}
    took["cpu"] = sum(took[name] for name in clocks if name != "watcher")
    return {name: nanoseconds / count / 1e9 for name, nanoseconds in took.items()}


def measure(name: str, workers: int, rounds: int, seconds: float) -> list[dict[str, Turn]]:
    """The turns of each round. Processes are 'client', 'dispatcher', 'worker 0', …, and 'watcher', which 'cpu' is without."""
    session = gt.init(workers=workers, config=RULES)
    work = WORKS[name]()
    ends = time.perf_counter() + 4 * seconds
    while time.perf_counter() < ends:
        work()  # plans are made, searched and compiled
    count = max(1, round(seconds / timed(work, 3)["wall"]))
    watcher = Watcher(session.link.local.address)
    names = ["dispatcher", *[f"worker {number}" for number in range(workers)]]
    children = [child.pid for _, child in session.link.local.children]
    processes = {**dict(zip(names, children, strict=True)), "watcher": watcher.process.pid}
    lots = random.Random(0)
    found = []
    try:
        for _ in range(rounds):
            order = list(TURNS)
            lots.shuffle(order)
            turns = {}
            for turn in order:
                watcher.set_level(TURNS[turn])
                timed(work, max(1, count // 2))  # what the change itself costs is over, with its burst
                turns[turn] = timed(work, count, processes)
            found.append(turns)
    finally:
        watcher.close()
        gt.disconnect()
    return found


def median(values: list[float]) -> tuple[float, float, float]:
    """The median, and the interval in which that of all such values lies with 95 % confidence, by order statistics."""
    ordered, count = sorted(values), len(values)
    outside, at = 0.0, 0
    while at < (count - 1) // 2 and (outside + math.comb(count, at) / 2**count) <= 0.025:
        outside += math.comb(count, at) / 2**count
        at += 1
    low = max(0, at - 1)
    return statistics.median(values), ordered[low], ordered[count - 1 - low]


def rows(names: list[str], workers: list[int], rounds: int, seconds: float) -> list[list[str]]:
    """One row for each work, number of workers and thing that is measured: nobody's time, and differences to it."""
    found = []
    for name in names:
        for count in workers:
            turns = measure(name, count, rounds, seconds)
            for what in turns[0]["nobody"]:
                base = statistics.median([each["nobody"][what] for each in turns])
                row = [name, f"{count} worker{'s' * (count > 1)}", what, f"{base * 1e6:,.0f} us"]
                for turn in list(TURNS)[1:]:
                    over = [each[turn][what] - each["nobody"][what] for each in turns]
                    if what != "watcher":
                        over = [100 * (each / base) for each in over]
                        row.append("{:+.1f} % ({:+.1f} … {:+.1f})".format(*median(over)))
                    else:
                        row.append(f"{median(over)[0] * 1e6:+,.0f} us")
                found.append(row)
                print("  ".join(f"{cell:>{width}}" for cell, width in zip(row, WIDTHS, strict=True)), flush=True)
    return found


WIDTHS = (6, 9, 10, 10, 24, 24, 24)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.25, help="of each turn")
    parser.add_argument("--only", default=",".join(WORKS), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    counts = [int(count) for count in options.workers.split(",")]
    head = ["work", "", "of", "nobody", *[f"{turn}" for turn in list(TURNS)[1:]]]
    print("  ".join(f"{cell:>{width}}" for cell, width in zip(head, WIDTHS, strict=True)))
    table = rows(options.only.split(","), counts, options.rounds, options.seconds)
    print(
        f"load {os.getloadavg()[0]:.1f}; medians of {options.rounds} differences, and where they lie with 95 % confidence"
    )
    if options.json:
        options.json.write_text(json.dumps({"rows": table, "load": os.getloadavg()[0]}), "utf-8")


if __name__ == "__main__":
    main()
