"""The events that the dispatcher's core takes, and the `Send`s that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt.wire import messages as m
from gt.wire.principals import OWN_PROCESS, Origin

if TYPE_CHECKING:
    from gt.sharding.config import Config


class Send(NamedTuple):
    """One message for a group of peers, all of which get the same bytes."""

    to: tuple[bytes, ...]
    message: m.Message


class Received(NamedTuple):
    """Message `number` of a peer's stream. `origin` is told with a `Hello`."""

    peer: bytes
    number: int
    message: Any
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


Event = Received | Malformed | Lost | Tick | Publish | Reload | JobTurn
