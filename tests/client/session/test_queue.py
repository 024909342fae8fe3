"""A session that waits in the service's queue until its turn has come."""

from __future__ import annotations

import logging

import pytest
from scripted_link import ScriptedLink

from gt.client.session.session import Session
from gt.errors import ConnectionFailed
from gt.wire import messages as m


def waiting(*later: m.Message) -> tuple[Session, ScriptedLink]:
    """A session that hears that it waits, and then one message after the other."""
    link = ScriptedLink(1 << 30)
    link.inbox.append(m.Queued(3, "user 7 may have 2 sessions at a time"))
    link.waits = lambda left=[*later]: link.inbox.extend([left.pop(0)] if left else [])  # type: ignore[misc]
    session = link.session = Session(link, "scripted", idle_flush=False)
    return session, link


def test_it_says_once_that_it_waits_and_goes_on_when_it_is_welcome(caplog: pytest.LogCaptureFixture) -> None:
    session, link = waiting(m.Queued(2, "the same"), m.Queued(1, "the same"), m.Welcome(4, {}))
    with caplog.at_level(logging.WARNING, "gt"):
        session.open({}, 1.0)
    assert session.welcomed
    assert len(link.told(m.Hello)) == 1
    (said,) = caplog.messages
    assert said.startswith(
        "this session is number 3 in the queue at scripted, and begins when its turn has come: user 7 may"
    )


def test_it_waits_no_longer_than_it_was_told_to() -> None:
    session, _ = waiting(m.Queued(2, "user 7 may have 2 sessions at a time"))
    with pytest.raises(ConnectionFailed) as late:
        session.open({}, 1.0, patience=0.0)
    assert str(late.value) == (
        "this session is still number 3 in the queue at scripted after 0 s: user 7 may have 2 sessions at a time; end another "
        "session, or wait longer (timeout=)"
    )
