"""What fusing brings to a worker's program: the same plans step by step and hot, in turns, in processor time.

    python benchmarks/program.py [--rounds 21] [--only chain,step,...]

Processor time of one thread, so that what else runs on the machine counts little: set OPENBLAS_NUM_THREADS=1, or BLAS computes
on threads that are not counted. Programs run on values that somebody holds, so nothing is written in place.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import workloads

import gt
from gt.worker import plan_run
from gt.worker.base.backend import backend
from gt.worker.core import WorkerCore
from gt.worker.device.heap import keep_freed_arrays
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.execution.execution import Execution
from gt.worker.execution.optimize import fused, on_cpu
from gt.worker.program.compiler import Action, Program, compile_plan

Case = tuple[Program, list[Any]]


def chain() -> Callable[[], Any]:
    """512 additions of 16×16."""
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32))

    def run() -> None:
        y = x
        for _ in range(512):
            y = y + x
        y.numpy()

    return run


def elementwise() -> Callable[[], Any]:
    """Eight cheap operations on 4 Mi float32."""
    x, y = (gt.from_numpy(np.random.default_rng(n).standard_normal(4 << 20, dtype=np.float32)) for n in range(2))

    def run() -> None:
        z = (((x * 2.0 + y) * x - y) * 0.5 + x).abs() * y + 1.0
        gt.synchronize()
        del z

    return run


def _training(model: Any, optimizer: Any, x: Any, y: Any, classes: int) -> Callable[[], Any]:
    criterion = gt.nn.CrossEntropyLoss()
    inputs, targets = gt.from_numpy(x), gt.from_numpy(y)

    def run() -> None:
        loss = criterion(model(inputs).reshape(-1, classes), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def step() -> Callable[[], Any]:
    """An AdamW step of 784-256-128-10, batch 128."""
    model = workloads.mlp(gt)
    return _training(model, gt.optim.AdamW(model.parameters()), *workloads.images(), 10)


def transformer() -> Callable[[], Any]:
    """An AdamW step of a transformer with gelu, width 128, 2 layers, 8 sequences of 64 words."""
    layer = gt.nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True, norm_first=True)
    encoder = gt.nn.TransformerEncoder(layer, 2)
    model = gt.nn.Sequential(gt.nn.Embedding(256, 128), encoder, gt.nn.Linear(128, 256))
    words = np.random.default_rng(0).integers(0, 256, (8, 64))
    return _training(model, gt.optim.AdamW(model.parameters()), words, words.reshape(-1), 256)


WORKS = {"chain": chain, "elementwise": elementwise, "step": step, "transformer": transformer}


def recorded(work: Callable[[], Callable[[], Any]]) -> list[Case]:
    """The programs of one repetition, as they are before they are hot, with what is in their slots when they begin."""
    gt.connect("inproc", workers=1)
    run = work()
    for _ in range(4):  # plans are searched, and then stay
        run()
    gt.synchronize()
    found: list[Case] = []
    plain = plan_run.run

    def record(core: WorkerCore, running: Execution, now: float) -> None:
        program = running.program
        found.append((compile_plan(program.plan, program.mesh, program.rank, backend("cpu")), list(running.slots)))
        plain(core, running, now)

    plan_run.run = record
    try:
        run()
        gt.synchronize()
    finally:
        plan_run.run = plain
    return found


def seconds(actions: list[Action], slots: list[Any]) -> float:
    """Processor time of one run."""
    slots = list(slots)
    start = time.thread_time()
    for action in actions:
        action(slots)
    return time.thread_time() - start


def measure(name: str, rounds: int) -> tuple[int, int, float, float, float]:
    """(steps, actions when hot, seconds step by step, seconds hot, seconds of products in them), medians."""
    cases = [(cold, fused(cold, on_cpu(ThreadPool())), slots) for cold, slots in recorded(WORKS[name])]
    times: list[tuple[float, float, float]] = []
    with np.errstate(all="ignore"):
        for _ in range(rounds + 1):
            by_steps = sum(seconds(cold.actions[0], slots) for cold, _, slots in cases)
            hot = sum(seconds(hot.actions[0], slots) for _, hot, slots in cases)
            times.append((by_steps, hot, sum(_products(cold, slots) for cold, _, slots in cases)))
    cold_time, hot_time, products = (statistics.median(column) for column in zip(*times[1:], strict=True))
    count = sum(len(cold.actions[0]) for cold, _, _ in cases), sum(len(hot.actions[0]) for _, hot, _ in cases)
    return (*count, cold_time, hot_time, products)


def _products(program: Program, slots: list[Any]) -> float:
    """What the matrix products of a run take."""
    slots, taken = list(slots), 0.0
    for step in program.blocks[0]:
        start = time.thread_time()
        step.action(slots)
        if step.instruction.op == "matmul":
            taken += time.thread_time() - start
    return taken


def main() -> None:
    """Print a line for each work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default=",".join(WORKS), help="a comma-separated choice of: %(default)s")
    options = parser.parse_args()
    keep_freed_arrays()
    for name in options.only.split(","):
        steps, actions, cold, hot, products = measure(name, options.rounds)
        print(
            f"{name:12} {steps:4} steps {cold * 1e3:8.3f} ms   hot {actions:4} {hot * 1e3:8.3f} ms   "
            f"ratio {hot / cold:.2f}   products {products / hot:4.0%} of it"
        )


if __name__ == "__main__":
    main()
