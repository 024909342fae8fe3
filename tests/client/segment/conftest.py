"""A session in memory and what it sends, for tests of the builder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.session import sessions
from gt.wire import messages as m
from gt.wire.messages import codec


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a session with one worker sends, each message as the dispatcher's decoder reads it."""
    gt.connect("inproc", workers=1)
    link = sessions.current().link
    messages: list[Any] = []
    send = link.send

    def noted(message: m.Message) -> None:
        messages.append(codec.decode(codec.encode(message), codec.TO_DISPATCHER))
        send(message)

    monkeypatch.setattr(link, "send", noted)
    yield messages
    for builder in sessions.current().builders:
        builder.check()
    gt.disconnect()
