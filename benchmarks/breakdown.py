"""Where the processor time of a step goes: client, dispatcher, wire, worker, kernels.

    python benchmarks/breakdown.py [--rounds 7] [--only chain,step,...] [--json FILE]

Each work runs in two sessions, in turns. In the first, real processes: what each of them takes, and the parts of the client. In
the second, all three cores in one thread, whose messages go through their bytes: what the cores take, and the worker's kernels.
What a process takes beyond its core is messages, sockets and waking up. Processor time of all threads, medians of rounds; BLAS
has one thread, and so has the worker unless GT_THREADS says otherwise: several wait for one another, and waiting counts. Timers
around the parts cost about a microsecond each, and each part is without those inside it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import workloads

import gt
from gt.client.segment.builder import Builder
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.client.session.socket_link import SocketLink
from gt.client.tensor import backward_pass
from gt.dispatcher.core import DispatcherCore as Dispatcher
from gt.optim import Optimizer
from gt.service import in_process
from gt.wire.messages import codec
from gt.worker import plan_run
from gt.worker.core import WorkerCore as Worker

PARTS: tuple[tuple[Any, str, str], ...] = (
    (Builder, "_send", "flush"),
    (Builder, "run", "flush"),
    (backward_pass, "_walk", "gradients"),
    (Optimizer, "step", "update"),
    (Session, "wait_for", "wait"),
    (SocketLink, "send", "messages"),
    (SocketLink, "receive", "messages"),
    (codec, "encode", "messages"),
    (codec, "decode", "messages"),
    (Dispatcher, "handle", "dispatcher"),
    (Worker, "handle", "worker"),
    (plan_run, "run", "kernels"),
    (plan_run, "_finish", "worker"),
)
"""What is timed, and as what. All else is `emission`: the program's own lines, and what they call."""
CORES = ("dispatcher", "worker", "kernels")
CLIENT = ("emission", "gradients", "update", "flush", "wait")


class Parts:
    """Processor time by part, each without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.inside: list[float] = []
        """For each timer that runs, what the timers inside it took."""

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, whose time counts."""

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            self.inside.append(0.0)
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                took = time.process_time() - start
                self.seconds[part] += took - self.inside.pop()
                if self.inside:
                    self.inside[-1] += took

        return run


@contextmanager
def timers() -> Iterator[Parts]:
    """While it lasts the parts are timed."""
    parts = Parts()
    plain = [getattr(where, name) for where, name, _ in PARTS]
    for (where, name, part), function in zip(PARTS, plain, strict=True):
        setattr(where, name, parts.timed(function, part))
    try:
        yield parts
    finally:
        for (where, name, _), function in zip(PARTS, plain, strict=True):
            setattr(where, name, function)


# what is measured


def chain(compiled: bool, count: int) -> Callable[[], object]:
    """5,000 additions of 16×16, and one fetch."""
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32))
    one = workloads.chain(x, gt.compile) if compiled else workloads.chain(x)

    def run() -> None:
        for _ in range(count):
            one()

    return run


def _training(model: Any, x: Any, y: Any, count: int, compiled: bool) -> Callable[[], object]:
    """So many SGD steps with cross-entropy; the last loss is fetched."""
    wrap = gt.compile if compiled else workloads.unchanged
    return workloads.training(gt, model, gt.from_numpy(x), gt.from_numpy(y), count, wrap)


def step(compiled: bool, count: int) -> Callable[[], object]:
    """SGD steps of 784-256-128-10 at batch 128."""
    return _training(workloads.mlp(gt), *workloads.images(), count, compiled)


def transformer(compiled: bool, count: int) -> Callable[[], object]:
    """SGD steps of a transformer, width 128, 4 heads, 2 layers, 8 sequences of 64 words."""
    return _training(workloads.transformer(gt), *workloads.words(), count, compiled)


WORKS: dict[str, tuple[Callable[[bool, int], Callable[[], object]], bool, int]] = {
    "chain": (chain, False, 1),
    "chain, compiled": (chain, True, 1),
    "step": (step, False, 20),
    "step, compiled": (step, True, 20),
    "transformer": (transformer, False, 5),
}
"""What is measured, whether compiled, and how many steps one run of it has."""


# measuring


def _taken(pid: int) -> float:
    """Seconds of processor time that all threads of a process have had; those of threads that ended are lost."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9


def _session(real: bool) -> Session:
    if real:
        return gt.init(workers=1)
    plain = in_process.Fabric
    in_process.Fabric = functools.partial(plain, codec=True)  # type: ignore[assignment, misc]
    try:
        return gt.connect("inproc", workers=1)
    finally:
        in_process.Fabric = plain  # type: ignore[misc]


def measure(name: str, rounds: int, real: bool = True) -> dict[str, float]:
    """Seconds a step: of each process, `elapsed`, and each part, those of the session in one thread as `core …`."""
    make, compiled, count = WORKS[name]
    works: list[tuple[Session, Callable[[], object]]] = []
    for kind in (True, False) if real else (False,):
        sessions.swap(None)
        works.append((_session(kind), make(compiled, count)))
        for _ in range(7):  # plans are searched, programs become hot
            works[-1][1]()
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for session, run in works:
            sessions.swap(session)
            figures = _one(session, run)
            for part, seconds in figures.items():
                found.setdefault(part, []).append(seconds / count)
    for session, _ in works:
        sessions.swap(session)
        gt.disconnect()
    return {part: statistics.median(values) for part, values in found.items()}


def _one(session: Session, run: Callable[[], object]) -> dict[str, float]:
    local = getattr(session.link, "local", None)
    children = {} if local is None else {name.split()[-1]: child.pid for name, child in local.children}
    gt.synchronize()
    before = {name: _taken(pid) for name, pid in children.items()}
    with timers() as parts:
        elapsed, taken = time.perf_counter(), time.process_time()
        run()
        taken, elapsed = time.process_time() - taken, time.perf_counter() - elapsed
    gt.synchronize()
    parts.seconds["emission"] = taken - sum(parts.seconds.values())
    if local is None:
        return {f"core {part}": parts.seconds[part] for part in (*CLIENT, "messages", *CORES)}
    processes = {
        "dispatcher" if name == "dispatcher" else "worker": _taken(children[name]) - before[name] for name in before
    }
    mine = {f"client {part}": parts.seconds[part] for part in (*CLIENT, "messages")}
    return {"elapsed": elapsed, "client": taken, **processes, **mine}


# showing


def lines(name: str, found: dict[str, float]) -> list[str]:
    """What was measured of one work, and what it says about the next bottleneck."""
    unit, scale = ("ms", 1e3) if found["elapsed"] >= 1e-3 else ("µs", 1e6)

    def show(parts: dict[str, float]) -> str:
        return ", ".join(f"{part} {seconds * scale:.2f}" for part, seconds in parts.items())

    client = {part: found[f"client {part}"] for part in (*CLIENT, "messages")}
    worker = {"kernels": found["core kernels"], "around them": found["core worker"]}
    worker["messages, sockets, waking"] = max(0.0, found["worker"] - sum(worker.values()))
    dispatcher = {"core": found["core dispatcher"]}
    dispatcher["messages, sockets, waking"] = max(0.0, found["dispatcher"] - dispatcher["core"])
    processes = {"client": client, "dispatcher": dispatcher, "worker": worker}
    busiest = max(processes, key=found.__getitem__)
    part = max(processes[busiest], key=processes[busiest].__getitem__)
    return [
        f"{name}: {found['elapsed'] * scale:.2f} {unit} a step",
        *(f"  {who:10} {found[who] * scale:8.2f}   {show(parts)}" for who, parts in processes.items()),
        f"  the wire's own: {found['core messages'] * scale:.2f} to encode and decode all messages",
        f"  next bottleneck: {part} in the {busiest}, {processes[busiest][part] / found['elapsed']:.0%} of a step",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=WORKS, help="one of them; may be given again")
    parser.add_argument("--json", help="also write the figures here")
    options = parser.parse_args()
    if "OPENBLAS_NUM_THREADS" not in os.environ:  # it is read when NumPy is imported, here and in the worker
        os.environ |= {"OPENBLAS_NUM_THREADS": "1", "GT_THREADS": os.environ.get("GT_THREADS", "1")}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    found = {name: measure(name, options.rounds) for name in options.only or WORKS}
    print("processor time a step, of all threads of a process")
    for name, figures in found.items():
        print("\n".join(lines(name, figures)))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
