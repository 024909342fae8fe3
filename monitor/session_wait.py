"""Why a session waits, in plain English: the dispatcher's answer to `gt why --decision` as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The lines of an answer about some sessions."""
    for session in answer["sessions"]:
        yield from _session(session)
    for principal, position, _, reason in answer["queued"]:
        yield f"a session of {principal} is number {position} in the queue: {reason}"
    if answer["more"]:
        yield f"… and {answer['more']} more; name one by its number"
    if not answer["sessions"] and not answer["queued"]:
        yield "no session is there, and none waits to begin"


def _session(session: dict[str, Any]) -> Iterator[str]:
    said = "" if session["said"] == session["priority"] else f", it said {session['said']}"
    head = f"client {session['session']} of {session['principal']} ({session['priority']}{said})"
    if not session["queued"]:
        yield f"{head} waits for nothing at the dispatcher"
    else:
        seconds = session["seconds"]
        rate = session["state"] == "waiting for its rate"
        time = "" if seconds is None else f" ({_seconds(seconds)} {'more' if rate else 'so far'})"
        behind = session["queued"] - 1
        more = f"; {behind} {'message waits' if behind == 1 else 'messages wait'} behind that" if behind else ""
        yield f"{head} is {session['state']}{time}: {session['waits']}{more}"
    for part in session["workers"]:
        yield f"  {_workers(part['workers'])}: {_running(part['flights'], session)}; its share there is {part['share']:.0%} now"
    if session["first"]:
        yield f"  first have their turns: {', '.join(_who(number, principal, session) for number, principal in session['first'])}"
    if session.get("moved"):
        text, ago = session["moved"]
        yield f"  it has moved {text}, {_seconds(ago)} ago"
    yield f"  granted: {_granted(session)}"


def _workers(numbers: list[int]) -> str:
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(map(str, numbers))}, each"


def _running(flights: list[list[Any]], session: dict[str, Any]) -> str:
    """Whose plans are in flight."""
    if not flights:
        return "nothing is in flight"
    others = [each for each in flights if each[0] < 0]
    parts = [
        _plans(_who(number, principal, session), plans, spent)
        for number, principal, plans, spent in flights
        if number >= 0
    ]
    if others:
        parts.append(_plans("others", sum(each[2] for each in others), sum(each[3] for each in others)))
    return f"in flight: {', '.join(parts)}"


def _plans(who: str, plans: int, seconds: float) -> str:
    return f"{plans} {'plan' if plans == 1 else 'plans'} of {who} ({_seconds(seconds)})"


def _who(number: int, principal: str, session: dict[str, Any]) -> str:
    if number < 0:
        return "another user's session"
    if number == session["session"]:
        return "its own"
    return f"client {number}" if principal == session["principal"] else f"client {number} of {principal}"


def _granted(session: dict[str, Any]) -> str:
    """What its principal is granted."""
    granted = session["granted"]
    parts = [f"weight {granted['weight']:g}"]
    if granted["reserved"]:
        parts.append(f"{granted['reserved']:.0%} of the time reserved")
    if "sessions" in granted:
        parts.append(f"{_count(granted['sessions'], 'session')} at a time ({session['sessions']} now)")
    if "workers" in granted:
        parts.append(_count(granted["workers"], "worker"))
    if "live_bytes" in granted:
        parts.append(f"{granted['live_bytes']:,} bytes on each worker")
    if "instructions_per_second" in granted:
        parts.append(f"{granted['instructions_per_second']:,.0f} instructions a second")
    if granted["priority"] != "interactive":
        parts.append(f"class {granted['priority']} at most")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
