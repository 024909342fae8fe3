"""Two checkouts of this project beside each other: does a change make anything slower?

    python benchmarks/compare.py OLD NEW [--rows chain,step,transformer,round_trip,put,import] [--pairs 15] [--json FILE]

For each pair of times both checkouts are started, each in processes of its own (`peer_gt.py` and its daemons: one worker) with
its modules compiled before, and warmed up. Then they take turns of 0.1 s and more, one waiting while the other works: six of
either, alternating, the first drawn by lot. Their means are the pair, so what slows the machine for longer than a turn is in
both, and not in their ratio. Processes are new for each pair because some are faster than others for all their lives: of two that
lasted for all pairs, on a busy machine, a tree took 0.63 (0.56 to 0.86) of its own time. What differs between processes is
repeated with them: T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable Time, 2013. `import` is measured in fresh
processes, a few each turn.

For each row: the median times, and the median of the pairs' ratios new / old with an interval that has it with 95 % confidence
or more. Its ends are two of the ratios, by their ranks, which the binomial distribution gives for a median whatever the ratios'
distribution is, if pairs are independent (W. J. Conover, Practical Nonparametric Statistics, 3rd edition, 1999, section 3.2); of
15 ratios they are the fourth and the twelfth. A row is slower if all of its interval is above 1.03; then the exit status is 1.
It is unclear if only a part of it is: more pairs, or a machine with less to do, narrow it. Beside that is the same ratio of the
processor time of client, dispatcher and worker together, which other programs disturb less; no verdict is by it. A checkout that
fails or does not answer ends the comparison with exit status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import peers
import psutil
import suite

ROWS: Final = ("chain", "step", "transformer", "round_trip", "put", "import")
PAIRS: Final = 15
"""The pairs that a row needs at least."""
TURN: Final = 0.1
"""Seconds that a turn lasts at least."""
TURNS: Final = 6
"""Turns of either in a pair; as many after the other's as before."""
WARM: Final = 8
"""Runs of either in each of two turns that are not counted: plans are searched, and programs become hot."""
PUT_WARM: Final = 40
"""The same of `put`: a client keeps at most 1 GiB of puts, all of which its memory has been touched for by then."""
FRESH_WARM: Final = 1
"""The same of `import`: each run is a fresh process."""
CONFIDENCE: Final = 0.95
LIMIT: Final = 1.03
"""The ratio above which all of an interval must lie for a row to be slower."""
IDLE: Final = 0.05
"""The share of a core that the one that waits may use before it is told."""
IMPORT: Final = "import time; start = time.perf_counter(); import gt; print(time.perf_counter() - start)"
Turn = Callable[[int], float]
"""Does so many runs, and says how many seconds one operation took."""


# statistics


class Interval(NamedTuple):
    """A median, and between what it lies with 95 % confidence."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """The median of what the values are drawn from; its ends are the values of the narrowest ranks that are sure enough.

    The value of rank k is above the median if fewer than k of n values are below it, each of which is so by a coin's toss.
    """
    count, outside, rank = len(values), 0.0, 0
    while (outside := outside + 2 * math.comb(count, rank) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
    if not rank:
        raise ValueError(f"{count} values are too few to be {CONFIDENCE:.0%} sure of their median")
    known = sorted(values)
    return Interval(statistics.median(known), known[rank - 1], known[count - rank])


def verdict(ratio: Interval) -> str:
    """What an interval of new / old says: `unclear` if the new one may be slower or not."""
    if ratio.low > LIMIT:
        return "slower"
    if ratio.high < 1 / LIMIT:
        return "faster"
    return "not slower" if ratio.high <= LIMIT else "unclear"


# pairs


class Contender(NamedTuple):
    """A checkout that is ready for a row: what does its turn, its processes, and how many runs warm it up."""

    turn: Turn
    processes: Sequence[int]
    warm: int

    def used(self) -> float:
        """Seconds of processor time that its processes have had, all their threads together."""
        used = 0
        for process in self.processes:
            with contextlib.suppress(OSError):  # it has ended
                used += time.clock_gettime_ns(peers.clock_of(process))
        return used / 1e9


class Pair(NamedTuple):
    """The mean times of one operation, what processor time either used for it, and what part of a core the one that waited."""

    old: float
    new: float
    used: tuple[float, float]
    waiting: float


def pair(contenders: Sequence[Contender]) -> Pair:
    """One pair. Both do as many runs a turn as the quicker needs for one that is long enough."""
    order = random.sample((0, 1), 2)
    runs = 1
    for each in [contenders[at] for at in order]:
        each.turn(each.warm)
        start = time.perf_counter()
        each.turn(each.warm)
        runs = max(runs, math.ceil(TURN * each.warm / (time.perf_counter() - start)))
    times, used, waiting, lasted = [0.0, 0.0], [0.0, 0.0], 0.0, 0.0
    for _ in range(TURNS):
        for at in order:
            before, start = [each.used() for each in contenders], time.perf_counter()
            times[at] += contenders[at].turn(runs) / TURNS
            lasted += time.perf_counter() - start
            taken = [each.used() - known for each, known in zip(contenders, before, strict=True)]
            used[at] += taken[at]
            waiting += taken[1 - at]
        order.reverse()
    return Pair(times[0], times[1], (used[0], used[1]), waiting / lasted)


# the checkouts


class Failed(Exception):
    """A checkout that ended or did not answer; says which, at what, and what it wrote."""


class Checkout:
    """One of the two: its name in the table, where it is, and the folder for all that its processes leave."""

    def __init__(self, name: str, path: Path, folder: Path) -> None:
        self.name, self.path, self.folder = name, path, folder
        links = folder / "links" / "gt"
        links.mkdir(parents=True)
        packages = tomllib.loads((path / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-dir"]
        for entry in (path / packages.pop("gt")).iterdir():
            (links / entry.name).symlink_to(entry)
        for package, room in packages.items():
            (links / package.removeprefix("gt.")).symlink_to(path / room)
        before = os.environ.get("PYTHONPATH")
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{links.parent}{os.pathsep}{before}" if before else str(links.parent),
            "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
            "GT_CACHE": str(folder / "cache"),
        }
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "GT_CONFIG"):
            self.environment.pop(name, None)
        for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
            (folder / name[:3].lower()).mkdir(mode=0o700)
            self.environment[name] = str(folder / name[:3].lower())

    @contextlib.contextmanager
    def blamed(self, row: str) -> Iterator[None]:
        """What fails meanwhile is this checkout's fault."""
        try:
            yield
        except peers.PeerFailed as error:
            raise Failed(f"{row}: {self.name} ({self.path}) failed: {error}\n{error.written}".rstrip()) from None

    def imports(self, runs: int) -> float:
        """Seconds that `import gt` takes in a fresh process, the mean of so many."""
        taken = 0.0
        for _ in range(runs):
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-c", IMPORT],  # -P: not from the folder in which this was started
                    env=self.environment, capture_output=True, text=True, timeout=peers.PATIENCE, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise peers.PeerFailed(f"it did not import gt in {peers.PATIENCE:g} s", "") from None
            if done.returncode:
                raise peers.PeerFailed(f"`import gt` ended with status {done.returncode}", done.stderr.strip())
            taken += float(done.stdout)
        return taken / runs

    def processes(self) -> list[int]:
        """The numbers of those that run for this checkout, whoever started them: all that have its environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == self.environment["TMPDIR"]:
                    found.append(process.pid)
        return found

    def end(self) -> None:
        """End what still runs: daemons do so by themselves, when they notice that their client has gone."""
        deadline = time.monotonic() + peers.ENDING
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


# rows


@contextlib.contextmanager
def ready(row: str, checkouts: Sequence[Checkout]) -> Iterator[list[Contender]]:
    """What takes turns in a row; nothing of it is left afterwards."""

    def blaming(checkout: Checkout, turn: Turn) -> Turn:
        def run(runs: int) -> float:
            with checkout.blamed(row):
                return turn(runs)

        return run

    if row == "import":
        yield [Contender(blaming(each, each.imports), (), FRESH_WARM) for each in checkouts]
        return
    with contextlib.ExitStack() as stack:
        started = {}
        for each in random.sample(checkouts, 2):
            stack.callback(each.end)
            started[each] = stack.enter_context(peers.Peer("gt", each.environment))
            started[each].ask("row", row)
        for each, peer in started.items():
            with each.blamed(row):
                peer.answer("get ready")
        warm = PUT_WARM if row == "put" else WARM
        yield [
            Contender(blaming(each, functools.partial(started[each].turn, "GT")), each.processes(), warm)
            for each in checkouts
        ]


def compare(row: str, checkouts: Sequence[Checkout], pairs: int) -> dict[str, Any]:
    """What is found in one row."""
    found = []
    for _ in range(pairs):
        with ready(row, checkouts) as contenders:
            found.append(pair(contenders))
    ratio = interval([each.new / each.old for each in found])
    used = [each.used[1] / each.used[0] for each in found if all(each.used)]
    return {
        "row": row, "old": statistics.median(each.old for each in found), "new": statistics.median(each.new for each in found),
        "ratio": ratio, "verdict": verdict(ratio), "processor": interval(used) if used else None,
        "waiting": statistics.median(each.waiting for each in found), "pairs": [(each.old, each.new) for each in found],
    }  # fmt: skip


def seconds(value: float) -> str:
    """In a unit that fits."""
    scale, unit = next((each for each in ((1, "s"), (1e3, "ms")) if value * each[0] >= 1), (1e6, "µs"))
    return f"{value * scale:.2f} {unit}"


def said(ratio: Interval) -> str:
    """An interval, to be read."""
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    times = f"old {seconds(found['old']):>10}  new {seconds(found['new']):>10}"
    used = f", of processor time {said(found['processor'])}" if found["processor"] else ""
    busy = f"; the one that waited used {found['waiting']:.0%} of a core" if found["waiting"] > IDLE else ""
    return f"{found['row']:12} {times}  new / old = {said(found['ratio'])}  {found['verdict']}{used}{busy}"


def checkout_at(text: str) -> Path:
    """The folder of a checkout."""
    path = Path(text).resolve()
    if not ((path / "gt" / "__init__.py").exists() and (path / "pyproject.toml").exists()):
        raise argparse.ArgumentTypeError(f"{text} is no checkout: it has no gt/__init__.py beside a pyproject.toml")
    return path


def main() -> int:
    """Compare, and print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=checkout_at)
    parser.add_argument("new", type=checkout_at)
    parser.add_argument("--rows", default=",".join(ROWS), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of turns in each row: %(default)s, or more")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    if unknown := [row for row in wanted if row not in ROWS]:
        parser.error(f"there is no row {', '.join(unknown)}: rows are {', '.join(ROWS)}")
    if options.pairs < PAIRS:
        parser.error(f"--pairs {options.pairs} are too few to tell a difference from noise: {PAIRS} or more")
    facts = {
        name: {"path": str(path), "commit": suite.commit(path)}
        for name, path in (("old", options.old), ("new", options.new))
    }
    for name, known in facts.items():
        print(f"{name}: {known['path']} {known['commit']}".rstrip())
    print(f"Python {platform.python_version()}, {suite.machine()}, {options.pairs} pairs", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="gt-", ignore_cleanup_errors=True) as folder:
        checkouts = [
            Checkout(name, path, Path(folder) / name) for name, path in (("old", options.old), ("new", options.new))
        ]
        try:
            for row in wanted:
                rows.append(compare(row, checkouts, options.pairs))
                print(line(rows[-1]), flush=True)
        except Failed as error:
            print(error, file=sys.stderr)
            return 2
    if options.json:
        machine = {"machine": suite.machine(), "python": platform.python_version()}
        text = json.dumps({**machine, **facts, "rows": rows}, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", "utf-8")
    return int(any(found["verdict"] == "slower" for found in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    sys.exit(main())
