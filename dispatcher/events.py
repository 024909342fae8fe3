"""What the dispatcher's core takes, `Event`, and what it gives, `Send`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt import messages as m

if TYPE_CHECKING:
    from gt.config import Config


class Send(NamedTuple):
    """One message for a group of peers, which all get the same bytes."""

    to: tuple[bytes, ...]
    message: m.Message


class Received(NamedTuple):
    """A message from a peer, the `number`th that it sent."""

    peer: bytes
    number: int
    message: Any


class Malformed(NamedTuple):
    """Something that is no message."""

    peer: bytes
    reason: str


class Lost(NamedTuple):
    """A peer is gone; `ended`: its process is for certain, though what it had sent may not have been read yet."""

    peer: bytes
    reason: str
    ended: bool = False


class Tick(NamedTuple):
    """Time has passed."""


class Work(NamedTuple):
    """Nothing else is to be done: time for a little of what is being worked out."""


class Publish(NamedTuple):
    """It is time to tell the watchers what has happened; `wall` is the wall clock in nanoseconds since 1970."""

    wall: int


class Reload(NamedTuple):
    """The service has another config from now on; it holds for all sessions, under what they brought themselves."""

    config: Config


Event = Received | Malformed | Lost | Tick | Publish | Reload | Work
