"""The events that the dispatcher's core takes, and the `Send`s that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.wire import messages as m
from gt.wire.principals import OWN_PROCESS, Origin

if TYPE_CHECKING:
    from gt.sharding.config import Config

    from .session_marks import SessionMark


class Send(NamedTuple):
    """One message for a group of peers, all of which get the same bytes."""

    to: tuple[bytes, ...]
    message: m.Message


class Received(NamedTuple):
    """The next message of a peer's stream: each comes once, and in order. `origin` is told with a `Hello`."""

    peer: bytes
    message: Any
    unread: int = 0
    """The bytes that were sent to the peer and that it has not acknowledged."""
    origin: Origin = OWN_PROCESS


class Malformed(NamedTuple):
    """A peer sent something that is not a message."""

    peer: bytes
    reason: str


class Lost(NamedTuple):
    """A peer is gone. `ended` means that its process has certainly ended, though messages of it may still be unread."""

    peer: bytes
    reason: str
    ended: bool = False


class ShellError(NamedTuple):
    """The shell met an unexpected exception with a message from this peer, or to it; `bulk`: it is named by its bulk identity."""

    peer: bytes
    what: str
    error: Exception
    bulk: bool = False


class Tick(NamedTuple):
    """Time has passed."""


class JobTurn(NamedTuple):
    """The shell is idle: do one turn of the waiting jobs."""


class Publish(NamedTuple):
    """Send watchers the events so far. `wall` is the wall clock in nanoseconds since 1970."""

    wall: int


class Reload(NamedTuple):
    """The service has a new config. It applies to all sessions, under the configs that they sent themselves."""

    config: Config


class Remesh(NamedTuple):
    """A session makes its mesh anew on the workers that are in service now, because one has joined or is to leave."""

    why: str


class Recovery(NamedTuple):
    """A session goes back to a mark. It is the first in the queue of its new incarnation."""

    mark: SessionMark


OWN_MESSAGES: Final = (Recovery, Reload, Remesh)
"""What is in the queues of clients and was sent by none of them."""
Event = Received | Malformed | Lost | ShellError | Tick | Publish | Reload | JobTurn
