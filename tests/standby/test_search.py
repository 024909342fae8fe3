"""Clients and workers look for the dispatcher that has taken the place of theirs, and obey none that was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gt.errors import ProtocolError
from gt.standby.search import SEEK_SECONDS, StandbySearch
from gt.wire import messages as m
from gt.wire.connection import Connection, SessionRouter
from gt.wire.messages import codec
from gt.wire.transport import unlink

TURNS = 2000
"""Far more looks, of a few milliseconds each, than anything here takes."""


class Stage(NamedTuple):
    """A search, the connection to its own dispatcher (to nobody), the socket of the other dispatcher, and the time."""

    search: StandbySearch
    own: Connection
    other: SessionRouter
    now: list[float]

    def until(self, ready: Callable[[], Any]) -> Any:
        for _ in range(TURNS):
            found = ready()
            if found:
                return found
            self.other.socket.poll(5)
            self.now[0] += 0.005
        raise AssertionError("it takes for ever")

    def hello(self) -> tuple[bytes, m.Hello]:
        """The next question that reaches the other dispatcher."""

        def heard() -> Any:
            assert not self.search.look(self.own)
            found = self.other.receive()
            return found if found is not None and len(found[1][0]) and type(codec.decode(found[1])) is m.Hello else None

        peer, frames, _ = self.until(heard)
        return peer, codec.decode(frames)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    now = [100.0]
    router = SessionRouter(f"ipc://{tmp_path}/other", 1 << 16)
    own = Connection(f"ipc://{tmp_path}/own", clock=lambda: now[0])
    search = StandbySearch(None, lambda: now[0], {"worker": "ipc:///w"})
    search.welcomed("own", {"service": 7, "epoch": 1})
    search.address = f"ipc://{tmp_path}/other"
    yield Stage(search, own, router, now)
    search.stop()
    own.close()
    unlink(router.socket)
    router.socket.close(linger=0)


def test_nobody_is_asked_while_the_own_dispatcher_is_heard(stage: Stage) -> None:
    assert not stage.search.look(stage.own)
    assert not stage.search.asks
    stage.now[0] += SEEK_SECONDS + 0.1
    assert not stage.search.look(stage.own)
    assert stage.search.asks
    stage.own._spoken = True
    assert not stage.search.look(stage.own)
    assert not stage.search.asks, "it was heard again"


def test_who_serves_is_found(stage: Stage) -> None:
    stage.now[0] += SEEK_SECONDS + 0.1
    peer, hello = stage.hello()
    assert (hello.role, hello.facts) == ("seeker", {"worker": "ipc:///w", "service": 7, "epoch": 1})
    stage.other.send(peer, codec.encode(m.Welcome(0, {"service": 7, "epoch": 2})))
    stage.until(lambda: stage.search.look(stage.own))
    assert stage.search.take().endswith("/other")
    assert not stage.search.address


@pytest.mark.parametrize("facts", [{"service": 7, "epoch": 1}, {"service": 8, "epoch": 2}, {"epoch": 2}, {}])
def test_others_are_not(stage: Stage, facts: dict[str, Any]) -> None:
    """The own dispatcher itself, at another address; and one of another service."""
    stage.now[0] += SEEK_SECONDS + 0.1
    peer, _ = stage.hello()
    stage.other.send(peer, codec.encode(m.Welcome(0, facts)))
    stage.other.send(peer, codec.encode(m.Ping()))
    connection = stage.search.connection
    assert connection is not None
    stage.until(lambda: stage.search.look(stage.own) or connection.stream.heard == 2)
    assert stage.search.asks


def test_it_is_asked_again_when_it_has_been_started_again(stage: Stage) -> None:
    stage.now[0] += SEEK_SECONDS + 0.1
    peer, _ = stage.hello()
    stage.other.forget(peer)
    stage.other.refuse(peer)
    again, _ = stage.hello()
    assert again != peer


def test_a_dispatcher_that_was_replaced_is_obeyed_no_more() -> None:
    search = StandbySearch(None, lambda: 0.0)
    assert search.known == {}
    search.welcomed("a", {"service": 7, "epoch": 2})
    assert search.known == {"service": 7, "epoch": 2}
    with pytest.raises(ProtocolError, match="was replaced"):
        search.welcomed("a", {"service": 7, "epoch": 1})
    search.welcomed("a", {"service": 8, "epoch": 1})
    assert search.known == {"service": 8, "epoch": 1}, "another service"
