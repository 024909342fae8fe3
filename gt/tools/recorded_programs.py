"""Programs for the policy simulator from recorded traces (`gt trace`, `gt.profile`). Reads files; simulates nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gt.dispatcher.pacing.priority import AUTO, Priority
from gt.dispatcher.pacing_simulator.programs import SimulatedProgram, Step
from gt.errors import GTError
from gt.monitor.reading import TraceMetadata, read
from gt.wire import telemetry as t

SECONDS_PER_NANOSECOND: Final = 1e-9
HUNGRY_SHARE: Final = 0.9
"""A program whose workers computed for it in so much of its time had endless work."""


@dataclass(slots=True)
class RecordedPlan:
    """A plan that was run, in nanoseconds. A slice may stand for several that were added up."""

    plan: int
    begin: int
    end: int = 0
    duration: int = 0
    """Of the worker that took longest, without what it waited for others."""
    times: int = 1
    issued: int | None = None


@dataclass(slots=True)
class RecordedClient:
    """What a trace says of a client."""

    principal: tuple[str, int] = ("", -1)
    """Its host and process: a trace does not say whose they are."""
    kind: str = "client"
    priority: Priority = AUTO
    weight: float = 1.0
    members: set[int] = field(default_factory=set)
    plans: dict[int, RecordedPlan] = field(default_factory=dict)
    """By order."""
    issues: dict[int, int] = field(default_factory=dict)
    """When each of them was issued."""


def recorded(paths: Iterable[Path]) -> tuple[list[SimulatedProgram], int, float]:
    """The programs of traces, as if all traces had begun at once; how many workers there were, and the seconds of the longest
    trace. Raises `GTError` for a file that is no trace, or in which no plan ran."""
    programs: list[SimulatedProgram] = []
    workers, seconds = 0, 0.0
    for path in paths:
        clients = _clients(read(path, TraceMetadata()))
        times = [time for client in clients for plan in client.plans.values() for time in (plan.begin, plan.end)]
        if not times:
            raise GTError(f"in {path} no plan is run")
        first, places = min(times), sorted({member for client in clients for member in client.members})
        programs += [_program(len(programs) + n, client, first, places) for n, client in enumerate(clients)]
        workers, seconds = max(workers, len(places)), max(seconds, (max(times) - first) * SECONDS_PER_NANOSECOND)
    return programs, workers, seconds


def _clients(events: Iterator[t.Event]) -> list[RecordedClient]:
    """The clients that ran a plan, by number."""
    found: dict[int, RecordedClient] = defaultdict(RecordedClient)
    for event in events:
        match event:
            case t.ClientJoined():
                found[event.client].principal = event.host, event.pid
                found[event.client].kind = Path(event.program).stem or "client"
            case t.ClientState() if event.priority:
                found[event.client].priority = Priority(event.priority)
                found[event.client].weight = event.weight / 1000
            case t.RunIssued() if event.times == 1:
                found[event.client].issues[event.order] = event.time
            case t.PlanSlice():
                client = found[event.client]
                client.members.add(event.worker)
                plan = client.plans.setdefault(event.order, RecordedPlan(event.plan, event.time, times=event.times))
                plan.begin = min(plan.begin, event.time)
                plan.end = max(plan.end, event.time + event.duration)
                plan.duration = max(plan.duration, event.duration - event.waiting)
            case _:
                pass
    return [client for _, client in sorted(found.items()) if client.plans]


def _program(number: int, client: RecordedClient, first: int, places: list[int]) -> SimulatedProgram:
    """A client as a program: what it asked for while nothing of it ran, it had thought about; all else it had queued."""
    steps: list[Step] = []
    begins = end = client.plans[min(client.plans)].begin
    for order, plan in sorted(client.plans.items()):
        issued = client.issues.get(order, plan.begin)
        pause = max(0, issued - end) * SECONDS_PER_NANOSECOND if issued > end or not steps else None
        each = Step(plan.plan, plan.duration / plan.times * SECONDS_PER_NANOSECOND)
        steps += [each._replace(pause=pause), *[each] * (plan.times - 1)]
        end = max(end, plan.end)
    busy = sum(step.seconds for step in steps)
    return SimulatedProgram(
        number, client.kind, client.principal, tuple(places.index(member) for member in sorted(client.members)),
        partial(iter, steps), (begins - first) * SECONDS_PER_NANOSECOND, client.priority, client.weight,
        hungry=busy > HUNGRY_SHARE * (end - begins) * SECONDS_PER_NANOSECOND,
    )  # fmt: skip
