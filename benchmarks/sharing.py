"""Programs that share two CPU workers.

    python benchmarks/sharing.py [--seconds 8] [--only fetch,cut,shares] [--programs 8,20] [--json FILE]

`fetch`: one program fetches a value that takes a moment to compute, thinks for some milliseconds and fetches the next one: how
long a fetch takes alone, and beside programs that always have plans of 0.1 s queued, one for each worker.
`cut`: the same beside plans of 1 s, as they are and with `max_plan: 20ms` in the config of their programs; and what part of a
worker these programs get then.
`shares`: programs whose plans take from about 1 to 30 ms, each with ever more of them queued: the time of the workers that each
has got by the service's own accounts (`gt.usage`, each program in a signal of its own; of the first `MAX_COUNTED`), as Jain's
index (R. Jain, D. Chiu and W. Hawe, A Quantitative Measure of Fairness and Discrimination for Resource
Allocation in Shared Computer Systems, 1984: 1 if all have the same, 1/n if one of n has all), and the work of all together,
which is their plans by what one takes alone, by the time that passed. Each checks its last result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from forked_programs import Program, together

import gt
from gt.service.launch import Local

WORKERS: Final = 2
SIDE: Final = 192
"""The rows and columns of the matrices that are multiplied."""
LONG_SECONDS: Final = 0.1
CUT_SECONDS: Final = 1.0
CUT_SIDE: Final = 448
"""The same of plans of a second, which have fewer products than are gathered at most."""
MAX_PLAN: Final = "20ms"
SHORT_SECONDS: Final = (0.001, 0.003, 0.01, 0.03)
THINK_SECONDS: Final = (0.005, 0.03)
IN_FLIGHT: Final = 24
"""The plans that a program has queued: fewer than its credits."""
CALIBRATION_SECONDS: Final = 0.4
"""The seconds for which a program runs plans alone, so that it is known what one takes."""

MAX_COUNTED: Final = 60
"""The most programs whose use is counted separately: the service keeps 64 sums for one user."""


def products(count: int, side: int = SIDE) -> Callable[[], gt.Tensor]:
    """A function that sends one plan of so many products of matrices, and returns the last one."""
    matrix = gt.from_numpy(np.full((side, side), 1 / side, np.float32))
    last = [matrix]
    """The result of the last plan, which is therefore computed."""

    def send() -> gt.Tensor:
        x = matrix
        for _ in range(count):
            x = x @ matrix
        last[0] = x
        gt.flush()
        return x

    return send


def count_for(seconds: float, side: int = SIDE) -> int:
    """The number of products that take about so long."""
    matrix = np.full((side, side), 1 / side, np.float32)
    taken = []
    for _ in range(20):
        begin = time.perf_counter()
        matrix @ matrix
        taken.append(time.perf_counter() - begin)
    return max(1, round(seconds / min(taken)))


def trainer(
    count: int,
    seconds: float,
    side: int = SIDE,
    config: dict[str, Any] | None = None,
    queued: int = IN_FLIGHT,
    name: str = "trainer",
) -> Program:
    """A program that always has plans queued. Finds how many it has run, in which time, and the seconds of workers that they
    have taken."""

    def used() -> float:
        return float(gt.usage().get(name, {}).get("device_seconds", 0.0))

    def run(address: str, start: int, report: int) -> None:
        session = gt.connect(address, config=config)
        gt.signal.enter(name)
        send = products(count, side)
        for _ in range(3):
            send()
        session.wait_for(lambda: session.credited >= session.sent, "plans", None)
        os.write(report, b"\n")
        os.read(start, 1)
        begin, before, had = time.monotonic(), session.credited, used()
        while time.monotonic() < begin + seconds:
            session.wait_for(lambda: session.sent - session.credited < queued, "plans", None)
            x = send()
        got, done, passed = used() - had, session.credited - before, time.monotonic() - begin
        assert np.allclose(x.numpy(), np.float32(1 / side), rtol=1e-3), "a wrong result"
        os.write(report, json.dumps([done, passed, got]).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def calibration(count: int, plans: int, side: int = SIDE, config: dict[str, Any] | None = None) -> Program:
    """A program that runs so many plans. Finds the seconds of one."""

    def run(address: str, start: int, report: int) -> None:
        session = gt.connect(address, config=config)
        send = products(count, side)
        for _ in range(3):
            send()
        session.wait_for(lambda: session.credited >= session.sent, "plans", None)
        os.write(report, b"\n")
        os.read(start, 1)
        begin = time.monotonic()
        for _ in range(plans):
            send()
        session.wait_for(lambda: session.credited >= session.sent, "plans", None)
        os.write(report, json.dumps((time.monotonic() - begin) / plans).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def small_value() -> Callable[[], object]:
    """A function that fetches a value which takes hardly any time."""
    x = gt.from_numpy(np.ones(16, np.float32))
    return lambda: (x * 2.0).sum().item()


def fetcher(seconds: float, prepare: Callable[[], Callable[[], object]] = small_value) -> Program:
    """A program that fetches one value after the other, each by a call of what `prepare` returns in its session. Finds the
    seconds of each."""

    def run(address: str, start: int, report: int) -> None:
        gt.connect(address)
        call, think = prepare(), random.Random(1)

        def fetch() -> float:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin

        for _ in range(20):
            fetch()
        os.write(report, b"\n")
        os.read(start, 1)
        begin, found = time.monotonic(), []
        while time.monotonic() < begin + seconds:
            found.append(fetch())
            time.sleep(think.uniform(*THINK_SECONDS))
        os.write(report, json.dumps(found).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def figures(taken: list[float]) -> dict[str, float]:
    """The milliseconds of fetches."""
    ordered = sorted(taken)
    return {
        "fetches": len(ordered),
        "p50": ordered[len(ordered) // 2] * 1e3,
        "p99": ordered[len(ordered) * 99 // 100] * 1e3,
        "most": ordered[-1] * 1e3,
    }


def fetch(address: str, seconds: float) -> dict[str, Any]:
    """Measures the milliseconds of a fetch, alone and beside long plans."""
    count = count_for(LONG_SECONDS)
    alone = together(address, [fetcher(seconds / 4)])[0]
    plan = together(address, [calibration(count, IN_FLIGHT)])[0]
    beside = together(address, [*[trainer(count, seconds)] * WORKERS, fetcher(seconds)])
    rates = [done * plan / passed for done, passed, _ in beside[:-1]]
    return {"plan": plan, "alone": figures(alone), "beside": figures(beside[-1]), "trainers": rates}


def cut(address: str, seconds: float) -> dict[str, Any]:
    """Measures the milliseconds of a fetch beside plans of a second, uncut and cut, and what these take alone."""
    count, found = count_for(CUT_SECONDS, CUT_SIDE), dict[str, Any]()
    for _ in range(2):  # in a worker, beside whatever else runs here, a product may take longer
        plan = together(address, [calibration(count, 2, CUT_SIDE)])[0]
        count = max(1, round(count * CUT_SECONDS / plan))
    for name, config in (("uncut", None), ("cut", {"max_plan": MAX_PLAN})):
        plan = together(address, [calibration(count, 4, CUT_SIDE, config)])[0]
        long = trainer(count, seconds, CUT_SIDE, config, 3)
        *trainers, beside = together(address, [*[long] * WORKERS, fetcher(seconds)])
        rates = [done * plan / passed for done, passed, _ in trainers]
        found[name] = {"plan": plan, "beside": figures(beside), "trainers": rates}
    return found


def shares(address: str, seconds: float, programs: int) -> dict[str, Any]:
    """Measures how equal the time is that programs with unlike plans get, as Jain's index."""
    counts = [count_for(each) for each in SHORT_SECONDS]
    plans = [
        together(address, [calibration(count, max(IN_FLIGHT, round(CALIBRATION_SECONDS / each)))])[0]
        for count, each in zip(counts, SHORT_SECONDS, strict=True)
    ]
    drawn = [number // WORKERS % len(counts) for number in range(programs)]
    names = [f"program {n}" if n < MAX_COUNTED else "others" for n in range(programs)]
    found = together(
        address, [trainer(counts[each], seconds, name=name) for each, name in zip(drawn, names, strict=True)]
    )
    got = [used / passed for _, passed, used in found[:MAX_COUNTED]]
    work = [done * plans[each] / passed for each, (done, passed, _) in zip(drawn, found, strict=True)]
    jain = sum(got) ** 2 / (len(got) * sum(each * each for each in got))
    return {
        "programs": programs,
        "jain": jain,
        "seconds": got,
        "work": work,
        "together": sum(work),
        "least": min(got),
        "most": max(got),
        "plans": plans,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default="fetch,cut,shares")
    parser.add_argument("--programs", default="8,20")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    gt.connect("inproc")  # everything that a program imports is there before the first is forked
    (gt.ones(2) + 1).sum().item()
    gt.disconnect()
    local, rows = Local(WORKERS), []
    try:
        if "fetch" in options.only:
            found = fetch(local.address, options.seconds)
            rows.append(found)
            print(
                f"plans of {found['plan'] * 1e3:.0f} ms; trainers get {[round(each, 2) for each in found['trainers']]}"
            )
            for name in ("alone", "beside"):
                each = found[name]
                print(
                    f"fetch {name:7} p50 {each['p50']:8.2f} ms  p99 {each['p99']:8.2f} ms  "
                    f"most {each['most']:8.2f} ms  of {each['fetches']}"
                )
        if "cut" in options.only:
            rows.append(cut(local.address, options.seconds))
            for name, found in rows[-1].items():
                each = found["beside"]
                print(
                    f"beside plans of {found['plan'] * 1e3:.0f} ms, {name:5}: p50 {each['p50']:8.2f} ms  "
                    f"p99 {each['p99']:8.2f} ms  most {each['most']:8.2f} ms  of {each['fetches']}; trainers get "
                    f"{[round(each, 2) for each in found['trainers']]}"
                )
        if "shares" in options.only:
            for count in map(int, options.programs.split(",")):
                found = shares(local.address, options.seconds, count)
                rows.append(found)
                print(
                    f"{count} programs: Jain {found['jain']:.4f}, least {found['least']:.4f}, most {found['most']:.4f}, "
                    f"together {found['together']:.3f} of {WORKERS}"
                )
    finally:
        local.close()
    if options.json:
        known = {"cores": len(os.sched_getaffinity(0)), "gt": gt.__version__, "rows": rows}
        options.json.write_text(json.dumps(known, indent=1), "utf-8")


if __name__ == "__main__":
    main()
