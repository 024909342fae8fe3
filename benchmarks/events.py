"""What watching costs, to the per cent: `make bench`, or by itself

    python benchmarks/events.py [--only plans,step] [--workers 1] [--rounds 100] [--json FILE]

The speed of a machine wanders by several per cent within a second, so what is compared must lie close together. Watching
costs twice over, and each is measured apart, by processor time (all threads of each process, to the nanosecond) and by the clock:

* *Hooks*, at every plan. Turns of 60 ms without a batch, watched by nobody, by nobody again, as monitors do, as traces do, in an
  order drawn by lot, each compared with nobody in the same round. Nobody against nobody is the noise: what is smaller has not
  been measured. Of small plans each process is kept to a core: which of them share one would change within a second, and the
  time of a plan by half. A turn has what beginning to watch costs by itself, as far as that lasts longer than 40 ms: of a trace,
  which begins with a second's worth of events at once, much.
* *Batches*, some a second. Watched all the time, pieces of 20 ms in which a batch was made are compared with those around them.

Both are means without the tenths at either end, with the interval in which those lie with 95 % confidence (of 1,000 draws with
replacement). Their sum is what watching costs. The watcher is a process of its own and reads all that comes; its own time is told
apart, as a share of one core. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from peers import clock_of

import gt
from gt import nn

Work = Callable[[], Any]
TURNS: Final = {"nobody": 0, "again": 0, "summary": 1, "trace": 2}
"""The turns of a round, and at which level each is watched."""
TURN: Final = 0.06
"""Seconds of one turn."""
SETTLE: Final = 0.04
"""Seconds after which what a change of levels costs by itself is over."""
WARM: Final = 2.0
"""Seconds in which plans are made, searched and compiled."""
FIRST: Final = 1.0
"""The first seconds of a trace, which are more than the next."""
WATCHED: Final = 15.0
"""Seconds in which batches are looked at, for each level."""
PIECE: Final = 0.02
"""Seconds of the pieces among which those with a batch are looked for."""
AROUND: Final = 4
"""Pieces before and after a batch with which it is compared."""
RULES: Final = {"sharding_config": {"net": {"strategy": "data_parallel"}}}
Turn = dict[str, float]
"""Seconds that one unit of work took: on the clock ('clock'), of all processors ('cpu'), and of each process by its name."""


class Found(NamedTuple):
    """A mean, and the interval in which it lies."""

    mean: float
    low: float
    high: float


def plans() -> Work:
    """Twenty plans of two operations on 16×16, and the last value fetched."""
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((16, 16), np.float32))

    def run() -> None:
        y = x
        for _ in range(20):
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


WORKS: Final = {"plans": plans, "step": step, "chain": chain}
KEPT: Final = {"plans", "chain"}
"""Works that need one thread of each process, which is kept to a core."""


class Watcher:
    """The process that watches, at whichever level it is told."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--watch", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask("0")

    def ask(self, what: str) -> list[int]:
        """Send a line; the numbers that come back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the watcher has ended")
        return [*map(int, line.split()[1:])]

    def set_level(self, level: int) -> None:
        """Watch at this level: what the service is told from now on comes after that."""
        self.ask(str(level))

    def batches(self) -> list[int]:
        """When the batches since the last time were made: nanoseconds of the monotonic clock."""
        return self.ask("batches")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def watch(address: str) -> None:
    """Be the watcher: a line says a level, or asks when batches were made."""
    from gt.monitor.stream import Stream
    from gt.wire.telemetry import Service, Utilisation

    made: list[int] = []
    with Stream(address, level=0) as stream:
        stream.listen(sys.stdin.fileno())
        while True:
            made += [event.time for event in stream.read(5.0) if isinstance(event, Service | Utilisation)]
            if select.select([sys.stdin], [], [], 0)[0]:
                line = sys.stdin.readline().strip()  # there is one at a time: the next is asked when this is answered
                if not line:
                    return
                if line == "batches":
                    print("batches", *made, flush=True)
                    made.clear()
                else:
                    stream.set_level(int(line))
                    print("level", flush=True)


@contextlib.contextmanager
def kept_to_cores(processes: Iterable[int]) -> Iterator[None]:
    """Meanwhile each of these processes has one core, in turns when there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    before = {}
    for at, process in enumerate(processes):
        for thread in (int(task.name) for task in Path(f"/proc/{process}/task").iterdir()):
            with contextlib.suppress(ProcessLookupError):
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {cores[at % len(cores)]})
    try:
        yield
    finally:
        for thread, known in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, known)


def timed(work: Work, count: int, processes: Mapping[str, int] = {}) -> Turn:
    """What so many units of work take, each, on the clock and of this process (the client) and others by their numbers."""
    clocks = {"client": clock_of(os.getpid()), **{name: clock_of(pid) for name, pid in processes.items()}}
    before = {name: time.clock_gettime_ns(clock) for name, clock in clocks.items()}
    began = time.perf_counter_ns()
    for _ in range(count):
        work()
    took = {"clock": time.perf_counter_ns() - began}
    took |= {name: time.clock_gettime_ns(clock) - before[name] for name, clock in clocks.items()}
    took["cpu"] = sum(took[name] for name in clocks if name != "watcher")
    return {name: nanoseconds / count / 1e9 for name, nanoseconds in took.items()}


def trimmed(values: Iterable[float]) -> Found:
    """The mean without the tenths at either end, and the interval in which it lies with 95 % confidence."""
    known = np.fromiter(values, float)
    if len(known) < 2:
        return Found(*[float("nan")] * 3)
    drawn = np.random.default_rng(0).integers(0, len(known), (1000, len(known)))
    cut = len(known) // 10
    means = np.sort(known[drawn], 1)[:, cut : len(known) - cut].mean(1)
    return Found(np.sort(known)[cut : len(known) - cut].mean(), *np.quantile(means, (0.025, 0.975)))


def pass_time(work: Work, seconds: float) -> None:
    """Work without looking."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        work()


def hooks(work: Work, watcher: Watcher, processes: Mapping[str, int], rounds: int) -> list[dict[str, Turn]]:
    """The turns of each round, but those in which a batch was made."""
    count = max(1, round(TURN / timed(work, 5)["clock"]))
    lots, found = random.Random(0), []
    for _ in range(rounds):
        order = list(TURNS)
        lots.shuffle(order)
        turns = {}
        for turn in order:
            watcher.set_level(TURNS[turn])
            pass_time(work, SETTLE)
            watcher.batches()
            took = timed(work, count, processes)
            if not watcher.batches():
                turns[turn] = took
        if "nobody" in turns:
            found.append(turns)
    watcher.set_level(0)
    return found


def batches(work: Work, watcher: Watcher, processes: Mapping[str, int]) -> tuple[list[Turn], float]:
    """What each batch took beside the work of its pieces, and how many there were a second. It goes on, up to ten times as long,
    until there are two."""
    count = max(1, round(PIECE / timed(work, 5)["clock"]))
    pass_time(work, FIRST)
    watcher.batches()
    pieces: list[Turn] = []
    marks, made = [time.monotonic_ns()], list[int]()
    found: list[Turn] = []
    for _ in range(10):
        ends = time.perf_counter() + WATCHED
        while time.perf_counter() < ends:
            pieces.append(timed(work, count, processes))
            marks.append(time.monotonic_ns())
        made += watcher.batches()
        found = beside(pieces, marks, made, count)
        if len(found) > 1:
            break
    return found, len(found) / (marks[-1] - marks[0]) * 1e9


def beside(pieces: list[Turn], marks: list[int], made: Iterable[int], count: int) -> list[Turn]:
    """What each batch took beside the usual work of the pieces around it. `marks`: when pieces began and the last one ended, and
    `made`: when batches were made, in nanoseconds."""
    made = [at for at in made if marks[0] <= at < marks[-1]]
    inside = np.searchsorted(marks, made, side="right") - 1
    busy = {int(at) + late for at in inside for late in (0, 1)}  # what follows from one is done a little later
    calm = [at for at in range(len(pieces)) if at not in busy]
    found: list[Turn] = []
    for first in sorted(at for at in busy if at - 1 not in busy):
        group = [at for at in range(first, len(pieces)) if busy.issuperset(range(first, at + 1))]
        near = [at for at in calm if first - AROUND <= at <= first + len(group) + AROUND - 1]
        if group and near:
            usual = {name: float(np.mean([pieces[at][name] for at in near])) for name in pieces[0]}
            found.append({name: sum(pieces[at][name] - usual[name] for at in group) * count for name in usual})
    return found


def measure(name: str, workers: int, count: int) -> list[dict[str, Any]]:
    """One row for each thing that is measured. Processes are 'client', 'dispatcher', 'worker 0', …, and 'watcher', which 'cpu'
    is without."""
    session = gt.init(workers=workers, config=RULES)
    work = WORKS[name]()
    pass_time(work, WARM)
    watcher = Watcher(session.link.local.address)
    names = ["dispatcher", *[f"worker {number}" for number in range(workers)]]
    children = [child.pid for _, child in session.link.local.children]
    processes = {**dict(zip(names, children, strict=True)), "watcher": watcher.process.pid}
    told: dict[str, tuple[list[Turn], float]] = {}
    together = contextlib.ExitStack()
    try:
        if name in KEPT:
            together.enter_context(kept_to_cores([os.getpid(), *children]))
        rounds = hooks(work, watcher, processes, count)
        for level in ("summary", "trace"):
            watcher.set_level(TURNS[level])
            told[level] = batches(work, watcher, processes)
    finally:
        together.close()
        watcher.close()
        gt.disconnect()
    base = {what: trimmed(turns["nobody"][what] for turns in rounds).mean for what in rounds[0]["nobody"]}
    rows = []
    for what, usual in base.items():
        row: dict[str, Any] = {"work": name, "workers": workers, "of": what, "nobody": usual, "rounds": len(rounds)}
        # a share of the work's own time; of the watcher, which does nothing for it, of the time on the clock
        whole = base["clock"] if what == "watcher" else usual
        for turn in list(TURNS)[1:]:
            both = [(turns[turn][what], turns["nobody"][what]) for turns in rounds if turn in turns]
            row[turn] = trimmed(100 * (watched - alone) / whole for watched, alone in both)
        for level, (each, rate) in told.items():
            # in a second of the clock there is so much work, and there are so many batches
            share = 100 * rate * base["clock"] / whole
            row[f"{level} batches"] = trimmed(share * batch[what] for batch in each)
            row[f"{level} batch"] = trimmed(batch[what] for batch in each).mean
            row[f"{level} in all"] = row[level].mean + row[f"{level} batches"].mean
        rows.append(row)
    return rows


def line(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    said = [row["work"], str(row["workers"]), row["of"], f"{row['nobody'] * 1e6:,.0f} us", _percent(row["again"])]
    for level in ("summary", "trace"):
        said += [_percent(row[level]), _percent(row[f"{level} batches"]), f"{row[f'{level} in all']:+.1f} %"]
    return said


def _percent(found: Found) -> str:
    return f"{found.mean:+.1f} ({found.low:+.1f} … {found.high:+.1f})"


HEAD: Final = (
    "work", "workers", "of", "nobody", "again, %", "summary: hooks, %", "batches, %", "in all", "trace: hooks, %",
    "batches, %", "in all",
)  # fmt: skip
WIDTHS: Final = (5, 7, 10, 10, 20, 20, 20, 8, 20, 20, 8)


def _print(cells: Iterable[str]) -> None:
    print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="plans,step", help=f"a comma-separated choice of {', '.join(WORKS)}")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--rounds", type=int, default=100, help="of four turns, for each work")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        watch(options.watch)
        return
    _print(HEAD)
    found = []
    for name in options.only.split(","):
        for count in map(int, options.workers.split(",")):
            rows = measure(name, count, options.rounds)
            found += rows
            for row in rows:
                _print(line(row))
    print(f"load {os.getloadavg()[0]:.1f}; the watcher's time is a share of the clock, all others of their own")
    if options.json:
        options.json.write_text(json.dumps({"rows": found, "load": os.getloadavg()[0]}), "utf-8")


if __name__ == "__main__":
    main()
