"""The end of a session: nothing is sent after the farewell, whatever another thread was about to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.client.session.sigint_lock import Exclusive
from gt.errors import SessionError
from gt.wire import messages as m


class ClosedFirst(Exclusive):
    """The lock of a session that another thread closes just before this one gets it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.armed = False

    def __enter__(self) -> None:
        if self.armed:
            self.armed = False
            self.session.close()
        super().__enter__()


class Heard:
    """A link that notes what it sends."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.sent: list[m.Message] = []

    def send(self, message: m.Message) -> None:
        self.sent.append(message)
        self.link.send(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


@pytest.fixture
def session() -> Iterator[Session]:
    gt.connect("inproc", workers=1)
    yield sessions.current()
    gt.disconnect()


CALLS: dict[str, Callable[[Session, Any], Any]] = {
    "fetch": lambda session, x: session.fetch(x._value),
    "put": lambda session, x: session.put(np.ones(3), ()),
    "ask": lambda session, x: session.inquire("statistics", None),
    "configure": lambda session, x: session.configure({}),
    "options": lambda session, x: session.set_options({}),
}


@pytest.mark.parametrize("call", CALLS)
def test_nothing_follows_the_farewell(session: Session, call: str) -> None:
    x = gt.ones(3)
    x.numpy()
    heard: Any = Heard(session.link)
    session.link = heard
    lock = ClosedFirst(session)
    session._exclusive, session.lock = lock, lock.lock
    lock.armed = True
    with pytest.raises(SessionError, match="the session has ended"):
        CALLS[call](session, x)
    assert isinstance(heard.sent[-1], m.Goodbye)
