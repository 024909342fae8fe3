"""Snapshots made by hand, for all that draws them: a busy service of four workers, and others in trouble. No chance in them."""

from __future__ import annotations

from dataclasses import replace
from math import sin
from typing import Any

from gt.monitor.snapshot import (
    LIVE,
    ClientView,
    Hot,
    LogLine,
    Matrix,
    Snapshot,
    Split,
    Status,
    Task,
    TensorView,
    WorkerView,
)
from gt.wire.telemetry import ClientState, Device, Gauges, PlanDescribed, Service, Utilisation, Waiting

MILLI = 1_000_000
SECOND = 1_000 * MILLI
GIB = 1 << 30
NOW = 754 * SECOND
WALL = 1_790_000_000 * SECOND

FAMILIES = {
    "matmul": "matmul",
    "relu": "unary",
    "add": "binary",
    "sum": "reduction",
    "permute": "permute",
    "randn": "random",
}


def task(begin: int, duration: int, kind: str, name: str, *, client: int = 1, plan: int = 7, times: int = 1) -> Task:
    """A slice that began `begin` nanoseconds before now."""
    return Task(
        NOW - begin, duration, kind, name, FAMILIES.get(name, ""), times, client, plan, 4100, "batch/hidden",
        "/home/ada/train.py:31", 1 << 20,
    )  # fmt: skip


def stream(worker: int) -> tuple[Task, ...]:
    """Five seconds of steps: ops one after another, an all-reduce at the end of each."""
    made: list[Task] = []
    for step in range(10):
        begin = (5000 - 500 * step - 13 * worker) * MILLI
        made.append(task(begin, 470 * MILLI, "plan", "batch"))
        for name, length in (("matmul", 150), ("add", 30), ("relu", 40), ("matmul", 90), ("sum", 40)):
            made.append(task(begin, length * MILLI, "op", name))
            begin -= length * MILLI
        if worker < 3:
            made.append(task(begin, 80 * MILLI, "collective", "all-reduce"))
    return tuple(made)


def waiting(worker: int, peers: list[int], since: int = 40 * MILLI) -> Waiting:
    """A worker waits for pieces."""
    place = ("batch/hidden", "train.py:31")
    return Waiting(NOW, worker, NOW - since, "pieces", 1, 7, 4100, "all-reduce", peers, 3, 3 << 20, *place)


def worker(number: int, split: Split, state: str = "running", wait: Waiting | None = None) -> WorkerView:
    """A worker on one of two hosts, up for as long as the service."""
    history = tuple(
        Split(compute=(0.5 + 0.45 * sin(second / 4 + number)) * (0.4 + split.compute / 2)) for second in range(120)
    )
    return WorkerView(
        number=number, host=("alpha", "beta")[number // 2 % 2], pid=4200 + number, device="cpu", kind="cpu", cores=8,
        joined=SECOND, state=state, split=split, history=history, queue=3 - number if number < 3 else 0,
        gauges=Gauges(NOW, number, 3, 0, 96, (600 + 37 * number) << 20, (900 + 41 * number) << 20, 16 * GIB, 0),
        counters=Utilisation(NOW, number, 500 * SECOND, 60 * SECOND, 20 * SECOND, 40 * SECOND, 130 * SECOND, 4100, 98_400, 7),
        bytes_per_s=float((11 - 3 * number) << 20), age=150 * MILLI, recent=stream(number), waiting=wait,
    )  # fmt: skip


def client(number: int, program: str, signal: str, runs: float, wait: Waiting | None = None) -> ClientView:
    """A client with some tensors."""
    state = ClientState(
        NOW, -1, number, 96 // number, (820 << 20) // number, 2 * (number - 1), 3 - number, 4096, 7, 4080, 1, signal,
        f"/home/ada/{program}:{30 + number}",
        12, NOW - 1_400 * MILLI, 8_100_000,
    )  # fmt: skip
    return ClientView(
        number, "alpha", 5100 + number, program, SECOND, state, runs, wait, (), (number,), 1_400 * MILLI, "user 1000"
    )


def line(seconds: float, level: str, source: str, what: str, text: str, times: int = 1) -> LogLine:
    """Something that happened so many seconds ago."""
    site = "train.py:31" if level == "error" else ""
    return LogLine(NOW - int(seconds * SECOND), level, source, what, text, site, times)


CREDIT = Waiting(NOW, -1, NOW - 4 * MILLI, "credit", 2, -1, -1, "", [0, 1], 0, 0, "", "")
SPLITS = (
    Split(0.71, 0.12, 0.04, 0.08, 0.05),
    Split(0.66, 0.14, 0.05, 0.13, 0.02),
    Split(0.58, 0.09, 0.03, 0.21, 0.09),
    Split(0.07, 0.0, 0.02, 0.0, 0.91),
)
BUSY = Snapshot(
    status=Status(LIVE, "tcp://127.0.0.1:7000", 0.12, 0, "", ("cancel", "control sessions", "drain", "reload")),
    now=NOW, wall=WALL,
    service=Service(
        NOW, -1, WALL, 0, "tcp://127.0.0.1:7000", "0.1.0", 4, 2, 1, 41_200, 988_800, 12, 41_100, 2, 0, 0, 820, 64, 0
    ),
    uptime=754.0, runs_per_s=61.0, ops_per_s=12_400.0, bytes_per_s=float(24 << 20), hit_rate=0.998,
    workers=(
        worker(0, SPLITS[0]), worker(1, SPLITS[1], "waiting", waiting(1, [2])), worker(2, SPLITS[2]),
        worker(3, SPLITS[3], "idle"),
    ),
    clients=(
        client(1, "train.py", "batch/hidden", 52.0),
        client(2, "evaluate.py", "attention", 9.0, CREDIT),
    ),
    matrix=Matrix(
        (0, 1, 2, 3),
        ((0, 812 << 20, 96 << 20, 0), (800 << 20, 0, 90 << 20, 0), (40 << 20, 38 << 20, 0, 0), (0, 0, 0, 0)),
        ((0.0, 9e6, 1.1e6, 0.0), (8.8e6, 0.0, 1e6, 0.0), (4e5, 4e5, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    ),
    hot_ops=(
        Hot("matmul", "matmul", 9_000, 41 * SECOND, 0.61, "train.py:31"),
        Hot("relu", "unary", 4_000, 9 * SECOND, 0.13, "train.py:31"),
        Hot("sum", "reduction", 4_000, 8 * SECOND, 0.12, "train.py:34"),
        Hot("add+mul+sqrt+div", "binary", 900, 6 * SECOND, 0.09, "optim.py:88"),
        Hot("permute", "permute", 8_000, 3 * SECOND, 0.05, "train.py:30"),
    ),
    hot_signals=(
        Hot("batch/hidden", "", 20_000, 44 * SECOND, 0.66, "train.py:31"),
        Hot("batch", "", 5_000, 17 * SECOND, 0.25, "train.py:34"),
        Hot("update", "", 900, 6 * SECOND, 0.09, "optim.py:88"),
    ),
    tensors=tuple(
        TensorView(
            1 + number % 2, 40 + number, f"f32[{4096 >> number},1024]", ("S0", "R", "S1")[number % 3], 16 << 20 >> number,
            ("batch", "batch/hidden", "attention")[number % 3], f"/home/ada/train.py:{12 + number}",
            number * 31 * SECOND if number else -1,
        )
        for number in range(9)
    ),
    log=(
        line(753, "info", "dispatcher", "joined", "worker 3 on beta"),
        line(60, "info", "client 1", "plan", "plan 7: new segment"),
        line(31, "info", "dispatcher", "searched", "batch/hidden: 14 candidates, tensor_parallel is cheapest"),
        line(12, "warning", "client 2", "cache", "a segment never repeats: train.py:31", 6),
        line(3, "error", "client 2", "ShapeError", "matmul: (4, 3) @ (4, 3): inner sizes 3 and 4 differ"),
    ),
    waiting=(
        waiting(1, [2]), CREDIT,
    ),
    misses={"plan: new": 12, "plan: placements": 2, "definition: ": 14},
    plans={
        7: PlanDescribed(NOW, -1, 7, 1, 3, [0, 1, 2, 3], "new", 24, ["batch", "batch/hidden"], ["/home/ada/train.py:31"],
                         [["matmul", 9], ["add", 5], ["relu", 2]], [["all-reduce", 3 << 20, "batch", "train.py:31"]]),
        9: PlanDescribed(NOW, -1, 9, 2, 4, [0, 1], "placements", 3, ["attention"], ["/home/ada/evaluate.py:9"], [["sum", 1]], []),
    },
)  # fmt: skip
"""Four workers on two hosts, two clients, one worker waiting for another."""

QUIET = replace(
    BUSY, workers=(), clients=(), matrix=Matrix(), hot_ops=(), hot_signals=(), tensors=(), log=(), waiting=(),
    misses={}, plans={}, ops_per_s=0.0, runs_per_s=0.0, bytes_per_s=0.0, hit_rate=None,
)  # fmt: skip
"""A dispatcher alone."""

LOST = replace(
    BUSY,
    workers=(
        replace(BUSY.workers[0], state="silent", age=7 * SECOND), replace(BUSY.workers[1], state="lost", recent=()),
        *BUSY.workers[2:],
    ),
)  # fmt: skip
"""One worker lost, one silent."""


def recovering(client: ClientView, **told: Any) -> ClientView:
    """A client whose session went back, with another number."""
    number = 10 + client.number
    state = client.state._replace(client=number, **told) if client.state else None
    return replace(client, number=number, numbers=(client.number, number), state=state)


RECOVERING = replace(
    LOST, service=BUSY.service._replace(recoveries=3) if BUSY.service else None,
    clients=(
        recovering(BUSY.clients[0], recoveries=1, recovery_duration=800 * MILLI, phase="restoring", restored=3, members=4),
        recovering(BUSY.clients[1], recoveries=2, recovery_duration=800 * MILLI),
    ),
)  # fmt: skip
"""A worker is lost: one session recovers, the other has recovered."""

GONE = replace(BUSY, status=Status("reconnecting", "tcp://127.0.0.1:7000", 12.0, 0, "no answer", ()))
"""The dispatcher is away."""

UNKNOWN = replace(QUIET, status=Status("connecting", "tcp://127.0.0.1:7000"), service=None, uptime=0.0, wall=0)
"""Nothing has come yet."""

GPUS = replace(
    BUSY,
    workers=tuple(
        replace(each, device=f"cuda:{each.number}", kind="cuda", gpu=gpu)
        for each, gpu in zip(
            BUSY.workers,
            (
                Device(NOW, 0, 71, 312_400, 700_000, 93, 9 << 30, 80 << 30, 0, []),
                Device(NOW, 1, 92, 698_000, 700_000, 99, 9 << 30, 80 << 30, 0, ["power cap", "hardware temperature"]),
                Device(NOW, 2, 55, -1, -1, -1, 9 << 30, 80 << 30, -1, []),
                None,
            ),
            strict=True,
        )
    ),
)
"""The same on GPUs, of which one is too hot, one tells little and one nothing."""


def many(workers: int) -> Snapshot:
    """A large service."""
    views = tuple(
        replace(worker(number % 4, SPLITS[number % 4]), number=number, host=f"node{number // 8:03d}", recent=())
        for number in range(workers)
    )
    numbers = tuple(range(workers))
    rows = tuple(
        tuple((row * 7 + column * 13) % 97 * 1000 if row != column else 0 for column in numbers) for row in numbers
    )
    return replace(BUSY, workers=views, matrix=Matrix(numbers, rows, tuple(tuple(map(float, row)) for row in rows)))
