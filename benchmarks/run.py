"""GT beside its peers, in one run, as ratios: `make bench`.

    python benchmarks/run.py [--rounds 7] [--only chain,step,...] [--json FILE]

Every figure is the median of several rounds in which GT and its peers take turns, so that a machine whose speed drifts
drifts for all of them. NumPy and PyTorch do so in this process; JAX, Dask and Ray, each in a process of its own (`peers.py`),
after that, one by one, with turns of GT's own: their ratios are to these. Nothing here passes or fails: goals are in the
table beside what was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import peers
import workloads
import zmq

import gt

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Rows = list[tuple[str, str, str, str]]


def threads() -> int:
    """What a single local worker's BLAS is given: all cores of this process."""
    return len(os.sched_getaffinity(0))


def medians(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taking turns; one round of warm-up is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios(what: str, goal: str, seconds: dict[str, float], peer: str, scale: float, unit: str) -> Rows:
    """A row for each contender: its time, and GT's ratio to it."""
    rows: Rows = []
    goal, _, compiled = goal.partition(", compiled ")
    for name, value in seconds.items():
        ratio = "" if name == "GT" else f"GT / {name} = {seconds['GT'] / value:.2f}"
        if name == "GT compiled":
            beside = f"{name} / {peer} = {value / seconds[peer]:.2f}  (goal {compiled})" if peer in seconds else ""
            rows.append(("", name, f"{value * scale:.2f} {unit}", beside))
            continue
        if name == peer:
            ratio += f"  (goal {goal})"
        rows.append((what if name == "GT" else "", name, f"{value * scale:.2f} {unit}", ratio))
    return rows


def others(row: str, ours: dict[str, tuple[Callable[[], Any], int]], show: Callable[[float], str]) -> dict[str, Rows]:
    """Rows for JAX, Dask and Ray, those of them that are installed and have a part in this: time, and GT's ratio in turns.

    By GT's way that they stand beside; under "" those that failed.
    """
    rows: dict[str, Rows] = {way: [] for way in (*ours, "")}
    for name, way, theirs, mine in peers.beside(row, ours, peers.TURNS):
        label = way if way.startswith("GT") else "GT"
        said = ("", name, show(theirs), f"{label} / {name} = {mine / theirs:.3g}") if way else ("", name, "failed", "")
        rows[way].append(said)
    return rows


def flattened(rows: dict[str, Rows]) -> Rows:
    """All of them."""
    return list(itertools.chain.from_iterable(rows.values()))


def chain(rounds: int) -> Rows:
    """5,000 additions of 16×16 float32 tensors, one depending on the other, and one fetch at the end."""
    host = np.full((16, 16), 0.5, np.float32)
    length = workloads.LENGTH
    x = gt.from_numpy(host)
    with_gt, with_compiled = workloads.chain(x), workloads.chain(x, gt.compile)

    def with_numpy() -> None:
        workloads.additions(host, host)

    for _ in range(2):  # the traced calls
        with_compiled()
    contenders: dict[str, Callable[[], Any]] = {"GT": with_gt, "GT compiled": with_compiled, "NumPy": with_numpy}
    if torch is not None:
        contenders["PyTorch"] = workloads.chain(torch.from_numpy(host))
    seconds = medians(contenders, rounds)
    ours = {"GT": (with_gt, length), "GT compiled": (with_compiled, length)}
    return [
        *ratios("chain of 5,000 adds, 16×16", "≤ 0.8, compiled ≤ 0.3", seconds, "PyTorch", 1e6 / length, "µs an op"),
        *flattened(others("chain", ours, lambda s: f"{s * 1e6:.2f} µs an op")),
    ]


def step(rounds: int) -> Rows:
    """One SGD step of a 784-256-128-10 network with cross-entropy at batch 128; of 50 steps the last loss is fetched."""
    x, y = workloads.images()
    sizes = (784, 256, 128, 10)
    count = 50

    model = workloads.mlp(gt)
    gx, gy = gt.from_numpy(x), gt.from_numpy(y)
    with_gt = workloads.training(gt, model, gx, gy, count)
    with_compiled = workloads.training(gt, model, gx, gy, count, gt.compile)

    generator = np.random.default_rng(0)
    weights = [generator.standard_normal((a, b), dtype=np.float32) / np.sqrt(a) for a, b in pairwise(sizes)]
    biases = [np.zeros(b, np.float32) for b in sizes[1:]]

    def with_numpy() -> None:
        for _ in range(count):
            inputs = [x]
            for w, b in zip(weights, biases, strict=True):
                inputs.append(np.maximum(inputs[-1] @ w + b, 0) if w is not weights[-1] else inputs[-1] @ w + b)
            logits = inputs.pop()
            e = np.exp(logits - logits.max(1, keepdims=True))
            g = e / e.sum(1, keepdims=True)
            g[np.arange(128), y] -= 1
            g /= 128
            for i in reversed(range(3)):
                w, b, a = weights[i], biases[i], inputs[i]
                back = g @ w.T if i else None
                w -= 0.01 * (a.T @ g)
                b -= 0.01 * g.sum(0)
                if back is not None:
                    g = back * (a > 0)

    contenders: dict[str, Callable[[], Any]] = {
        "GT": with_gt,
        "GT compiled": with_compiled,
        "NumPy by hand": with_numpy,
    }
    if torch is not None:
        torch.set_num_threads(threads())
        theirs = torch.from_numpy(x), torch.from_numpy(y)
        contenders["PyTorch"] = workloads.training(torch, workloads.mlp(torch), *theirs, count)
    seconds = medians(contenders, rounds)
    ours = {"GT": (with_gt, count), "GT compiled": (with_compiled, count)}
    return [
        *ratios("training step, 784-256-128-10", "≤ 1, compiled ≤ 0.8", seconds, "PyTorch", 1e3 / count, "ms"),
        *flattened(others("step", ours, lambda s: f"{s * 1e3:.2f} ms")),
    ]


def transformer(rounds: int) -> Rows:
    """One SGD step of a small transformer, 8 sequences of 64 words, cross-entropy; of 10 steps the last loss is fetched."""
    count = 10

    def training(lib: Any, model: Any) -> Callable[[], float]:
        x, y = map(lib.from_numpy, workloads.words())
        return workloads.training(lib, model, x, y, count)

    ours = workloads.transformer(gt)
    contenders: dict[str, Callable[[], Any]] = {}
    if torch is not None:
        torch.set_num_threads(threads())
        theirs = workloads.transformer(torch)
        ours.load_state_dict(theirs.state_dict())
        contenders["PyTorch"] = training(torch, theirs)
    contenders = {"GT": training(gt, ours), **contenders}
    losses = [run() for run in contenders.values()]
    assert np.allclose(losses, losses[0], rtol=1e-3), f"the same network does not learn the same: {losses}"
    seconds = medians(contenders, rounds)
    return ratios("training step, small transformer", "≤ 1", seconds, "PyTorch", 1e3 / count, "ms")


def elementwise(rounds: int) -> Rows:
    """Eight element-wise operations on 4,194,304 float32, one after the other; PyTorch and NumPy store each result."""
    generator = np.random.default_rng(0)
    hosts = [generator.standard_normal(4 << 20, dtype=np.float32) for _ in range(2)]

    def chain_of(x: Any, y: Any, tanh: Callable[[Any], Any]) -> Any:
        return tanh(((x * 2.0 + y) * x - y) * 0.5 + x) * y

    def with_numpy() -> None:
        chain_of(*hosts, np.tanh)

    x, y = map(gt.from_numpy, hosts)

    def with_gt() -> None:
        z = chain_of(x, y, gt.tanh)
        gt.synchronize()
        del z

    contenders: dict[str, Callable[[], Any]] = {"GT": with_gt, "NumPy": with_numpy}
    if torch is not None:
        torch.set_num_threads(threads())
        a, b = map(torch.from_numpy, hosts)
        contenders["PyTorch"] = lambda: chain_of(a, b, torch.tanh)
    what = "8 element-wise operations, 4 Mi float32"
    return ratios(what, "≤ 1", medians(contenders, rounds), "PyTorch", 1e3, "ms")


def bulk(rounds: int) -> Rows:
    """256 MiB put on the worker, and fetched, again and again, beside one copy of them in memory that is used again.

    What was put lies in the client's shared memory, what was computed in the worker's own: both are fetched.
    """
    host = np.random.default_rng(0).standard_normal(64 << 20, dtype=np.float32)
    copy = np.empty_like(host)
    there = gt.from_numpy(host)
    computed = -there
    held: dict[str, Any] = {}

    put = workloads.put(host)

    def fetch() -> None:
        held["fetched"] = computed.numpy()

    def fetch_put() -> None:
        held["put and fetched"] = there.numpy()

    contenders = {"put": put, "fetch": fetch, "fetch of a put": fetch_put, "memcpy": lambda: np.copyto(copy, host)}
    seconds = medians(contenders, rounds)
    assert np.array_equal(held["fetched"], -host)
    assert np.array_equal(held["put and fetched"], host)
    held.clear()

    def speed(taken: float) -> str:
        return f"{host.nbytes / taken / 1e9:.2f} GB/s"

    theirs = others("bulk", {"put": (put, 1), "fetch": (fetch, 1)}, speed)
    rows: Rows = []
    whats = {"put": "put of 256 MiB", "fetch": "fetch of 256 MiB", "fetch of a put": "fetch of 256 MiB that were put"}
    for name, what in whats.items():
        of_memcpy = f"of memcpy = {seconds['memcpy'] / seconds[name]:.2f}  (goal ≥ 0.8)"
        rows += [(what, "GT", speed(seconds[name]), of_memcpy), *theirs.get(name, [])]
    return [*rows, *theirs[""], ("", "memcpy", speed(seconds["memcpy"]), "")]


def loading(rounds: int) -> Rows:
    """SGD steps of 784-256-128-10 at batch 512, each with a batch from a source that answers after 10 ms, as a disk in a network
    may, asked one after the other, and ahead by a thread."""
    count, answer = 12, 0.01
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((512, 784), dtype=np.float32), generator.integers(0, 10, 512)
    model = workloads.mlp(gt)
    optimizer, criterion = gt.optim.SGD(model.parameters(), lr=0.01), gt.nn.CrossEntropyLoss()

    def batches() -> Iterator[tuple[Any, Any]]:
        for _ in range(count):
            time.sleep(answer)
            yield x, y

    def train(source: Iterable[tuple[Any, Any]]) -> None:
        for inputs, targets in source:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

    one = gt.from_numpy(x), gt.from_numpy(y)
    contenders: dict[str, Callable[[], Any]] = {
        "GT": lambda: train((gt.from_numpy(a), gt.from_numpy(b)) for a, b in batches()),
        "GT, gt.data.prefetch": lambda: train(gt.data.prefetch(batches())),
        "waiting alone": lambda: list(batches()),
        "steps alone": lambda: train(one for _ in range(count)),
    }
    seconds = medians(contenders, rounds)
    plain, ahead, waiting, steps = seconds.values()
    said = f"of GT = {ahead / plain:.2f}, of the longer part alone = {ahead / max(waiting, steps):.2f}"
    return [
        (
            "step with a batch that comes after 10 ms" if name == "GT" else "", name,
            f"{taken / count * 1e3:.2f} ms", said if name == "GT, gt.data.prefetch" else "",
        )
        for name, taken in seconds.items()
    ]  # fmt: skip


ECHO = """
import sys, zmq
front, back = sys.argv[1:]
c = zmq.Context()
if front == "echo":
    s = c.socket(zmq.DEALER); s.connect(back)
    s.send(b"ready")
    while True: s.send_multipart(s.recv_multipart())
s = c.socket(zmq.ROUTER); s.bind(front)
t = c.socket(zmq.ROUTER); t.bind(back)
worker = t.recv_multipart()[0]
poller = zmq.Poller(); poller.register(s, zmq.POLLIN); poller.register(t, zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if s in ready:
        t.send_multipart([worker, *s.recv_multipart()])
    if t in ready:
        s.send_multipart(t.recv_multipart()[1:])
"""


def round_trip(rounds: int) -> Rows:
    """Fetching one element, beside a bare ZeroMQ echo through a middleman process (four hops, as a fetch has)."""
    count = 300
    with_gt = workloads.round_trip(count)
    with tempfile.TemporaryDirectory() as folder:
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        processes = [subprocess.Popen([sys.executable, "-c", ECHO, a, back]) for a in (front, "echo")]
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(front)

        def echo() -> None:
            for _ in range(count):
                socket.send(b"x" * 32)
                socket.recv()

        contenders: dict[str, Callable[[], Any]] = {"GT": with_gt, "ZeroMQ echo": echo}
        try:
            seconds = medians(contenders, rounds)
        finally:
            socket.close(linger=0)
            for process in processes:
                process.kill()
                process.wait()
    return [
        *ratios("fetch of one element", "≤ 1.5", seconds, "ZeroMQ echo", 1e6 / count, "µs"),
        *flattened(others("round_trip", {"GT": (with_gt, count)}, lambda s: f"{s * 1e6:.2f} µs")),
    ]


def start(rounds: int) -> Rows:
    """A new process: `import gt`, and the first value through its own daemons."""

    def process(code: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    first = process("import gt; assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]; import os; os._exit(0)")
    contenders = {
        "bare python": process("pass"),
        "import numpy": process("import numpy"),
        "import gt": process("import gt"),
    }
    seconds = medians({**contenders, "first value": first}, max(3, rounds - 2))
    bare = seconds["bare python"]
    rows = [
        ("new process", name, f"{value:.3f} s", f"{value - bare:.3f} s over bare python")
        for name, value in seconds.items()
    ]
    return [row if row[1] != "import gt" else (*row[:3], row[3] + "  (goal ≤ 0.2 s)") for row in rows[:3]] + [
        (*rows[3][:3], rows[3][3] + "  (goal ≤ 1.5 s)")
    ]


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory(rounds: int) -> Rows:
    """Growth of resident memory and descriptors of client, dispatcher and worker over many operations, after a warm-up."""
    local = gt.client.session.session.current().link.local
    processes = {"client": os.getpid(), **{name: child.pid for name, child in local.children}}
    x = gt.from_numpy(np.ones((16, 16), np.float32))
    rows: Rows = []
    sizes = itertools.count(200_000, -1)

    def operations(count: int) -> None:
        y = x
        for index in range(count):
            y = y + x
            if index % 10_000 == 9_999:
                y.sum().item()

    def shapes(count: int) -> None:
        for index in range(count):
            (gt.zeros(next(sizes)) + 1.0).sum()
            if index % 1_000 == 999:
                gt.synchronize()

    # the warm-up fills the caches, which are bounded; after it nothing may grow, but what runs seldom is compiled late
    loads = (
        ("operations", operations, 100_000, 1_000_000),
        ("operations more", operations, 0, 1_000_000),
        ("steps with ever-new shapes", shapes, 50_000, 100_000),
    )
    for name, run, warm, count in loads:
        run(warm)
        before = {who: (_resident(pid), _descriptors(pid)) for who, pid in processes.items()}
        begin = time.perf_counter()
        run(count)
        gt.synchronize()
        took = time.perf_counter() - begin
        for who, pid in processes.items():
            grown, more = _resident(pid) - before[who][0], _descriptors(pid) - before[who][1]
            what = f"memory over {count:,} {name}" if who == "client" else ""
            size = f"{before[who][0] / 2**20:.1f} MiB, {grown / 2**20:+.1f} MiB"
            rows.append((what, who, size, f"{more:+d} descriptors, {took:.0f} s"))
    return rows


BENCHMARKS = {
    "start": start,
    "chain": chain,
    "elementwise": elementwise,
    "step": step,
    "transformer": transformer,
    "loading": loading,
    "bulk": bulk,
    "round_trip": round_trip,
    "memory": memory,
}


def main() -> None:
    """Run the benchmarks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="a comma-separated choice of: %(default)s")
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    gt.init(workers=1)
    rows: Rows = []
    for name in options.only.split(","):
        rows += BENCHMARKS[name](options.rounds)
    if torch is not None:
        print(f"PyTorch {torch.__version__} on {torch.get_num_threads()} threads, GT's worker on {threads()}")
    if absent := peers.missing():
        print(f"not installed: {', '.join(absent)} (pip install -e '.[bench]' has them all)")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, {threads()} cores")
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if options.json:
        facts = {"machine": platform.machine(), "cores": threads(), "missing": peers.missing(), "rows": rows}
        Path(options.json).write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
