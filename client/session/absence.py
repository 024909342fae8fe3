"""The absence of a dispatcher: what a session does when the service's dispatcher has ended, and another one is started.

The next dispatcher finds what the one before had of the session in its last mark, so the session opens new connections, says
`Hello` with its key, the number of that mark and how many messages it has sent, and goes back to it (`rewind.py`). Until then
nothing is sent: all of it is kept, and sent then. The functions here act on a session whose lock is held.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from gt.wire import messages as m

if TYPE_CHECKING:
    from .session import Session

log: Final = logging.getLogger("gt")
KEY_BYTES: Final = 16
"""The bytes of the key by which the next dispatcher knows a session. Nobody else can say it."""


class Absence(NamedTuple):
    """Since when a dispatcher is looked for (`time.monotonic`), and for how many seconds at most."""

    since: float
    patience: float


def look_for_dispatcher(session: Session, reason: str) -> bool:
    """Look for the next dispatcher, because the one that was there is gone, for this reason. Returns whether it can come: not
    if the session has kept nothing that could be sent again, or nobody starts another dispatcher."""
    kept, patience = session.kept, session.facts.get("returns")
    if session.failure is not None:
        return False
    if not session.welcomed:  # whoever opens it waits for so long as that may take
        return session.link.look_again(m.Hello(m.VERSION, "client", session.said))
    if kept is None or kept.lapsed or not isinstance(patience, (int, float)):
        return False
    search = session.link.search
    if search is not None and search.address:  # somebody may have to decide that it takes the place
        patience = max(float(patience), float(session.facts.get("lease", 0.0)))
    known = {} if search is None else search.known
    facts = {**session.said, "mark": kept.mark, "sent": kept.position, **known}
    if overdue(session) or not session.link.look_again(m.Hello(m.VERSION, "client", facts)):
        return False
    session.queued = None
    kept.durable = None  # what waited for answers comes too late: the session goes back to the mark that it has said
    if session.absence is None:
        log.warning(
            "the service at %s is gone (%s); the session waits up to %g s for it to be started again, and goes on then",
            session.name,
            reason,
            patience,
        )
        session.absence = Absence(time.monotonic(), float(patience))
    return True


def overdue(session: Session) -> str:
    """What to say of a dispatcher that was looked for too long; empty otherwise."""
    absence = session.absence
    if session.queued is not None:
        return ""  # one is there, and has it wait for its turn
    if absence is None or time.monotonic() - absence.since <= absence.patience:
        return ""
    return f"it ended, and was not started again within {absence.patience:g} s"
