"""How fast this worker is: measured when it starts, unless one like it was today, and told to the dispatcher in its hello.

Two figures are enough for the cost model (`dispatcher/cost.py`, which rounds them): the flops/s of a matrix product and
the bytes/s that element-wise work reads and writes. The best of some tries within a fixed time counts, because whatever
else the machine does only ever makes a try slower. On a CPU it is this thread's own time: matrices are so small that BLAS
keeps to one thread (several of them wait for each other, and on a busy machine measure 100 times too little), and their
speed counts once for each thread that the worker may use.

What was measured is kept in a file (in `GT_CACHE`, else the user's folder for caches) by all that it depends on, for a day: so
workers that start one after the other say the same, also where one starts while the others compute. Nothing here may decide
anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gt.errors import SessionError
from gt.host import environment_number, memory_limit

from .backend import Backend

FRESH: Final = 86_400.0
"""Seconds for which figures are kept."""
BUDGET: Final = 0.02
"""Seconds for each of the two figures."""
MATRICES: Final = {"cpu": (8, 60), "cuda": (1, 2048)}
"""How many matrices are multiplied and their rows and columns: enough for full speed, or nearly, and for many tries."""
ELEMENTS: Final = {"cpu": 1 << 20, "cuda": 1 << 25}
"""float32 elements that are added: more than caches hold."""


def facts(backend: Backend, now: float) -> dict[str, Any]:
    """Facts for a hello, as `measure` has them; `now` is the time of day in seconds. What is kept may be missing or anything."""
    more = _model(backend)
    about = [backend.kind, more.get("model") or _processor(), threads(), backend.xp.__name__, backend.xp.__version__]
    path = _folder() / f"speed-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    try:
        kept = json.loads(path.read_text("utf-8"))
        speed = [float(figure) for figure in kept["speed"]]
        if kept["of"] == about and len(speed) == 2 and min(speed) > 0 and 0 <= now - kept["at"] < FRESH:
            return {"speed": speed, **more}
    except (OSError, ValueError, TypeError, KeyError):
        pass  # nothing that can be used: it is measured
    found = measure(backend)
    with contextlib.suppress(OSError):  # such as a home that cannot be written to
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"of": about, "at": now, "speed": found["speed"]}), "utf-8")
        fresh.replace(path)
    return found


def _folder() -> Path:
    said = os.environ.get("GT_CACHE")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 — `Path.home` may raise
    return Path(said) if said else Path(caches) / "gt"


def _processor() -> str:
    """Which host and processor this is."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{socket.gethostname()}: {model}"


def measure(backend: Backend) -> dict[str, Any]:
    """Facts for a hello: `speed` is [flops/s, bytes/s]; a GPU's `model` and `memory` in bytes, or else the host's."""
    xp = backend.xp
    (count, side), elements = MATRICES[backend.kind], ELEMENTS[backend.kind]
    clock, share = (time.thread_time, threads()) if backend.kind == "cpu" else (time.perf_counter, 1)
    # Of a GPU no memory of its pool, whose limit is for tensors and may be less than this takes.
    with contextlib.nullcontext() if backend.kind == "cpu" else xp.cuda.using_allocator(None):
        matrix = xp.full((count, side, side), 0.5, xp.float32)
        product = xp.empty_like(matrix)
        vector = xp.full(elements, 0.5, xp.float32)
        total = xp.empty_like(vector)
        matmul = best(lambda: xp.matmul(matrix, matrix, out=product), backend.synchronize, clock)
        add = best(lambda: xp.add(vector, vector, out=total), backend.synchronize, clock)
    return {"speed": [2.0 * share * count * side**3 / matmul, 2.0 * vector.nbytes / add], **_model(backend)}


def threads() -> int:
    """In how many threads the worker may compute: what the environment says (GT_THREADS), but no more than it has cores.

    Raises `SessionError` where it says anything but a whole number from 1.
    """
    cores = len(os.sched_getaffinity(0))
    said = environment_number("GT_THREADS", cores)
    if said < 1 or said != int(said):
        raise SessionError(
            f"GT_THREADS={said:g} is no number of threads: unset it, or say for example GT_THREADS={cores}"
        )
    return min(int(said), cores)


def best(run: Callable[[], Any], synchronize: Callable[[], None], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of at least two runs within the budget, after one that does not count."""
    run()
    synchronize()
    end = clock() + BUDGET
    fastest = float("inf")
    tries = 0
    while tries < 2 or clock() < end:
        start = clock()
        run()
        synchronize()
        fastest = min(fastest, clock() - start)
        tries += 1
    return max(fastest, 1e-9)


def _model(backend: Backend) -> dict[str, Any]:
    if backend.kind != "cuda":
        return {"host_memory": memory_limit()}
    runtime = backend.xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {"model": properties["name"].decode(), "memory": int(properties["totalGlobalMem"])}
