"""Shows where a slow fetch waits: for each thread of a program and of its service, how long it ran and waited for a core.

Linux counts both. Other programs on the machine change the waits, and hardly the running times.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from forked_programs import Program
from sharing import THINK_SECONDS

import gt

LEAST_SECONDS: Final = 0.0002
"""A thread that has neither run nor waited so long is left out."""


class Fetch(NamedTuple):
    """A fetch: when it began, in seconds, how long it took, and by thread the seconds for which it ran and waited for a core."""

    at: float
    seconds: float
    ran: dict[str, float]
    waited: dict[str, float]


def threads(process: str, pid: int) -> list[tuple[str, int]]:
    """The name of each thread of a process, and the descriptor of what Linux counts of it."""
    found = []
    for folder in Path(f"/proc/{pid}/task").iterdir():
        name = "main" if int(folder.name) == pid else (folder / "comm").read_text().strip()
        found.append((f"{process} {name}", os.open(folder / "schedstat", os.O_RDONLY)))
    return found


def counted(known: list[tuple[str, int]]) -> tuple[Counter[str], Counter[str]]:
    """By name, the nanoseconds that threads have run and waited so far."""
    ran, waited = Counter[str](), Counter[str]()
    for name, descriptor in known:
        with contextlib.suppress(OSError):  # it has ended
            fields = os.pread(descriptor, 100, 0).split()
            ran[name] += int(fields[0])
            waited[name] += int(fields[1])
    return ran, waited


def traced_fetcher(seconds: float, prepare: Callable[[], Callable[[], object]], processes: dict[str, int]) -> Program:
    """As `sharing.fetcher`. Finds the fields of a `Fetch` for each; `processes` are those of the service, by name."""

    def run(address: str, start: int, report: int) -> None:
        gt.connect(address)
        call, think = prepare(), random.Random(1)
        for _ in range(20):
            call()
        os.write(report, b"\n")
        os.read(start, 1)
        known = [each for name, pid in {**processes, "client": os.getpid()}.items() for each in threads(name, pid)]
        begin, found = time.monotonic(), list[Fetch]()
        while time.monotonic() < begin + seconds:
            before, at = counted(known), time.monotonic()
            call()
            taken, after = time.monotonic() - at, counted(known)
            ran, waited = (
                {name: (new[name] - old[name]) / 1e9 for name in new} for old, new in zip(before, after, strict=True)
            )
            found.append(Fetch(at - begin, taken, ran, waited))
            time.sleep(think.uniform(*THINK_SECONDS))
        os.write(report, json.dumps(found).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def table(found: list[Any], slowest: int) -> list[str]:
    """A line with the means of all fetches, and one for each of the slowest: milliseconds run and waited by each thread."""
    fetches = sorted((Fetch(*each) for each in found), key=lambda fetch: fetch.seconds)
    names = sorted({name for fetch in fetches for name in fetch.ran})

    def mean(of: Callable[[Fetch], dict[str, float]]) -> dict[str, float]:
        return {name: sum(of(each).get(name, 0.0) for each in fetches) / len(fetches) for name in names}

    middle = Fetch(
        0.0,
        sum(each.seconds for each in fetches) / len(fetches),
        mean(lambda each: each.ran),
        mean(lambda each: each.waited),
    )
    lines = []
    for what, fetch in (("mean", middle), *((f"at {each.at:.2f} s", each) for each in fetches[-slowest:])):
        parts = [
            f"{name} {fetch.ran[name] * 1e3:.1f}+{fetch.waited[name] * 1e3:.1f}"
            for name in names
            if fetch.ran.get(name, 0.0) + fetch.waited.get(name, 0.0) > LEAST_SECONDS
        ]
        lines.append(f"    {what:12} {fetch.seconds * 1e3:7.2f} ms: {', '.join(parts)}")
    return lines
