"""Measures the costs of a dispatcher with 1 to 4,096 workers: python benchmarks/fleet.py [--rounds N] [--sizes 1,16] [--draw PNG]

The training step of `planner.py` is planned by the real core of a dispatcher for workers that are only said to exist, on three
kinds of mesh: `data` (all workers split the batch), `model` (all split the layers' weights) and `mixed` (as square as there is).
Each mesh of each size has a process of its own, so that its memory is its own. Times are CPU seconds of that process, which
others on the machine lengthen less than they lengthen seconds on the wall.

* cold: the update at first sight; known: again, by a planner that has seen its rows
* hot: a run whose plan is cached, from the client's message to the workers'
* report: one worker's word that it is done; a run costs as many of them as there are workers, unless workers say it of several
* beat: one worker's sign of life, of which there is one a second; tick: what the core does each second
* run, plan, mesh: the bytes of the messages that all workers get: for each run, once for each plan, and once for the mesh
* memory: how much the process has grown with the workers, the session and its plans
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from planner import BATCH, case, config, credits_of, hot_runs, recorded

from gt.dispatcher.cost.cost_model import move_seconds
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.state.events import Received, Tick
from gt.sharding.config import Config
from gt.tools.shadow_planner import Shadow
from gt.wire import messages as m
from gt.wire.messages import codec

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
MESHES = ("data", "model", "mixed")
FIGURES = {
    "cold": ("planning an update, first sight", "ms"),
    "known": ("planning it again", "ms"),
    "hot": ("a hot run, in the core", "µs"),
    "report": ("a worker's report", "µs"),
    "beat": ("a worker's sign of life", "µs"),
    "tick": ("the core's look at all, each second", "ms"),
    "run": ("published for a run", "bytes"),
    "plan": ("plans of an update, once", "KiB"),
    "mesh": ("the mesh, once", "KiB"),
    "memory": ("growth of the process", "MiB"),
}


@dataclass
class CountedShadow(Shadow):
    """A shadow that notes how large the messages are that its workers get."""

    mesh_bytes: int = 0
    plan_bytes: list[int] = field(default_factory=list)

    def _say(self, peer: bytes, message: Any) -> list[Any]:
        told = super()._say(peer, message)
        for each in told:
            if isinstance(each, m.DefineMesh):
                self.mesh_bytes = max(self.mesh_bytes, sum(map(len, codec.encode(each))))
            elif isinstance(each, m.DefinePlan):
                self.plan_bytes.append(sum(map(len, codec.encode(each))))
        return told


def sharding(mesh: str, workers: int) -> Config:
    """The config for one kind of mesh."""
    if mesh == "mixed":
        return config(workers)
    rules: dict[str, Any] = {"batch": {"strategy": "data_parallel"}}
    if mesh == "model":
        rules = {"up": {"strategy": "tensor_parallel", "dimension": 0}}
        rules["down"] = {"strategy": "tensor_parallel", "dimension": 1}
    return Config.from_plain({"mesh": {mesh: workers}, "sharding_config": rules})


def cpu_seconds(run: Callable[[], Any]) -> float:
    """The CPU seconds of this process in which it runs."""
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(stream: list[Any], mesh: str, workers: int, rounds: int) -> dict[str, float]:
    """The figures of one mesh, in the units of `FIGURES`."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    each = case(stream, workers, sharding(mesh, workers), CountedShadow)
    gc.collect()
    grown = process.memory_info().rss - before
    shadow, core = each.shadow, each.shadow.core
    assert isinstance(shadow, CountedShadow)
    known = shadow.client.planner
    times: dict[str, list[float]] = {name: [] for name in ("cold", "known", "hot", "report", "beat", "tick")}
    sent = 0
    for _ in range(rounds):
        fresh = Planner(known.mesh, known.policy, known.speeds)
        move_seconds.cache_clear()
        for name in ("cold", "known"):
            plan = lambda: [fresh.plan(segment, residents) for segment, residents in each.planned]  # noqa: B023, E731
            times[name].append(cpu_seconds(plan) * 1e3)
        runs, sends = hot_runs(each), []
        seconds = cpu_seconds(lambda: sends.extend(core.handle(event, 0.0) for event in runs))  # noqa: B023
        told = [send for some in sends for send in some if isinstance(send.message, m.Execute)]
        assert len(told) == BATCH, "each run is one message, to the whole mesh"
        assert all(len(send.to) == workers for send in told)
        sent = sum(map(len, codec.encode(told[-1].message)))
        times["hot"].append(seconds / len(runs) * 1e6)
        done = credits_of(each)
        times["report"].append(cpu_seconds(lambda: [core.handle(event, 0.0) for event in done]) / len(done) * 1e6)  # noqa: B023
        beats = [Received(identity, m.Ping()) for identity in shadow.workers]
        seconds = cpu_seconds(lambda: [core.handle(event, 0.0) for event in beats])  # noqa: B023
        times["beat"].append(seconds / len(beats) * 1e6)
        times["tick"].append(cpu_seconds(lambda: core.handle(Tick(), 0.0)) * 1e3)
    found = {name: statistics.median(values) for name, values in times.items()}
    plans = sum(shadow.plan_bytes[-len(each.planned) :])
    return {**found, "run": sent, "plan": plans / 1024, "mesh": shadow.mesh_bytes / 1024, "memory": grown / 2**20}


def apart(run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Calls a function in a forked process, and returns its result."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(writes, json.dumps(run()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "it has said why on stderr"
    found: dict[str, float] = json.loads(said)
    return found


def draw(rows: dict[str, dict[int, dict[str, float]]], path: Path, caption: str) -> None:
    """The curves of all figures."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 5, figsize=(17, 7), layout="constrained")
    for axis, (name, (what, unit)) in zip(axes.flat, FIGURES.items(), strict=True):
        for mesh, sizes in rows.items():
            axis.plot(list(sizes), [found[name] for found in sizes.values()], marker="o", markersize=3, label=mesh)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_title(f"{what}, {unit}", fontsize=10)
        axis.set_xlabel("workers", fontsize=8)
        axis.grid(visible=True, alpha=0.3)
    axes.flat[0].legend()
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--json", help="also write the figures here; those of a mesh that are there already stay")
    parser.add_argument("--draw", help="draw the curves to this file (needs matplotlib)")
    options = parser.parse_args()
    file = Path(options.json) if options.json else None
    kept = json.loads(file.read_text("utf-8")) if file is not None and file.exists() else {}
    rows = {mesh: {int(size): found for size, found in kept.get(mesh, {}).items()} for mesh in MESHES}
    stream = recorded()
    print("  ".join(["mesh   workers", *(f"{name} {unit}".rjust(12) for name, (_, unit) in FIGURES.items())]))
    for workers in map(int, options.sizes.split(",")):
        for mesh in MESHES:
            if workers not in rows[mesh]:
                rows[mesh][workers] = apart(lambda: measure(stream, mesh, workers, options.rounds))  # noqa: B023
            found = rows[mesh][workers]
            print("  ".join([f"{mesh:6} {workers:7,}", *(f"{found[name]:12,.1f}" for name in FIGURES)]), flush=True)
            if file is not None:
                file.write_text(json.dumps(rows, indent=1), "utf-8")
    if options.draw:
        draw(rows, Path(options.draw), "the dispatcher's core by number of workers: CPU time, bytes, memory")


if __name__ == "__main__":
    main()
