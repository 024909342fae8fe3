"""Why a session waits, for `gt why --decision`: what its first message waits for, whose plans run, its share, and its limits.

It reads state and changes none, and its size is bounded. Operators may ask about every session, all others about those of their
own principal; they are not told who others are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from gt.dispatcher.handlers.why import describe_wait
from gt.dispatcher.pacing.standing import standing
from gt.dispatcher.state.message_state import WAITING_RATE
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.telemetry.subscribers import Watcher
from gt.errors import SessionError
from gt.wire import messages as m

MAX_SESSIONS: Final = 16
"""The most sessions that one answer is about."""
ANOTHER: Final = -1
"""In place of the number of a session of another principal, for who may not know it."""


def answer_why(
    service: DispatcherState, reason: Callable[[str], str], watcher: Watcher, asked: m.ExplainSession
) -> m.Message:
    """The answer to a question about one session, or about all. `reason`: which limit a principal's queue waits for."""
    try:
        return m.Answer(asked.request, _explain(service, reason, watcher, asked.client))
    except SessionError as error:
        return m.Failed(asked.request, "SessionError", str(error))


def _explain(service: DispatcherState, reason: Callable[[str], str], watcher: Watcher, number: int) -> dict[str, Any]:
    own = watcher.program.principal
    sees = [each for each in service.clients.values() if watcher.operates or each.program.principal == own]
    queued = [each for each in service.queued.waiting.values() if watcher.operates or each.principal == own]
    if number > 0:
        found = [each for each in sees if each.number == number]
        if not found:
            raise SessionError(
                f"client {number} is no session of {own}, or has ended; an operator may ask about every one"
                if not watcher.operates
                else f"client {number} is not there (any more)"
            )
        told = explain_session(service, found[0]) | explain_pacing(service, found[0], names=watcher.operates)
        return {"sessions": [told], "queued": [], "more": 0}
    sees.sort(key=lambda each: not each.queue)
    waiting = [[each.principal, each.told, service.now - each.since, reason(each.principal)] for each in queued]
    return {
        "sessions": [explain_session(service, each) for each in sees[:MAX_SESSIONS]],
        "queued": waiting[:MAX_SESSIONS],
        "more": max(0, len(sees) - MAX_SESSIONS) + max(0, len(waiting) - MAX_SESSIONS),
    }


def explain_session(service: DispatcherState, client: ClientRecord) -> dict[str, Any]:
    """What a session waits for, and what its principal is granted."""
    principal = client.program.principal
    limits = service.limits.of(principal)
    found: dict[str, Any] = {
        "session": client.number,
        "principal": principal,
        "priority": service.pacer.kind(client.number) or str(client.priority),
        "said": str(client.priority),
        "weight": client.weight,
        "queued": len(client.queue),
        "state": str(client.head) if client.queue else "",
        "waits": describe_wait(service, client) if client.queue else "",
        "granted": {name: value for name, value in limits._asdict().items() if value is not None},
        "sessions": sum(each.program.principal == principal for each in service.clients.values()),
        "moved": [client.account.moved, service.now - client.account.moved_at] if client.account.moved else [],
        "seconds": None,
        "first": [],
        "workers": [],
    }
    if client.queue and client.head is WAITING_RATE:
        due = service.rates.due_of(principal)
        found["seconds"] = max(0.0, due - service.now) if due < inf else None
    return found


def explain_pacing(service: DispatcherState, client: ClientRecord, *, names: bool) -> dict[str, Any]:
    """Whose plans run on a session's workers, what share it has of their time, and who is first. Without `names` it is not told
    who others are."""
    if client.mesh is None or client.mesh.number not in service.pacer.lanes:
        return {}

    def named(number: int) -> list[Any]:
        other = service.by_number.get(number)
        if other is None or (other.program.principal != client.program.principal and not names):
            return [ANOTHER, ""]
        return [number, other.program.principal]

    stands = standing(service.pacer, client.number, client.mesh.number, client.mesh.members, service.now)
    return {
        **({} if stands.waits is None else {"seconds": stands.waits}),
        "first": [named(number) for number in stands.first],
        "workers": [
            {
                "workers": list(each.workers), "share": each.share, "seconds": each.seconds, "waiting": each.waiting,
                "flights": [[*named(number), plans, seconds] for number, plans, seconds in each.flights],
            }
            for each in stands.workers
        ],
    }  # fmt: skip
