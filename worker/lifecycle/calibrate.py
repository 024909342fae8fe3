"""Calibration: how fast this worker is, measured when it starts, unless it was measured within a day, and reported when it joins.

Two figures are enough for the cost model (`dispatcher/cost/cost_model.py`, which rounds them): the flops/s of a matrix
product, and the bytes/s that element-wise work reads and writes. The best of several tries within a fixed time counts,
because disturbances only make a try slower. On a CPU this thread's own processor time is measured: the matrices are so small
that BLAS uses one thread (several would wait for each other, and on a busy machine measure 100 times too little), and their
speed is multiplied by the number of threads that the worker may use.

Results are kept for a day in a file (in `GT_CACHE`, else the user's cache folder), by everything that they depend on. So
workers that start one after the other report the same figures, even if one starts while the others compute. Nothing is decided
here.
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

from gt.daemon.host import environment_number, memory_limit
from gt.errors import SessionError
from gt.worker.base.backend import Backend

MAX_AGE_SECONDS: Final = 86_400.0
"""The seconds for which figures are kept."""
BUDGET_SECONDS: Final = 0.02
"""The seconds spent on each of the two figures."""
MATRIX_SIZES: Final = {"cpu": (8, 60), "torch:cpu": (8, 60), "cuda": (1, 2048)}
"""The number of matrices multiplied, and their size: enough for nearly full speed, and for many tries. What is not named
is as 'cuda'."""
VECTOR_ELEMENTS: Final = {"cpu": 1 << 20, "torch:cpu": 1 << 20, "cuda": 1 << 25}
"""The number of float32 elements added: more than caches hold."""


def facts(backend: Backend, now: float) -> dict[str, Any]:
    """The facts of `measure`: those in the file if they are fresh, else measured and kept. `now` is the time of day in
    seconds. The file may be missing or invalid."""
    more = _model(backend)
    about = [backend.kind, more.get("model") or _processor(), threads(), backend.xp.__name__, backend.xp.__version__]
    path = _folder() / f"speed-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    try:
        kept = json.loads(path.read_text("utf-8"))
        speed = [float(figure) for figure in kept["speed"]]
        if kept["of"] == about and len(speed) == 2 and min(speed) > 0 and 0 <= now - kept["at"] < MAX_AGE_SECONDS:
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
    """Identifies the host and its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{socket.gethostname()}: {model}"


def measure(backend: Backend) -> dict[str, Any]:
    """What a worker reports when it joins: `speed` as [flops/s, bytes/s], a GPU's `model`, and the `memory` of the GPU or host
    in bytes."""
    xp, on_cpu = backend.xp, backend.kind in ("cpu", "torch:cpu")
    sizes = backend.kind if on_cpu else "cuda"
    (count, side), elements = MATRIX_SIZES[sizes], VECTOR_ELEMENTS[sizes]
    clock, share = (time.thread_time, threads()) if on_cpu else (time.perf_counter, 1)
    with _alone(backend):
        matrix = xp.full((count, side, side), 0.5, xp.float32)
        product = xp.empty_like(matrix)
        vector = xp.full(elements, 0.5, xp.float32)
        total = xp.empty_like(vector)
        matmul = fastest_run(lambda: xp.matmul(matrix, matrix, out=product), backend.synchronize, clock)
        add = fastest_run(lambda: xp.add(vector, vector, out=total), backend.synchronize, clock)
    return {"speed": [2.0 * share * count * side**3 / matmul, 2.0 * vector.nbytes / add], **_model(backend)}


def threads() -> int:
    """How many threads the worker may use: GT_THREADS, but at most the number of its cores.

    Raises `SessionError` if GT_THREADS is not a whole number from 1.
    """
    cores = len(os.sched_getaffinity(0))
    said = environment_number("GT_THREADS", cores)
    if said < 1 or said != int(said):
        raise SessionError(
            f"GT_THREADS={said:g} is no number of threads: unset it, or say for example GT_THREADS={cores}"
        )
    return min(int(said), cores)


def fastest_run(run: Callable[[], Any], synchronize: Callable[[], None], clock: Callable[[], float]) -> float:
    """The seconds of the fastest of at least two runs within the budget, after one warm-up run."""
    run()
    synchronize()
    end = clock() + BUDGET_SECONDS
    fastest = float("inf")
    tries = 0
    while tries < 2 or clock() < end:
        start = clock()
        run()
        synchronize()
        fastest = min(fastest, clock() - start)
        tries += 1
    return max(fastest, 1e-9)


def _alone(backend: Backend) -> contextlib.AbstractContextManager[object]:
    """While this lasts, this thread alone computes; of a CUDA device no memory of its pool is used, whose limit is for tensors
    and may be less than this takes."""
    if backend.torch is not None:
        return backend.torch.one_thread()
    context: contextlib.AbstractContextManager[object] = (
        contextlib.nullcontext() if backend.kind == "cpu" else backend.xp.cuda.using_allocator(None)
    )
    return context


def _model(backend: Backend) -> dict[str, Any]:
    if backend.torch is not None:
        return backend.torch.facts or {"host_memory": memory_limit()}
    if backend.kind != "cuda":
        return {"host_memory": memory_limit()}
    runtime = backend.xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {"model": properties["name"].decode(), "memory": int(properties["totalGlobalMem"])}
