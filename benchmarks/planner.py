"""How long planning takes, from 1 to 1,024 workers: python benchmarks/planner.py [--rounds 31] [--json FILE]

The segments are those of a training step of a small network under data and tensor parallelism; the workers are only said
to exist, so what is measured is the dispatcher's core and nothing else. Fan-out to sockets is the shell's, and not here.

* first sight: a planner that has never seen a row, nor what anything costs
* memoised: the same segments again, from scratch, by a planner that has seen their rows
* search: the same segments planned as a whole, which is done once between other things
* hot: a run whose plan is cached, through the core from the client's message to the workers' one
* credit: one worker's word that it is done

Goals are in the table. Ratios are to one worker; a search's to two, for with one there is nothing to search.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gt
from gt.dispatcher.cost.cost_model import move_seconds
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.dispatcher.state.events import JobTurn, Received
from gt.sharding.config import Config
from gt.tools.explain import Explainer, StopProgram, in_place
from gt.tools.shadow_planner import CLIENT_IDENTITY, Shadow
from gt.wire import messages as m

Rows = list[tuple[str, str, str, str]]
SIZES = (1, 2, 4, 16, 64, 256, 1024)
LAYERS = 4
BATCH = 16
"""Hot runs between two rounds of credits: fewer than a worker has credits for."""


def train() -> None:
    """Four pairs of layers in column and row form, softmax and Adam: some 400 instructions an update."""
    gt.connect("inproc")
    up = [gt.nn.Linear(256, 1024) for _ in range(LAYERS)]
    down = [gt.nn.Linear(1024, 256) for _ in range(LAYERS)]
    optimizer = gt.optim.Adam([p for layer in (*up, *down) for p in layer.parameters()])
    x = gt.from_numpy(np.ones((4096, 256), np.float32))
    while True:
        with gt.signal.context("batch"):
            h = x
            for a, b in zip(up, down, strict=True):
                with gt.signal.context("up"):
                    h = a(h).relu()
                with gt.signal.context("down"):
                    h = b(h)
            loss = (h.softmax(-1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recorded() -> list[Any]:
    """What a client says in three updates of it; None between two of them."""
    explainer = Explainer(workers=1, steps=3, values=False, speeds="typical")
    with in_place(explainer):
        try:
            train()
        except StopProgram:
            pass
    return explainer.stream


def config(workers: int) -> Config:
    """As square a mesh as there is."""
    model = 2 ** (workers.bit_length() // 2)
    return Config.from_plain(
        {
            "mesh": {"data": workers // model, "model": model},
            "sharding_config": {
                "batch": {"strategy": "data_parallel"},
                "up": {"strategy": "tensor_parallel", "dimension": 0},
                "down": {"strategy": "tensor_parallel", "dimension": 1},
            },
        }
    )


class Case(NamedTuple):
    """A dispatcher that has planned everything, and the segments of the last update with the homes of their inputs."""

    shadow: Shadow
    planned: list[tuple[Any, Any]]
    run: m.Run
    alive: list[int]

    @property
    def instructions(self) -> int:
        return sum(len(segment.instructions) for segment, _ in self.planned)


def case(stream: list[Any], workers: int, sharding: Config | None = None, kind: type[Shadow] = Shadow) -> Case:
    """Plan the whole stream for a mesh of this size, sharded by `config` or another one."""
    shadow = kind("planner", sharding or config(workers), [{"kind": "cpu", "host": "one"}] * workers, since=1 << 30)
    planned: list[tuple[Any, Any]] = []
    update, last = 0, stream.count(None)
    final = next(message for message in reversed(stream) if isinstance(message, m.Run))
    for message in stream:
        if message is None:
            update += 1
            continue
        if isinstance(message, m.Run) and update == last:
            table = shadow.client.table
            planned.append((shadow.client.segments[message.segment], tuple(table[i].resident for i in message.inputs)))
        if message is final:  # which will be run again and again
            shadow.take(final._replace(dying=[]))
            break
        shadow.take(message)
    each = Case(shadow, planned, final, [])
    for _ in range(SWITCH_AT):  # until nothing more is searched for this plan
        for make in (functools.partial(hot_runs, each, 1), functools.partial(credits_of, each)):
            for event in make():
                shadow.core.handle(event, 0.0)
                while shadow.core.busy:
                    shadow.core.handle(JobTurn(), 0.0)
    return each


def clocked(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(each: Case) -> dict[str, float]:
    """Seconds: an op at first sight, memoised and searched (if anything is), a hot run, one worker's credit."""
    known = each.shadow.client.planner
    fresh = Planner(known.mesh, known.policy, known.speeds)

    def plan() -> None:
        for segment, residents in each.planned:
            fresh.plan(segment, residents)

    def search() -> None:
        for segment, residents in each.planned:
            for _ in fresh.search(segment, residents, fresh.plan(segment, residents)):
                pass

    move_seconds.cache_clear()
    first, again = clocked(plan), clocked(plan)
    searched = (
        clocked(search) if any(fresh.searchable(s, fresh.plan(s, residents)) for s, residents in each.planned) else None
    )
    core = each.shadow.core
    runs, order = hot_runs(each), core.service.order
    hot = clocked(lambda: [core.handle(event, 0.0) for event in runs])
    assert core.service.order == order + len(runs), "every run was issued"
    done = credits_of(each)
    credit = clocked(lambda: [core.handle(event, 0.0) for event in done])
    return {
        "first sight": first / each.instructions, "memoised": again / each.instructions,
        **({} if searched is None else {"search": searched / each.instructions}),
        "hot": hot / len(runs), "credit": credit / len(done),
    }  # fmt: skip


def hot_runs(each: Case, count: int = BATCH) -> list[Received]:
    """The last segment, some more times; each frees what the one before has made."""
    segment = each.shadow.client.segments[each.run.segment]
    found = []
    for _ in range(count):
        base = (each.alive[0] - segment.survivors[0] if each.alive else 1 << 50) + len(segment.instructions)
        run = each.run._replace(base=base, dying=[], freed=list(each.alive))
        each.alive[:] = [base + number for number in segment.survivors]
        found.append(Received(CLIENT_IDENTITY, run))
    return found


def credits_of(each: Case) -> list[Received]:
    """Every worker's word that it has done all of them, in so short a time that none had to wait for its turn."""
    done = m.Done(each.shadow.core.service.order, [1000])
    return [Received(identity, done) for identity in each.shadow.workers]


def table(rounds: int) -> Rows:
    """A row for each mesh and figure: medians of rounds in which all meshes take turns."""
    stream = recorded()
    cases = {workers: case(stream, workers) for workers in SIZES}
    times: dict[int, dict[str, list[float]]] = {workers: {} for workers in SIZES}
    for turn in range(rounds + 1):
        for workers, each in cases.items():
            for name, seconds in measure(each).items():
                if turn:  # the first round warms up
                    times[workers].setdefault(name, []).append(seconds)
    goals = {
        "first sight": "tens of µs an op", "memoised": "≤ 5 µs an op", "search": "", "hot": "≤ 20 µs a run", "credit": "",
    }  # fmt: skip
    rows: Rows = []
    for name, goal in goals.items():
        sizes = [workers for workers in SIZES if name in times[workers]]
        base = sizes[0]
        reference = statistics.median(times[base][name])
        for workers in sizes:
            seconds = statistics.median(times[workers][name])
            ratio = f"{seconds / reference:.2f}× that of {base}" if workers != base else ""
            if workers == SIZES[-1]:
                ratio += "  (goal ≤ 2×)"
            unit = "run" if name == "hot" else "message" if name == "credit" else "op"
            what = f"{name}{f' (goal {goal})' if goal else ''}" if workers == base else ""
            who = "1 worker" if workers == 1 else f"{workers:,} workers"
            rows.append((what, who, f"{seconds * 1e6:.2f} µs a{'n' if unit == 'op' else ''} {unit}", ratio))
    each = cases[SIZES[0]]
    segment = each.planned[-1][0]
    hot = f"hot: {len(segment.inputs)} inputs, {len(segment.instructions)} instructions, {len(segment.survivors)} survivors"
    return [("an update", f"{len(each.planned)} segments", f"{each.instructions} instructions", hot), *rows]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    rows = table(options.rounds)
    cores = len(os.sched_getaffinity(0))
    print(f"Python {platform.python_version()}, {platform.machine()}, {cores} cores")
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if options.json:
        facts = {"machine": platform.machine(), "cores": cores, "rows": rows}
        Path(options.json).write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
