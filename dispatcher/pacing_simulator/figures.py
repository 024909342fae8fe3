"""Compares policies by the figures that each has reached on the same programs, as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .service import Request, SimulatedService


class Waits(NamedTuple):
    """What programs of one kind have waited for."""

    number: int
    mean: float
    p99: float
    """Seconds."""


class PolicyFigures(NamedTuple):
    """What came of a policy."""

    policy: str
    waits: dict[str, Waits]
    """By kind of program."""
    utilisation: float
    """The part of the workers' time in which they computed."""
    jain: float | None
    """Jain's index of the seconds of principals with hungry programs, by worker, on average; None where no two share one."""
    throughput: float
    """Plans done in a second."""


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all have the same, 1/n if one of n has all."""
    return sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares)) if any(shares) else 1.0


def waits(requests: Iterable[Request]) -> Waits:
    """How long requests took."""
    ordered = sorted(each.seconds for each in requests)
    if not ordered:
        return Waits(0, 0.0, 0.0)
    return Waits(len(ordered), sum(ordered) / len(ordered), ordered[len(ordered) * 99 // 100])


def fairness(services: Iterable[SimulatedService]) -> float | None:
    """The mean of Jain's index over workers that several principals would have all for themselves; None if there are none."""
    found = []
    for service in services:
        wanted: dict[int, set[object]] = defaultdict(set)
        for session in service.sessions.values():
            if session.program.hungry:
                for worker in session.program.members:
                    wanted[worker].add(session.program.principal)
        shares = service.shares(hungry=True)
        found += [
            jain([shares[worker].get(each, 0.0) for each in principals])
            for worker, principals in wanted.items()
            if len(principals) > 1
        ]
    return sum(found) / len(found) if found else None


def figures(policy: str, services: Sequence[SimulatedService]) -> PolicyFigures:
    """The figures of services that have run, all of them together."""
    requests: dict[str, list[Request]] = defaultdict(list)
    for service in services:
        for kind, some in service.requests().items():
            requests[kind] += some
    busy = sum(sum(each.values()) for service in services for each in service.shares(hungry=False).values())
    passed = sum(service.now for service in services)
    return PolicyFigures(
        policy,
        {kind: waits(some) for kind, some in requests.items()},
        busy / sum(service.now * len(service.free) for service in services),
        fairness(services),
        sum(session.finished for service in services for session in service.sessions.values()) / passed,
    )


def table(rows: Sequence[PolicyFigures]) -> str:
    """The figures of several policies as text, in milliseconds."""
    kinds = sorted({kind for row in rows for kind in row.waits})
    head = ["policy", "busy", "plans/s", "Jain", *(f"{kind}: mean, p99" for kind in kinds)]
    lines = [head]
    for row in rows:
        each = [row.waits.get(kind, Waits(0, 0.0, 0.0)) for kind in kinds]
        lines.append(
            [
                row.policy, f"{row.utilisation:.3f}", f"{row.throughput:.0f}", "-" if row.jain is None else f"{row.jain:.3f}",
                *(f"{wait.mean * 1e3:.1f}, {wait.p99 * 1e3:.1f}" for wait in each),
            ]
        )  # fmt: skip
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        f"{line[0]:<{widths[0]}}  "
        + "  ".join(f"{text:>{width}}" for text, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    )
