"""What watching costs: the same work watched as monitors do, as traces do, and by nobody, in turns in one run: `make bench`.

    python benchmarks/events.py [--rounds 9] [--workers 1,2] [--seconds 0.5] [--json FILE]

The watcher is a process of its own on the same machine, and reads all that comes. Figures are medians over the rounds of what one
unit of work takes, and of each round's ratio to nobody watching: time on the clock, and processor time of client, dispatcher and
workers, which says more where others use the machine. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import gt
from gt import nn

Work = Callable[[], Any]
LEVELS = {0: "nobody", 1: "summary", 2: "trace"}
RULES = {"sharding_config": {"net": {"strategy": "data_parallel"}}}


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


WORKS = {"chain": chain, "step": step}


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

    wanted = [0]

    def hear() -> None:
        wanted.extend(map(int, sys.stdin))

    with Stream(address, level=0) as stream:
        threading.Thread(target=hear, daemon=True).start()
        print("ready", flush=True)
        told = 1
        while True:
            stream.read(0.05)
            if len(wanted) > told:
                told = len(wanted)
                stream.set_level(wanted[-1])
                stream.read(0.5)  # what comes first at a level
                stream.read(0.3)
                print(f"level {wanted[-1]}", flush=True)


def timed(work: Work, seconds: float, processes: Sequence[psutil.Process] = ()) -> tuple[float, float]:
    """(seconds, processor seconds of some processes) that one unit of work takes, over about so many."""
    done, began, before = 0, time.perf_counter(), spent(processes)
    while (passed := time.perf_counter() - began) < seconds:
        work()
        done += 1
    return passed / done, (spent(processes) - before) / done


def spent(processes: Sequence[psutil.Process]) -> float:
    """Processor seconds of this process and these, since they began."""
    total = time.process_time()
    for process in processes:
        used = process.cpu_times()
        total += used.user + used.system
    return total


def measure(name: str, workers: int, rounds: int, seconds: float) -> dict[int, list[tuple[float, float]]]:
    """The times of one work at each level, in turns."""
    session = gt.init(workers=workers, config=RULES)
    work = WORKS[name]()
    timed(work, 2 * seconds)  # plans are made, searched and compiled
    watcher = Watcher(session.link.local.address)
    processes = [psutil.Process(child.pid) for _, child in session.link.local.children]
    times: dict[int, list[tuple[float, float]]] = {level: [] for level in LEVELS}
    try:
        for number in range(rounds):
            for level in sorted(LEVELS, key=lambda level: (level + number) % len(LEVELS)):
                watcher.set_level(level)
                times[level].append(timed(work, seconds, processes))
    finally:
        watcher.close()
        gt.disconnect()
    return times


def rows(names: list[str], workers: list[int], rounds: int, seconds: float) -> list[list[str]]:
    """One row for each work, number of workers and level."""
    found = []
    for name in names:
        for count in workers:
            times = measure(name, count, rounds, seconds)
            for level, word in LEVELS.items():
                row = [name, f"{count} worker{'s' * (count > 1)}", word]
                for at in range(2):
                    ratio = statistics.median(a[at] / b[at] for a, b in zip(times[level], times[0], strict=True))
                    took = statistics.median(each[at] for each in times[level]) * 1e6
                    row += [f"{took:,.0f} us{' cpu' * at}", f"{ratio - 1:+.1%}"]
                found.append(row)
                print("  ".join(f"{cell:>12}" for cell in row), flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--only", default=",".join(WORKS), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    counts = [int(count) for count in options.workers.split(",")]
    table = rows(options.only.split(","), counts, options.rounds, options.seconds)
    if options.json:
        options.json.write_text(json.dumps({"rows": table}), "utf-8")


if __name__ == "__main__":
    main()
