"""Processes that take turns in `run.py` and `compare.py`: GT and other libraries, each in one of its own.

Idle threads of one library slow down another in the same process: PyTorch's spin for a while, on the cores that others need. So
each contender is a script (`peer_gt.py`, `peer_torch.py`, `peer_numpy.py`, …) that is told a row and then works whenever it is
asked, and never while another does. It measures itself, so what is between the processes is in no figure. One that is not
installed is said to be missing, and one that fails says why, in its own row: neither keeps the others from going on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
MODULES = {"torch": "torch", "compile": "torch", "gloo": "torch", "jax": "jax", "dask": "distributed", "ray": "ray"}
"""Optional module that each script imports; the others need nothing but what GT needs."""
PATIENCE = 180.0
"""Seconds that a peer has to get ready, or for one turn."""
ENDING = 20.0
"""Seconds that it has to end by itself."""


class Contender(NamedTuple):
    """A measurement of a peer: its name in the table, which of GT's ways it stands beside, and one run of so many operations."""

    name: str
    beside: str
    run: Callable[[], object]
    count: int = 1


class Offer(NamedTuple):
    """A contender, as the process that takes turns knows it."""

    name: str
    beside: str
    count: int


# in the peer's process


def serve(rows: dict[str, Callable[[], list[Contender]]]) -> None:
    """Answer requests, each a line of JSON, until there are no more: `["row", name]` gets that row ready and is answered by its
    offers, `["turn", contender, runs]` by the seconds that one operation took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    contenders: dict[str, Contender] = {}
    for line in sys.stdin:
        request, name, *rest = json.loads(line)
        if request == "row":
            contenders.clear()  # before the next are there: they may be large
            contenders = {each.name: each for each in rows[name]()}
            answer: Any = [(each.name, each.beside, each.count) for each in contenders.values()]
        else:
            each, (runs,) = contenders[name], rest
            start = time.perf_counter()
            for _ in range(runs):
                each.run()
            answer = (time.perf_counter() - start) / (runs * each.count)
        print(json.dumps(answer), file=answers, flush=True)


# in the process that has them take turns


def clock_of(pid: int) -> int:
    """The clock that counts a process' processor time, as `clock_getcpuclockid` makes it on Linux."""
    return (~pid << 3) | 2


class PeerFailed(Exception):
    """A peer ended, or did not answer in time. All that it wrote is in `written`."""

    def __init__(self, why: str, written: str) -> None:
        super().__init__(why)
        self.written = written


class Peer:
    """A peer's process, in another environment if one is given. Its script is `peer_<name>.py`."""

    def __init__(self, name: str, environment: dict[str, str] | None = None) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the `with` that this begins
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / f"peer_{name}.py")],
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

    def ask(self, *request: object) -> None:
        """Send a request; `answer` waits for what comes of it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says why
            self.process.stdin.write(f"{json.dumps(request)}\n".encode())
            self.process.stdin.flush()

    def answer(self, what: str) -> Any:
        """The next line that it says, when it has done `what`."""
        assert self.process.stdout is not None
        poll = select.poll()  # which takes any descriptor
        poll.register(self.process.stdout, select.POLLIN)
        if not poll.poll(1000 * PATIENCE):
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

    def row(self, name: str) -> list[Offer]:
        """Have it get a row ready; returns what it has there."""
        self.ask("row", name)
        return [Offer(*each) for each in self.answer("get ready")]

    def turn(self, name: str, runs: int = 1) -> float:
        """The seconds that one operation takes, measured by the peer over so many runs."""
        self.ask("turn", name, runs)
        return float(self.answer(f"finish a turn of {name}"))


def missing(names: Iterable[str]) -> list[str]:
    """Those of the scripts whose libraries are not installed."""
    return [name for name in names if importlib.util.find_spec(MODULES.get(name, "sys")) is None]
