"""Other libraries beside GT in `run.py`: each in a process of its own, which is started for one row and ended after it.

A peer is a script (`peer_jax.py`, `peer_dask.py`, `peer_ray.py`; in `compare.py` `peer_gt.py`, twice) that is told the row
and then takes turns, whenever it is asked. It measures itself, so what is between the processes is in no figure. A peer that
is not installed is said to be missing, and one that fails says why, in its own row: neither keeps the others from going on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PEERS = {"JAX": "jax", "Dask": "distributed", "Ray": "ray"}
"""By the names in the table, what is imported."""
ROWS = {"chain": ("JAX", "Dask", "Ray"), "step": ("JAX",), "bulk": ("Dask", "Ray"), "round_trip": ("Dask", "Ray")}
"""In which rows a peer makes sense: JAX has no service to put data to, and nobody trains through a call for each operation."""
TURNS = 5
PATIENCE = 180.0
"""Seconds that a peer has to get ready, or for one turn."""
ENDING = 20.0
"""Seconds that it has to end by itself."""


class Contender(NamedTuple):
    """What a peer measures: its name in the table, which of GT's ways it stands beside, and one turn of so many operations."""

    name: str
    beside: str
    run: Callable[[], object]
    count: int = 1


# in the peer's process


def serve(rows: dict[str, Callable[[], list[Contender]]]) -> None:
    """Do one row: say what there is, and then for every name and number of runs the seconds that one operation took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    contenders = {each.name: each for each in rows[sys.argv[1]]()}
    print(json.dumps([(each.name, each.beside) for each in contenders.values()]), file=answers, flush=True)
    for line in sys.stdin:
        name, runs = json.loads(line)
        each = contenders[name]
        start = time.perf_counter()
        for _ in range(runs):
            each.run()
        print((time.perf_counter() - start) / (runs * each.count), file=answers, flush=True)


# in GT's process


def clock_of(pid: int) -> int:
    """The clock that counts a process' processor time, as `clock_getcpuclockid` makes it on Linux."""
    return (~pid << 3) | 2


class PeerFailed(Exception):
    """A peer ended, or did not answer in time. All that it wrote is in `written`."""

    def __init__(self, why: str, written: str) -> None:
        super().__init__(why)
        self.written = written


class Peer:
    """A peer's process for one row, in another environment if one is given."""

    def __init__(self, name: str, row: str, environment: dict[str, str] | None = None) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the `with` that this begins
        script = HERE / f"peer_{name.lower()}.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), row],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True, env=environment,
        )  # fmt: skip

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def answer(self, what: str = "get ready") -> Any:
        """The next line that it says, when it has done `what`."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise PeerFailed(f"it did not {what} in {PATIENCE:g} s", self.written())
        line = self.process.stdout.readline()
        if not line:
            written = self.written()
            raise PeerFailed(written.splitlines()[-1][:100] if written else "it ended without a word", written)
        return json.loads(line)

    def written(self) -> str:
        """What it has written that is no answer."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()

    def turn(self, name: str, runs: int = 1) -> float:
        """The seconds that one operation takes, measured by the peer over so many runs."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says why
            self.process.stdin.write(f"{json.dumps([name, runs])}\n".encode())
            self.process.stdin.flush()
        return float(self.answer(f"finish a turn of {name}"))


def missing() -> list[str]:
    """The peers that are not installed."""
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module) is None]


def beside(
    row: str, ours: dict[str, tuple[Callable[[], object], int]], turns: int
) -> list[tuple[str, str, float, float]]:
    """For each way in which a peer does a row: (name, GT's way, seconds of the peer's operation, of GT's), medians of turns.

    `ours` are GT's ways, each with the operations that it does. A peer that fails is there once, with NaN.
    """
    found = []
    absent = missing()
    for name in ROWS[row]:
        if name not in absent:
            try:
                found += _against(name, row, ours, turns)
            except PeerFailed as error:
                print(f"{name} failed at {row}: {error}", file=sys.stderr)
                found.append((name, "", float("nan"), float("nan")))
    return found


def _against(
    name: str, row: str, ours: dict[str, tuple[Callable[[], object], int]], turns: int
) -> list[tuple[str, str, float, float]]:
    with Peer(name, row) as peer:
        ways: list[tuple[str, str]] = [(way, beside) for way, beside in peer.answer()]
        theirs: dict[str, list[float]] = {way: [] for way, _ in ways}
        mine: dict[str, list[float]] = {way: [] for way, _ in ways}
        for turn in range(turns + 1):  # the first is a warm-up
            for way, beside in ways:
                took = peer.turn(way)
                run, count = ours[beside]
                start = time.perf_counter()
                run()
                if turn:
                    mine[way].append((time.perf_counter() - start) / count)
                    theirs[way].append(took)
        return [(way, beside, statistics.median(theirs[way]), statistics.median(mine[way])) for way, beside in ways]
