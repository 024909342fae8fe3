"""Marks and rewinds of a session: what it does when the service has a copy of it, or has lost something and goes back to one.

The values of a session are those of its stream, so nothing is lost as long as the stream can be sent again from a mark on. What
is kept for that is in `resend_buffer.py`. The functions here act on a session whose lock is held.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.errors import GTError
from gt.wire import messages as m
from gt.wire.faults import error_of

from .resend_buffer import FETCH, ResendBuffer

if TYPE_CHECKING:
    from .future import Future
    from .session import Session

log: Final = logging.getLogger("gt")


class Rewinding(NamedTuple):
    """A session that goes back: since when (`time.monotonic`), and how many runs and puts it had sent by then."""

    since: float
    sent: int


def mark_is_durable(session: Session, message: m.Durable) -> None:
    """Note a mark; it replaces one that waits for answers still."""
    if session.kept is not None and not session.kept.lapsed:
        session.kept.durable = message  # `Session.pump` settles it


def settle(session: Session, kept: ResendBuffer) -> None:
    """Make the mark that is durable the last one, if all requests before it are answered."""
    with session.exclusive():
        mark = kept.settle(session.requests)
        if mark is not None and session.failure is None:
            session.reported.clear()
            session.repeated.clear()
            session.link.give_up_lost()
            session.link.send(m.Settled(mark))


def stop_keeping(session: Session, message: m.Unkept) -> None:
    """Keep nothing any more, because there will be no mark."""
    kept = session.kept
    if kept is None or kept.lapsed:
        return
    log.warning("when a worker is lost, this session loses its tensors: %s", message.text)
    session.link.give_up_lost()
    kept.lapse()
    if not kept.unsent:
        session.kept = None


def go_back(session: Session, message: m.Rewind) -> None:
    """Go back to the last mark, and send again what came after it. If that was not kept, all begins anew, and requests fail."""
    if session.failure is not None:
        return
    failed: list[tuple[Future, str]] = []
    with session.exclusive():
        absence, goes_back = session.absence, session.goes_back
        since = goes_back.since if goes_back else absence.since if absence else time.monotonic()
        session.goes_back = Rewinding(since, session.sent)
        kept = session.kept
        if kept is not None and kept.lapsed:
            kept = session.kept = None
        session.facts["number"] = message.session
        session.absence = None
        session.link.rewind(message.session, message.lost, {} if kept is None else kept.puts)
        session.ahead.clear()
        for number, future in list(session.requests.items()):
            if kept is None:
                failed.append((session.requests.pop(number), message.text))
            else:
                future._start_afresh()
        if kept is None:
            log.warning("the session begins anew, without its tensors: %s", message.text)
            session.definitions.forget()
            session.credited = session.uncounted = session.sent
            session.link.send(m.Resume(message.session, -1))
        else:
            place = "last mark" if kept.mark else "beginning"
            log.warning(
                "the session goes back to its %s, and what came after is computed again; nothing is lost: %s",
                place,
                message.text,
            )
            kept.rewind()
            session.credited = kept.done
            session.repeated = session.reported.copy()
            session.link.send(m.Resume(message.session, kept.mark))
            send_waiting(session, kept)
    for future, text in failed:  # callbacks of the program may send
        future._fail(_rewound(future.what, text))


def note_progress(session: Session, *, answered: bool) -> None:
    """Note that the service has `answered` the session, or finished runs of it: whether it goes on after it went back."""
    rewinding = session.goes_back
    if rewinding is None or (session.kept is not None and session.kept.unsent):
        return
    if answered or session.credited >= rewinding.sent:
        session.goes_back = None
        log.info("the session goes on after %.1f s", time.monotonic() - rewinding.since)


def _rewound(what: str, text: str) -> GTError:
    return error_of(
        "WorkerLost", f"{what} was under way when the session went back, and does not come: {text}; ask again"
    )


def send_waiting(session: Session, kept: ResendBuffer) -> None:
    """Send again as much as credits allow, and then what has come behind it."""
    with session.exclusive():
        while (found := kept.next(session.requests, session.credited, session.credits)) is not None:
            frames, kind, number = found
            session.link.send_frames(frames)
            if kind == FETCH:
                future = session.requests[number]
                assert future._spec is not None, "that of the tensor"
                future._array = session.link.offer_fetch(number, future._spec)
        if kept.lapsed and not kept.unsent:
            session.kept = None
