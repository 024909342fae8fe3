"""GT beside its peers, as ratios: `make bench`, and in less than a minute `make bench-smoke`.

    python benchmarks/run.py [--rounds 7] [--only chain,step,...] [--json FILE] [--smoke]

Each contender of a row is alone in a process of its own (`peers.py`), with as many threads as it takes by itself, and one is
active at a time. They take turns, forwards and backwards, each turn after a pause in which the threads of the one before fall
asleep: whose speed drifts drifts for all. A figure is the median of the turns; behind it are the least and the most. A ratio is
the median of the ratios of turns that follow each other. Nothing here passes or fails: goals stand beside what was measured.

`--smoke` keeps the processes of GT and PyTorch for all rows, warms up less, and leaves out what takes long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import peers
from peers import Offer, Peer, PeerFailed

PAUSE: Final = 0.06
"""Seconds before each turn. OpenMP's threads spin for up to some 20 ms after their work."""
TURN: Final = 0.25
"""Seconds that a turn takes at least."""
WARM: Final = 10
"""Runs of each contender that are not counted: caches fill, plans are searched, and programs become hot."""
SMOKE: Final = {"turn": 0.05, "rounds": 3}
BULK_BYTES: Final = 256 << 20


class Goal(NamedTuple):
    """What GT's time over a peer's should be at most."""

    peer: str
    most: float
    way: str = "GT"


class Row(NamedTuple):
    """A line of the table: what it says, who stands beside GT, its goals, and how seconds are shown."""

    what: str
    peers: tuple[str, ...] = ("torch",)
    goals: tuple[Goal, ...] = ()
    unit: str = "ms"
    smoke: bool = True


EAGER: Final = "PyTorch"
ROWS: Final[Mapping[str, Row]] = {
    "chain": Row(
        "chain of 5,000 additions, 16×16, one fetch", ("torch", "numpy", "jax", "dask", "ray"),
        (Goal(EAGER, 0.8), Goal(EAGER, 0.3, "GT compiled")), "µs an op",
    ),
    "elementwise": Row("8 element-wise operations, 4 Mi float32", ("torch", "numpy"), (Goal(EAGER, 0.55),)),
    "step": Row(
        "SGD step of 784-256-128-10, batch 128", ("torch", "compile", "numpy", "jax"),
        (Goal(EAGER, 1.0), Goal(EAGER, 0.8, "GT compiled")),
    ),
    "step_item": Row("the same, every loss fetched", ("torch", "compile"), (Goal(EAGER, 1.3), Goal(EAGER, 0.8, "GT compiled"))),
    "transformer": Row(
        "SGD step of a transformer, width 128, 2 layers, 8×64", ("torch", "compile"), (Goal(EAGER, 0.95),),
    ),
    "transformer_item": Row("the same, every loss fetched", ("torch",), (Goal(EAGER, 1.05),)),
    "cnn": Row("SGD step of 2 convolutions with pooling, 64 of 28×28", ("torch", "compile"), (Goal(EAGER, 1.0),)),
    "lstm": Row(
        "SGD step of an LSTM 32→64, 40 steps, batch 32", ("torch", "compile"),
        (Goal(EAGER, 1.2), Goal(EAGER, 0.8, "GT compiled")),
    ),
    "product_256": Row("products of 256×256 in a chain", ("torch",), (Goal(EAGER, 1.1),)),
    "product_1024": Row("products of 1024×1024 in a chain", ("torch",), (Goal(EAGER, 1.0),)),
    "attention": Row("attention over 4×8×256×64, forward", ("torch",), (Goal(EAGER, 1.0),)),
    "serving": Row("a sample through 784-256-10, its class fetched", ("torch", "compile"), (Goal(EAGER, 4.0),), "µs"),
    "transposed_convolution": Row("conv_transpose2d, kernel = stride = 16", ("torch",), (Goal(EAGER, 1.5),)),
    "input_gradient": Row("conv2d and its input's gradient, kernel = stride = 16", ("torch",), (Goal(EAGER, 1.5),)),
    "ddp_small": Row(
        "transformer on 2 workers, width 128, 2 layers", ("gloo",), (Goal("PyTorch DDP", 0.8),), smoke=False
    ),
    "ddp_large": Row("the same, width 256, 4 layers", ("gloo",), (Goal("PyTorch DDP", 0.8),), smoke=False),
    "fsdp_small": Row(
        "fully sharded on 2 workers, width 128, 2 layers", ("gloo",), (Goal("PyTorch FSDP", 0.7),), smoke=False
    ),
    "fsdp_large": Row("the same, width 256, 4 layers", ("gloo",), (Goal("PyTorch FSDP", 0.7),), smoke=False),
    "loading": Row("step with a batch that comes after 10 ms", (), (Goal("GT", 1.0, "GT, gt.data.prefetch"),), smoke=False),
    "bulk": Row(
        "256 MiB put, and fetched", ("numpy", "dask", "ray"),
        (Goal("memcpy", 1.25, "GT put"), Goal("memcpy", 1.25, "GT fetch"), Goal("memcpy", 1.25, "GT fetch of a put")),
        "GB/s", smoke=False,
    ),
    "round_trip": Row("fetch of one element", ("echo", "dask", "ray"), (Goal("ZeroMQ echo", 1.2),), "µs"),
}  # fmt: skip


class Figure(NamedTuple):
    """One ratio: of GT's time (one way of it) to a peer's, the least and the most of all turns, and the goal, if there is one."""

    what: str
    way: str
    peer: str
    ratio: float
    least: float
    most: float
    goal: float | None

    def said(self) -> str:
        """In the table."""
        goal = "" if self.goal is None else f"  (goal ≤ {self.goal:g})"
        return f"{self.way} / {self.peer} = {self.ratio:.3g} ({self.least:.3g} to {self.most:.3g}){goal}"


class Taken(NamedTuple):
    """What was measured of a contender: the seconds of an operation in each turn."""

    beside: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """The middle of them."""
        return statistics.median(self.seconds)


Table = list[tuple[str, str, str, str]]


def shown(seconds: float, unit: str) -> str:
    """A time, or the speed at which so much was copied."""
    if unit == "GB/s":
        return f"{BULK_BYTES / seconds / 1e9:.2f}"
    return f"{seconds * (1e3 if unit == 'ms' else 1e6):.3g}"


def measured(
    row: str, contenders: Sequence[tuple[Peer, str, Offer]], rounds: int, turn: float, warm: int
) -> dict[str, Taken]:
    """Turns of all contenders; who fails is left out, and said."""
    ready: list[tuple[Peer, Offer, int]] = []
    for peer, script, offer in contenders:
        with _left_out(row, script):
            peer.turn(offer.name, warm)
            taken = peer.turn(offer.name, max(1, warm // 5)) * offer.count
            ready.append((peer, offer, math.ceil(turn / taken)))
    found = {offer.name: Taken(offer.beside, []) for _, offer, _ in ready}
    for _ in range(rounds):
        for peer, offer, runs in ready:
            time.sleep(PAUSE)
            found[offer.name].seconds.append(peer.turn(offer.name, runs))
        ready.reverse()
    return found


@contextlib.contextmanager
def _left_out(row: str, script: str) -> Iterator[None]:
    """A peer that fails costs no row; GT does."""
    try:
        yield
    except PeerFailed as error:
        print(f"{script} failed at {row}: {error}", file=sys.stderr)
        if script == "gt":
            raise


def figures(row: Row, found: Mapping[str, Taken]) -> list[Figure]:
    """The ratios of a row: of each peer to GT's way that it stands beside, and all that have a goal."""
    goals = {(goal.way, goal.peer): goal.most for goal in row.goals}
    pairs = [
        (taken.beside, name) for name, taken in found.items() if not name.startswith("GT") and taken.beside in found
    ]
    pairs += [pair for pair in goals if pair not in pairs and {*pair} <= found.keys()]
    made = []
    for way, peer in pairs:
        ratios = [ours / theirs for ours, theirs in zip(found[way].seconds, found[peer].seconds, strict=True)]
        made.append(
            Figure(row.what, way, peer, statistics.median(ratios), min(ratios), max(ratios), goals.get((way, peer)))
        )
    return made


def table(row: Row, found: Mapping[str, Taken], ratios: Sequence[Figure]) -> Table:
    """The lines of a row: for each contender its time, and beside it the ratios to it."""
    lines: Table = []
    for name, taken in found.items():
        span = sorted((shown(min(taken.seconds), row.unit), shown(max(taken.seconds), row.unit)), key=float)
        time_ = f"{shown(taken.median, row.unit)} ({span[0]} to {span[1]}) {row.unit}"
        beside = ", ".join(each.said() for each in ratios if each.peer == name)
        lines.append(("" if lines else row.what, name, time_, beside))
    return lines


def starts(rounds: int) -> tuple[Table, list[Figure]]:
    """A new process: `import gt`, and the first value through its own daemons."""
    first = "import gt; assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]; import os; os._exit(0)"
    codes = {"bare python": "pass", "import numpy": "import numpy", "import gt": "import gt", "first value": first}
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for turn in range(rounds + 1):
        for name, code in codes.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            if turn:
                taken[name].append(time.perf_counter() - begin)
    goals = {"import gt": "  (goal ≤ 0.2 s)", "first value": "  (goal ≤ 1.5 s)"}
    bare = statistics.median(taken["bare python"])
    lines: Table = []
    for name, times in taken.items():
        middle = statistics.median(times)
        over = f"{middle - bare:.3f} s over bare python{goals.get(name, '')}"
        lines.append(
            ("" if lines else "new process", name, f"{middle:.3f} ({min(times):.3f} to {max(times):.3f}) s", over)
        )
    return lines, []


def bench(name: str, rounds: int) -> tuple[Table, list[Figure]]:
    """One row, with processes of its own."""
    row = ROWS[name]
    with contextlib.ExitStack() as stack:
        contenders = []
        for script in ("gt", *row.peers):
            if not peers.missing([script]):
                with _left_out(name, script):
                    peer = stack.enter_context(Peer(script))
                    contenders += [(peer, script, offer) for offer in peer.row(name)]
        found = measured(name, contenders, rounds, TURN, WARM)
    ratios = figures(row, found)
    return table(row, found, ratios), ratios


def smoke(names: Sequence[str], rounds: int) -> Iterator[tuple[Table, list[Figure]]]:
    """All rows, short, with the same processes."""
    scripts = [name for name in ("gt", "torch", "echo") if not peers.missing([name])]
    with contextlib.ExitStack() as stack:
        started = {script: stack.enter_context(Peer(script)) for script in scripts}
        for name in names:
            row = ROWS[name]
            contenders = []
            for script in ("gt", *row.peers):
                if script in started:
                    with _left_out(name, script):
                        contenders += [(started[script], script, offer) for offer in started[script].row(name)]
            found = measured(name, contenders, rounds, SMOKE["turn"], WARM)
            ratios = figures(row, found)
            yield table(row, found, ratios), ratios


def threads() -> int:
    """The cores that this process may use, which is how many threads each contender takes."""
    return len(os.sched_getaffinity(0))


def clock() -> str:
    """How fast the cores are said to run now, in MHz, each; they may be faster or slower a moment later."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return "/".join(f"{float(line.split(':')[1]):.0f}" for line in lines if line.startswith("cpu MHz")) or "unknown"


def facts() -> str:
    """On what was measured."""
    known = [f"Python {platform.python_version()}"]
    for package in ("numpy", "torch", "jax", "distributed", "ray"):
        with contextlib.suppress(PackageNotFoundError):
            known.append(f"{package} {version(package)}")
    kernel = os.environ.get("OPENBLAS_CORETYPE")
    held = f", OpenBLAS held to {kernel} by its environment variable" if kernel else ""
    return f"{', '.join(known)}; {platform.machine()}, {threads()} threads each, clock {clock()} MHz{held}"


def main() -> None:
    """Run the benchmarks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of each contender (default: 7, with --smoke 3)")
    parser.add_argument("--only", help=f"a comma-separated choice of: {','.join(('start', *ROWS))} (default: all)")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--smoke", action="store_true", help="in less than a minute, less exactly")
    options = parser.parse_args()
    rounds = options.rounds or (SMOKE["rounds"] if options.smoke else 7)
    every = [name for name, row in ROWS.items() if row.smoke or not options.smoke]
    wanted = options.only.split(",") if options.only else every if options.smoke else ["start", *every]
    if unknown := [name for name in wanted if name not in (*ROWS, "start")]:
        parser.error(f"there is no row {', '.join(unknown)}: rows are start, {', '.join(ROWS)}")
    print(facts(), flush=True)
    absent = peers.missing(sorted({script for name in wanted if name in ROWS for script in ROWS[name].peers}))
    if absent:
        print(f"not installed: {', '.join(absent)}")
    lines: Table = []
    ratios: list[Figure] = []
    parts = (
        smoke(wanted, int(rounds))
        if options.smoke
        else (starts(max(3, rounds - 2)) if name == "start" else bench(name, rounds) for name in wanted)
    )
    for part, found in parts:
        for line in part:
            print(f"{line[0]:52} {line[1]:22} {line[2]:34} {line[3]}".rstrip(), flush=True)
        lines += part
        ratios += found
    if options.json:
        text = {"facts": facts(), "missing": absent, "rows": lines, "figures": [each._asdict() for each in ratios]}
        options.json.write_text(json.dumps(text, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
