"""A GPU worker beside bare CuPy and PyTorch on the same card, in one run: `make gpu-bench`.

    python benchmarks/gpu.py [--device cuda:0] [--rounds 20] [--small] [--parts copy chain …] [--json FILE]

Kernels are measured in this process, on an in-memory worker: what it starts is asynchronous, so the clock is read when the
device has nothing left to do. Training steps and copies go through real processes, as a program's do. Every figure is the
median of rounds in which contenders take turns. `--device cpu --small` runs the same code with NumPy, to see that it runs:
such figures say nothing. Writes `benchmarks/results/<date>-<card>.json`, with card, driver and versions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import suite
import workloads
from gpu_layers import layers

import gt
from gt.service import in_process
from gt.worker.base.backend import Backend, backend, diagnose
from gt.worker.cuda_graphs.capturable_run import CapturableRun

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Rows = list[tuple[str, str, str, str]]
FAILED = "failed"
RESULTS = Path(__file__).parent / "results"


class Sizes(NamedTuple):
    """Sizes of arrays and counts of steps. A kernel takes longer on these arrays than the host takes to launch it."""

    elements: int = 256 << 20
    side: int = 8192
    rows: int = 32768
    columns: int = 8192
    steps: int = 50
    bulk: int = 64 << 20


SMALL = Sizes(1 << 12, 64, 32, 64, 3, 1 << 14)
REPEATS = 30
"""Runs in a round."""
DRAWN = 1 << 24
"""Numbers that are drawn at most; larger arrays repeat them, since drawing takes longer than what is measured."""


class Bench:
    """A device, and turns of contenders on it."""

    def __init__(self, computed: Backend, rounds: int, sizes: Sizes) -> None:
        self.backend = computed
        self.xp = computed.xp
        self.rounds = rounds
        self.sizes = sizes
        self.copied = 0.0
        """Bytes a second that a copy on the device reads and writes."""

    @property
    def has_torch(self) -> bool:
        """Whether PyTorch is here, and computes on this device."""
        return torch is not None and (self.backend.kind == "cpu" or torch.cuda.is_available())

    def seconds(self, contenders: dict[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, float]:
        """Median seconds of one run of each; a round is several runs on end, and then a wait for the device. What passes until
        the device begins is in the first of them, so they are many where they are short. The first contender is measured:
        others that fail are left out."""
        for name, run in [*contenders.items()][1:]:
            try:
                run()
            except Exception as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                del contenders[name]
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(self.rounds + 3):
            for name, run in contenders.items():
                self.backend.synchronize()
                start = time.perf_counter()
                for _ in range(repeats):
                    run()
                self.backend.synchronize()
                if turn >= 3:  # before, kernels are compiled, and plans get hot
                    times[name].append((time.perf_counter() - start) / repeats)
        return {name: statistics.median(taken) for name, taken in times.items()}

    def random(self, *shape: int, dtype: Any = np.float32) -> Any:
        """Numbers on the device, drawn: zeros would be faster than data is."""
        return self.backend.from_host(drawn(shape, len(shape)).astype(dtype))


def drawn(shape: tuple[int, ...], seed: int) -> Any:
    """Normally distributed float32 numbers of this shape, on the host."""
    size = math.prod(shape)
    return np.resize(np.random.default_rng(seed).standard_normal(min(size, DRAWN), np.float32), shape)


def flushed(run: Callable[[], Any]) -> Callable[[], None]:
    """A computation of GT's, all of which the worker has been told when it returns."""

    def all_of_it() -> None:
        kept = run()
        gt.synchronize()
        del kept

    return all_of_it


def copy(bench: Bench) -> Rows:
    """What the device can do: one array copied to another."""
    source = bench.random(bench.sizes.elements)
    target = bench.xp.empty_like(source)
    taken = bench.seconds({"copy": lambda: bench.xp.copyto(target, source)})["copy"]
    bench.copied = 2 * source.nbytes / taken
    return [("copy on the device", bench.xp.__name__, f"{bench.copied / 1e9:.1f} GB/s", "")]


def bandwidth(bench: Bench, what: str, goal: float, nbytes: int, contenders: dict[str, Callable[[], Any]]) -> Rows:
    """Rows of what only moves bytes, as a share of the copy's speed."""
    taken = bench.seconds(contenders)
    rows = []
    for name, value in taken.items():
        share = nbytes / value / bench.copied
        said = f"of copy = {share:.2f}" + (f"  (goal ≥ {goal})" if name == "GT" else "")
        rows.append((what if name == "GT" else "", name, f"{value * 1e6:.1f} µs", said))
    return rows


def chain(bench: Bench) -> Rows:
    """Eight element-wise operations, one after the other: two arrays read, one written."""
    hosts = [drawn((bench.sizes.elements,), seed) for seed in range(2)]
    x, y = map(gt.from_numpy, hosts)
    a, b = map(bench.backend.from_host, hosts)

    def of(x: Any, y: Any, tanh: Callable[[Any], Any]) -> Any:
        return tanh(((x * 2.0 + y) * x - y) * 0.5 + x) * y

    contenders = {"GT": flushed(lambda: of(x, y, gt.tanh)), bench.xp.__name__: lambda: of(a, b, bench.xp.tanh)}
    if bench.has_torch and bench.backend.kind == "cuda":
        t, u = (torch.from_numpy(host).cuda() for host in hosts)
        contenders["PyTorch"] = lambda: of(t, u, torch.tanh)
        contenders["torch.compile"] = torch.compile(lambda: of(t, u, torch.tanh))
    return bandwidth(bench, "8 element-wise operations, float32", 0.85, 3 * hosts[0].nbytes, contenders)


def rows_of(bench: Bench) -> Rows:
    """softmax and layer norm along rows: one array read, one written."""
    shape = (bench.sizes.rows, bench.sizes.columns)
    host = drawn(shape, 0)
    x = gt.from_numpy(host)
    found: Rows = []
    for what, ours, theirs in (
        ("softmax", lambda: gt.softmax(x, -1), "softmax"),
        ("layer norm", lambda: gt.nn.functional.layer_norm(x, shape[-1:]), "layer_norm"),
    ):
        contenders = {"GT": flushed(ours)}
        if bench.has_torch and bench.backend.kind == "cuda":
            t, functions = torch.from_numpy(host).cuda(), torch.nn.functional
            contenders["PyTorch"] = (
                (lambda t=t, f=functions: f.softmax(t, -1))
                if theirs == "softmax"
                else (lambda t=t, f=functions: f.layer_norm(t, shape[-1:]))
            )
        found += bandwidth(bench, f"{what} of {shape[0]} × {shape[1]}, float32", 0.8, 2 * host.nbytes, contenders)
    return found


def products(bench: Bench) -> Rows:
    """Matrix products beside the array module's own, on the same numbers; TF32 for both or for none."""
    side = bench.sizes.side
    found: Rows = []
    for name in ("float32", "TF32", "float16", "bfloat16"):
        if name == "TF32" and bench.backend.kind != "cuda":
            continue
        dtype = getattr(gt, "float32" if name == "TF32" else name)
        a, b = (bench.random(side, side, dtype=dtype.numpy) for _ in range(2))
        x, y = (gt.from_numpy(bench.backend.to_host(each)) for each in (a, b))
        gt.set_float32_matmul_precision("high" if name == "TF32" else "highest")
        core = sys.modules.get("cupy._core._routines_linalg")
        if core is not None:
            core.set_compute_type(np.float32, core.COMPUTE_TYPE_TF32 if name == "TF32" else core.COMPUTE_TYPE_DEFAULT)
        taken = bench.seconds(
            {"GT": flushed(lambda x=x, y=y: x @ y), "bare": lambda a=a, b=b: bench.xp.matmul(a, b)},
            repeats=3 if name == "float32" else REPEATS,
        )
        flops = 2.0 * side**3
        share = taken["bare"] / taken["GT"]
        ours, bare = (f"{flops / taken[who] / 1e12:.2f} TFLOP/s" for who in ("GT", "bare"))
        found.append((f"{side}² by {side}², {name}", "GT", ours, f"of bare = {share:.3f}  (goal ≥ 0.97)"))
        found.append(("", bench.xp.__name__, bare, ""))
    return found


def steps(bench: Bench) -> Rows:
    """One SGD step of a small network and of a small transformer, through real processes, beside PyTorch on the same card."""
    cases = {
        "784-256-128-10 at 128": (workloads.mlp, *workloads.images()),
        "small transformer": (workloads.transformer, *workloads.words()),
    }
    count, found = bench.sizes.steps, []
    for what, (model_of, inputs, targets) in cases.items():

        def training(
            lib: Any, model: Any, there: Callable[[Any], Any], wrap: Callable[..., Any] = workloads.unchanged
        ) -> Callable[[], object]:
            x, y = there(inputs), there(targets)  # noqa: B023  # called in this turn alone
            return workloads.training(lib, model, x, y, count, wrap)

        contenders = {
            "GT": training(gt, model_of(gt), gt.from_numpy),
            "GT compiled": training(gt, model_of(gt), gt.from_numpy, gt.compile),
        }
        if bench.has_torch:
            on = "cuda" if bench.backend.kind == "cuda" else "cpu"

            def there(x: Any, on: str = on) -> Any:
                return torch.from_numpy(x).to(on)

            contenders["PyTorch eager"] = training(torch, model_of(torch).to(on), there)
            if bench.backend.kind == "cuda":
                quick = torch.compile(model_of(torch).to(on), mode="reduce-overhead")
                contenders["torch.compile"] = training(torch, quick, there)
        taken = bench.seconds(contenders, repeats=1)
        for name, value in taken.items():
            ratio = beside_peers(what, name, taken)
            found.append(
                (f"training step, {what}" if name == "GT" else "", name, f"{value / count * 1e3:.3f} ms", ratio)
            )
    return found


GOALS = {"784-256-128-10 at 128": ("PyTorch eager", "torch.compile"), "small transformer": ("PyTorch eager",)}
"""By network the peers than which a step should take no longer."""


def beside_peers(what: str, name: str, taken: dict[str, float]) -> str:
    """GT's time for a step over that of each peer that was measured."""
    peers = [peer for peer in ("PyTorch eager", "torch.compile") if peer in taken] if name.startswith("GT") else []
    return ", ".join(
        f"{name} / {peer} = {taken[name] / taken[peer]:.2f}" + ("  (goal ≤ 1)" if peer in GOALS[what] else "")
        for peer in peers
    )


def bulk(bench: Bench) -> Rows:
    """Put and fetch through real processes, beside a copy between pinned memory and the device."""
    host = np.random.default_rng(0).standard_normal(bench.sizes.bulk, np.float32)
    computed = -gt.from_numpy(host)
    contenders: dict[str, Callable[[], Any]] = {
        "put": lambda: gt.from_numpy(host)[-1].item(),  # until it can be read: a worker does not wait for its copy
        "fetch": computed.numpy,
    }
    if bench.backend.kind == "cuda":
        pinned = bench.xp.cuda.alloc_pinned_memory(host.nbytes)
        here = np.frombuffer(pinned, np.float32, host.size)
        here[:] = host
        there = bench.xp.empty(host.shape, np.float32)
        contenders["pinned copy in"] = lambda: there.set(here)
        contenders["pinned copy out"] = lambda: there.get(out=here)
    used = host.copy()
    contenders["copy by the host"] = lambda: np.copyto(used, host)
    taken = bench.seconds(contenders, repeats=2)
    size = host.nbytes >> 20
    best = {"put": taken.get("pinned copy in"), "fetch": taken.get("pinned copy out")}
    return [
        (
            f"{name} of {size} MiB", "GT" if name in best else "NumPy" if "host" in name else "CuPy",
            f"{host.nbytes / value / 1e9:.2f} GB/s",
            f"of a pinned copy = {peer / value:.2f}" if (peer := best.get(name)) else "",
        )
        for name, value in taken.items()
    ]  # fmt: skip


def beside(bench: Bench) -> Rows:
    """How much of a copy in and of one out kernels hide that run meanwhile."""
    staging = bench.backend.staging
    if staging is None:
        return []
    host = np.random.default_rng(0).standard_normal(bench.sizes.bulk // 4, np.float32)
    value, a = bench.random(host.size), bench.random(bench.sizes.side, bench.sizes.side)
    into = host.copy()  # which is there, as what a client offers mostly is

    def kernels() -> None:
        for _ in range(4):
            bench.xp.matmul(a, a)

    def fetch(then: Callable[[], None] = lambda: None) -> None:
        outgoing = staging.fetches.send(value, into)
        then()
        while outgoing.left:
            staging.fetches.turn()

    def put() -> None:
        staging.puts.bring(host)

    def put_beside() -> None:
        kernels()
        put()

    found: Rows = []
    for name, copy, both in (("a fetch", fetch, lambda: fetch(kernels)), ("a put", put, put_beside)):
        taken = bench.seconds({"kernels": kernels, "copy": copy, "both": both}, repeats=1)
        hidden = (taken["kernels"] + taken["copy"] - taken["both"]) / min(taken["kernels"], taken["copy"])
        figure = f"{taken['both'] * 1e3:.2f} ms"
        alone = f"{taken['kernels'] * 1e3:.2f} and {taken['copy'] * 1e3:.2f} ms alone"
        found.append(
            (f"{name} of {host.nbytes >> 20} MiB beside products", "GT", figure, f"{alone}: {hidden:.0%} hidden")
        )
    return found


def gaps(bench: Bench) -> Rows:
    """How much of a hot plan's time the device waits between kernels: as the plan runs, launched one by one, and what its CUDA
    graphs take by themselves."""
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((256, 256), np.float32))

    def turn() -> Any:
        y = x
        for _ in range(8):
            y = ((y @ x).tanh() + 1) * 0.5
        return y

    for _ in range(5):
        flushed(turn)()
    (worker,) = _workers()
    ops = {number: [i.op for i in each.plan.instructions] for number, each in worker.programs.compiled.items()}
    program = worker.programs.compiled[max(ops, key=lambda number: ops[number].count("matmul"))]
    held = bench.random(256, 256)

    whole = [action for actions in program.actions for action in actions]
    apart = [each for action in whole for each in (action.actions if isinstance(action, CapturableRun) else (action,))]
    ranges = [each for action in whole if isinstance(action, CapturableRun) for each in action.ranges]
    numbers = [1.0] * len(program.plan.kinds)

    def run(actions: list[Any]) -> None:
        inputs = [held] * len(program.plan.inputs)
        slots = [*inputs, *numbers, *[None] * (program.slots - len(inputs) - len(numbers))]
        for action in actions:
            action(slots)

    def graphs() -> None:
        for captured in ranges:
            for graph in captured.found[-1:]:
                graph.graph.launch()

    contenders = {"plan": lambda: run(whole), "one by one": lambda: run(apart)}
    if ranges:
        contenders["its graphs"] = graphs
    taken = bench.seconds(contenders, repeats=20)
    rows: Rows = []
    for name, value in taken.items():
        share = (
            f"the device waits {1 - taken['its graphs'] / value:.0%} of it" if name != "its graphs" and ranges else ""
        )
        what = "hot plan of 8 products with a chain each" if not rows else ""
        rows.append((what, "GT" if not rows else name, f"{value * 1e6:.1f} µs", share))
    return rows


def _workers() -> Any:
    from gt.client.session.sessions import current

    return current().link.fabric.workers.values()


def memory(bench: Bench) -> Rows:
    """Whether a loop that goes on takes more and more memory of the device."""
    x = gt.from_numpy(np.ones((512, 512), np.float32))
    held = []
    for turn in range(40):
        x = (x @ x).tanh()
        x.sum().item()
        if turn in (9, 39):
            pool = bench.xp.get_default_memory_pool() if bench.backend.kind == "cuda" else None
            held.append(pool.total_bytes() if pool else 0)
    return [
        ("memory after 10 and after 40 turns", "GT", f"{held[0] >> 20} and {held[1] >> 20} MiB", "(goal: the same)")
    ]


KERNELS: tuple[Callable[[Bench], Rows], ...] = (copy, chain, rows_of, products, gaps, beside, memory)
"""The parts that measure an in-memory worker."""
PROCESSES: tuple[Callable[[Bench], Rows], ...] = (steps, layers, bulk)
"""The parts that measure real processes."""


def table(device: str, rounds: int, sizes: Sizes, parts: Collection[str]) -> Rows:
    """The figures of these parts, or of all; each is printed as soon as it is known."""
    bench = Bench(backend(device), rounds, sizes)
    in_process.DEFAULT_DEVICE = device
    rows: Rows = []
    for connect, group in ((lambda: gt.connect("inproc", workers=1), KERNELS), (lambda: gt.init(workers=1), PROCESSES)):
        chosen = [part for part in group if part is copy or not parts or part.__name__ in parts]
        if chosen:
            connect()
            for part in chosen:
                rows += figures(part, bench)
            gt.disconnect()
    return rows


def figures(part: Callable[[Bench], Rows], bench: Bench) -> Rows:
    """Those of one part; where it fails, that it does, for the others are worth having."""
    try:
        rows = part(bench)
    except Exception as error:
        traceback.print_exc()
        rows = [(part.__name__, "GT", FAILED, f"{type(error).__name__}: {error}".partition("\n")[0])]
    for what, who, figure, ratio in rows:
        print(f"{what:44} {who:16} {figure:>20}  {ratio}", flush=True)
    return rows


def main() -> int:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="sizes that only show that it runs")
    names = [part.__name__ for part in (*KERNELS, *PROCESSES)]
    parser.add_argument("--parts", nargs="+", choices=names, default=[], help="some of them (default: all)")
    parser.add_argument("--json", type=Path, help="where the figures go (default: benchmarks/results)")
    options = parser.parse_args()
    known = diagnose()
    if options.device != "cpu" and known["reason"]:
        print(f"no GPU to measure: {known['reason']}", file=sys.stderr)
        return 1
    rows = table(options.device, options.rounds, SMALL if options.small else Sizes(), options.parts)
    card = (known.get("GPUs") or ["cpu"])[0]
    facts = {**suite.facts(), "card": card, **{key: str(value) for key, value in known.items()}}
    file = options.json or RESULTS / f"{facts['date']}-{card.replace(' ', '-')}.json"
    file.write_text(json.dumps({"facts": facts, "gpu": rows}, indent=1) + "\n", "utf-8")
    return int(any(figure == FAILED for _, _, figure, _ in rows))


if __name__ == "__main__":
    raise SystemExit(main())
