"""Handlers of the dispatcher's messages to a client: each changes the session as its message says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gt.errors import OutOfMemory
from gt.wire import messages as m
from gt.wire.faults import error_of

from .rewind import go_back, mark_is_durable, note_progress, send_waiting, stop_keeping

if TYPE_CHECKING:
    from .session import Session

log: Final = logging.getLogger("gt")
MAX_REPORTED_ERRORS: Final = 64
"""Errors without a request that are remembered, so that they are not reported again when their messages are sent again."""


def _credit(session: Session, message: m.Credit) -> None:
    """The workers have finished runs and puts."""
    session.credited = max(session.credited, session.uncounted + message.done)
    kept = session.kept
    if kept is not None and kept.unsent:
        send_waiting(session, kept)
    if session.goes_back is not None:
        note_progress(session, answered=False)


def _answer(session: Session, message: m.Answer) -> None:
    """A request is answered."""
    future = session.requests.pop(message.request, None)
    if future is not None:
        future._answer(message.facts)
        if session.goes_back is not None:
            note_progress(session, answered=True)


def _cut(session: Session, message: m.Cut) -> None:
    """The parts of a bulk put are to go to these workers."""
    session.link.cut(message)


def _welcome(session: Session, message: m.Welcome) -> None:
    """The session has begun, or goes on at another dispatcher."""
    session.welcomed, session.queued = True, None
    session.facts.pop("continues", None)
    session.facts.update(message.facts, number=message.number)
    log.debug("joined the service at %s", session.name, extra={"client": message.number})
    session.credits = int(message.facts.get("credits", session.credits))
    if session.absence is not None:
        session.link.found_again(session.facts)


def _waits(session: Session, message: m.Queued) -> None:
    """The session waits in a queue for its turn."""
    session.queued = message


def _notice(session: Session, message: m.Notice) -> None:
    """The user should know this."""
    log.warning("%s", message.text)


def _stand_by(session: Session, message: m.StandBy) -> None:
    """Another dispatcher stands by for the one of the session."""
    if session.link.search is not None:
        session.link.search.address = message.address


def _goodbye(session: Session, message: m.Goodbye) -> None:
    """The service ends the session."""
    text = f"the service ended the session: {message.text or 'it stops'}"
    session.fail(error_of(message.kind or "SessionError", text))


def _value(session: Session, message: m.Value) -> None:
    """A part of a fetched value has come, or says where it waits."""
    future = session.requests.get(message.request)
    if future is None:
        if message.bulk:  # the fetch has failed since
            session.link.ignore(message)
        return
    try:
        future._part(message, session.link)
    except MemoryError as error:
        future._fail(OutOfMemory(f"{future.what} has no room in this process: {error}"))
        if message.bulk:
            session.link.ignore(message)
    if future._ready():
        session.requests.pop(message.request, None)
        session.link.settle(message.request)
        if session.goes_back is not None:
            note_progress(session, answered=True)
    elif message.bulk:
        future.add_done_callback(lambda _: session.requests.pop(message.request, None))


def _peer_lost(session: Session, message: m.PeerLost) -> None:
    """A worker is lost: what it would have sent fails."""
    for number, future in list(session.requests.items()):
        if future._missing is not None:  # its parts have begun to come, and the rest may never
            del session.requests[number]
            future._fail(error_of("WorkerLost", message.text))
    session.link.break_off(message.worker)


def _failed(session: Session, message: m.Failed) -> None:
    """A request failed, or something of which nothing else tells."""
    error = error_of(message.kind, message.text)
    future = session.requests.pop(message.request, None) if message.request else None
    if future is not None:
        future._fail(error)
        session.link.settle(message.request)
    elif not message.request:  # else it was asked again
        said = message.kind, message.text
        if session.repeated[said] > 0:
            session.repeated[said] -= 1
            return
        if session.kept is not None and len(session.reported) < MAX_REPORTED_ERRORS:
            session.reported[said] += 1
        session.pending_error = (
            session.pending_error or error
        )  # those that follow are often of what the first one left undone


MESSAGES: Final[dict[type, Callable[[Session, Any], None]]] = {
    m.Welcome: _welcome,
    m.Goodbye: _goodbye,
    m.Value: _value,
    m.Credit: _credit,
    m.Answer: _answer,
    m.Failed: _failed,
    m.Cut: _cut,
    m.PeerLost: _peer_lost,
    m.Notice: _notice,
    m.Queued: _waits,
    m.Durable: mark_is_durable,
    m.Rewind: go_back,
    m.Unkept: stop_keeping,
    m.StandBy: _stand_by,
}
"""The handler of each type of message from the dispatcher. Types without one, such as `Ping`, only show that it is alive."""
