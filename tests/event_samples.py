"""Events as a service would tell them, made by hand: a program that trains on two workers, with everything that can happen."""

from __future__ import annotations

import random
from typing import Any

from gt.wire import telemetry as t

MS = 1_000_000
START = 5_000_000_000_007
WALL = 1_760_000_000_000_000_000
SITE, FETCH = "train.py:12", "train.py:20"


def plan_described(plan: int = 3, **fields: Any) -> t.PlanDescribed:
    """What a plan is, in all it says of itself."""
    usual: dict[str, Any] = {
        "time": START, "worker": -1, "plan": plan, "client": 7, "segment": 1, "members": [0, 1], "reason": "new",
        "instructions": 3, "signals": ["batch/hidden", "batch"], "sites": [SITE, FETCH],
        "ops": [["matmul", 2], ["relu", 1]], "moves": [["all-reduce", 4096, "batch", SITE]],
    }  # fmt: skip
    return t.PlanDescribed(**(usual | fields))


def plan_slice(time: int, worker: int = 0, duration: int = 10 * MS, **fields: Any) -> t.PlanSlice:
    """A plan on a worker: six tenths are computing, two moving, one waiting."""
    usual: dict[str, Any] = {
        "times": 1, "plan": 3, "client": 7, "order": 1, "compute": duration * 6 // 10,
        "communication": duration * 2 // 10, "waiting": duration // 10,
    }  # fmt: skip
    return t.PlanSlice(time, worker, duration, **(usual | fields))


def op_slice(time: int, worker: int = 0, duration: int = MS, op: str = "matmul", **fields: Any) -> t.OpSlice:
    """One instruction of a sampled run."""
    usual: dict[str, Any] = {
        "times": 1, "plan": 3, "client": 7, "order": 1, "position": 0, "signal": "batch/hidden", "site": SITE,
        "elements": 65536, "nbytes": 262144,
    }  # fmt: skip
    return t.OpSlice(time, worker, duration, op=op, **(usual | fields))


def collective(
    time: int, worker: int = 0, duration: int = 2 * MS, kind: str = "all-reduce", **fields: Any
) -> t.Collective:
    """One move of a plan."""
    usual: dict[str, Any] = {
        "times": 1, "plan": 3, "client": 7, "order": 1, "peers": [1 - worker], "sent": 2048, "received": 2048,
        "waiting": MS, "signal": "batch", "site": SITE,
    }  # fmt: skip
    return t.Collective(time, worker, duration, kind=kind, **(usual | fields))


def run(time: int, **fields: Any) -> t.RunIssued:
    """A client's run."""
    return t.RunIssued(time, -1, **({"times": 1, "plan": 3, "client": 7, "order": 1} | fields))


def fetched(time: int, duration: int = 2 * MS, **fields: Any) -> t.Fetched:
    """A client's fetch."""
    usual = {"times": 1, "client": 7, "plan": 3, "request": 1, "nbytes": 4}
    return t.Fetched(time, -1, duration, **(usual | fields))


def miss(time: int = START, **fields: Any) -> t.CacheMiss:
    """A plan that was made anew."""
    usual: dict[str, Any] = {"times": 1, "client": 7, "cache": "plan", "reason": "new", "plan": 3, "site": SITE}
    return t.CacheMiss(time, -1, **(usual | fields))


def service(time: int, **fields: Any) -> t.Service:
    """How the dispatcher is."""
    usual: dict[str, Any] = {
        "wall": WALL + time - START, "started": START - 1000 * MS, "address": "tcp://127.0.0.1:7000", "version": "0.1.0",
        "workers": 2, "clients": 1, "watchers": 1, "runs": 10, "instructions": 30, "plans": 1, "plan_hits": 9,
        "plans_improved": 0, "refused": 0, "poisoned": 0, "fetches": 2, "puts": 1, "internal_errors": 0,
    }  # fmt: skip
    return t.Service(time, -1, **(usual | fields))


def client_state(time: int, **fields: Any) -> t.ClientState:
    """How a client is."""
    usual: dict[str, Any] = {
        "client": 7, "tensors": 12, "nbytes": 1 << 20, "queued": 1, "inflight": 2, "runs": 10, "plans_made": 1,
        "plan_hits": 9, "plans_improved": 0, "signal": "batch", "site": FETCH,
    }  # fmt: skip
    return t.ClientState(time, -1, **(usual | fields))


def gauges(time: int, worker: int = 0, held: int = 1 << 20, **fields: Any) -> t.Gauges:
    """How a worker is."""
    usual = {"queue": 2, "unreported": 1, "tensors": 6, "process": 1 << 27, "limit": 1 << 34, "lent": 0}
    return t.Gauges(time, worker, held=held, **(usual | fields))


def device(time: int, worker: int = 0, **fields: Any) -> t.Device:
    """How a worker's GPU is."""
    usual = {"temperature": 71, "power": 312_000, "power_limit": 700_000, "busy": 93, "used": 1 << 33, "total": 80 << 30,
             "errors": 0, "slowed": ["power cap"]}  # fmt: skip
    return t.Device(time, worker, **(usual | fields))


def graphs(time: int, worker: int = 0, **fields: Any) -> t.Graphs:
    """What a worker has captured and launched."""
    usual = {"captured": 6, "launched": 1200, "held": 3 << 20, "reasons": ["gather is not captured", "addresses change"],
             "counts": [2, 7]}  # fmt: skip
    return t.Graphs(time, worker, **(usual | fields))


def utilisation(time: int, worker: int = 0, share: tuple[int, ...] = (6, 2, 1, 1, 0), **fields: Any) -> t.Utilisation:
    """Where a worker's time went since `START`, in these shares."""
    spent = [(time - START) * each // sum(share) for each in share]
    return t.Utilisation(time, worker, *spent, **({"plans": 4, "instructions": 12, "compiled": 1} | fields))


def joined() -> list[t.Event]:
    """What a watcher is told first."""
    return [
        service(START, runs=0),
        t.WorkerJoined(START - 900 * MS, -1, 0, "here", 100, "cpu", "cpu", 2),
        t.WorkerJoined(START - 900 * MS, -1, 1, "here", 101, "cpu", "cpu", 2),
        t.ClientJoined(START - 800 * MS, -1, 7, "here", 200, "train.py"),
    ]


def one_step(order: int, at: int) -> list[t.Event]:
    """A run and what follows from it on two workers, in the order in which a watcher hears of it."""
    out: list[t.Event] = [run(at, order=order)]
    for worker in (0, 1):
        begins = at + MS + worker * 1003
        out += [
            op_slice(begins, worker, 3 * MS, order=order),
            op_slice(begins + 3 * MS, worker, MS, "add+relu", order=order, position=1, site=FETCH, signal="batch"),
            collective(begins + 4 * MS, worker, order=order),
            plan_slice(begins, worker, order=order),
        ]
    return out


def session(steps: int = 4) -> list[t.Event]:
    """A whole recording: every kind of event, `steps` runs 20 ms apart."""
    out = [*joined(), plan_described(), miss()]
    for step in range(steps):
        at = START + (20 * step + 5) * MS
        out += one_step(step + 1, at)
        out.append(fetched(at + 12 * MS, request=step))
        for worker in (0, 1):
            out += [
                utilisation(at + 15 * MS, worker), gauges(at + 15 * MS, worker, held=(step + 1) << 20),
                t.Traffic(at + 15 * MS, worker, [1 - worker], [2048 * (step + 1)]),
            ]  # fmt: skip
        out += [service(at + 15 * MS, runs=step + 1), client_state(at + 15 * MS)]
    end = START + 20 * steps * MS
    return [
        *out,
        plan_slice(end, 0, 3 * MS, times=5, order=100),
        run(end, times=5, order=100),
        t.Transfer(end, 0, 4 * MS, 1, "put", 7, 5, 1 << 20),
        t.Transfer(end + MS, 0, 4 * MS, 1, "put", 7, 6, 1 << 20),
        t.Waiting(end + 20 * MS, 1, end, "pieces", 7, 3, 9, "all-reduce", [0], 1, 2048, "batch", SITE),
        t.Waiting(end + 30 * MS, 1, end, "pieces", 7, 3, 9, "all-reduce", [0], 1, 2048, "batch", SITE),
        t.Waiting(end + 30 * MS, -1, end, "credit", 7, 3, 9, "", [1], 0, 0, "", ""),
        t.Failure(end, -1, 1, 7, 9, "WorkerError", "matmul went wrong", SITE),
        t.Decision(end, -1, 1, 7, "improved", "info", "plan 3 is better now"),
        device(end),
        graphs(end),
        t.Spill(end + 2 * MS, 0, 3 * MS, 1, "out", 3, 7, 9, 7, 5, 1 << 20, "batch", SITE),
        t.Spill(end + 6 * MS, 0, MS, 1, "ahead", 3, 7, 9, 7, 5, 1 << 20, "", ""),
        t.Tensors(end, -1, 7, [[5, "f32[64,64]", "S0", 16384, "batch", SITE, 5 * MS]]),
        t.WorkerLost(end, -1, 1, "it was killed"),
        t.MarkStored(end, -1, 2 * MS, 7, 3),
        t.SessionRewound(end, -1, 8, 7, 1, "worker 1 was lost"),
        t.ClientLeft(end, -1, 7, "worker 1 was lost"),
        t.ClientJoined(end, -1, 8, "here", 200, "train.py"),
        t.SessionRecovered(end, -1, 20 * MS, 8, 3),
        t.DutyChanged(end, -1, 1, "in service"),
        t.Used(end, -1, "user 1000", "net", 3_000_000_000, 0, 4, 12, 2048, 0, 0, 0, -1),
        t.Used(end, -1, "user 1000", "", 1_000_000_000, 1_000_000, 4, 4, 0, 2 << 20, 4, 1 << 20, 1500),
        t.ClientLeft(end + 20 * MS, -1, 8, "goodbye"),
    ]


def hostile(text: str) -> list[t.Event]:
    """The same with this text wherever somebody else's words stand."""
    words = {
        "op",
        "signal",
        "site",
        "text",
        "program",
        "host",
        "address",
        "version",
        "kind",
        "reason",
        "cache",
        "what",
        "device",
    }
    told: list[Any] = [
        event._replace(**{name: text for name in words & set(event._fields)})  # type: ignore[arg-type]
        for event in session(30)
    ]
    return [*told, plan_described(signals=[text], sites=[text], ops=[[text, 1]])]


def spoiled(events: list[t.Event], seed: int) -> list[t.Event]:
    """The same events with some fields at the limits of what a hostile worker may tell."""
    chosen = random.Random(seed)
    numbers = (0, -1, 1, -(1 << 63), (1 << 63) - 1, 1 << 40)

    def spoil(value: Any) -> Any:
        if chosen.random() > 0.15:
            return value
        return (
            chosen.choice(numbers) if type(value) is int else [] if type(value) is list else chosen.choice(("", "<b>"))
        )

    return [type(event)._make(map(spoil, event)) for event in events]
