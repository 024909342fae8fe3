"""The messages that begin and end a connection to the dispatcher, whoever is at its other end."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

VERSION: Final = 19
"""The protocol's version, said in the first message of each side; a different one is refused with both numbers."""

DRAINED: Final = "Drained"
"""The `kind` of the `Goodbye` to a worker that is to end because it was drained."""


class Hello(NamedTuple):
    """The first message of a connection to the dispatcher's control socket.

    From client, worker, pulse, watcher, inquirer or standby to dispatcher.

    * `version`: the protocol's version; another one than the dispatcher's is refused by a `Goodbye`.
    * `role`: 'client'; 'worker'; 'pulse', the sign of life of a worker that is deep in a kernel; 'watcher', a monitor; 'standby',
      another dispatcher that would take the receiver's place; 'seeker', a client or worker that asks who serves; 'inquirer', who
      asks why a session waits; or 'prober', who asks whether the service is well, and joins nothing.
    * `facts`: about the sender, such as its process and device, and the highest epoch of a dispatcher that it has known.
    """

    version: int
    role: str
    facts: dict[str, Any]


class Welcome(NamedTuple):
    """The answer to `Hello`: the peer has joined.

    From dispatcher to client, worker, pulse, watcher, inquirer or standby.

    * `number`: by which the dispatcher knows a client (from 1) or worker (from 0); 0 for others.
    * `facts`: about the service, such as the address of its bulk socket.
    """

    number: int
    facts: dict[str, Any]


class Queued(NamedTuple):
    """The session waits until its principal has fewer: a `Welcome` follows then, and until then only `Ping` and `Goodbye` are
    said. Told again when the position changes.

    From dispatcher to client.

    * `position`: its place among those of its principal that wait, from 1.
    * `text`: which limit it waits for.
    """

    position: int
    text: str


class Ping(NamedTuple):
    """A sign of life, when there is nothing else to say.

    From client, worker, pulse, watcher, inquirer or standby to dispatcher;
    from dispatcher to client, worker, watcher, inquirer or standby.
    """


class Goodbye(NamedTuple):
    """The sender ends the session.

    From client, worker, watcher, inquirer or standby to dispatcher;
    from dispatcher to client, worker, pulse, watcher, inquirer or standby.

    * `kind`: the name of an error; empty for an orderly end.
    * `text`: the reason.
    """

    kind: str
    text: str


class StandBy(NamedTuple):
    """Another dispatcher stands by: who hears nothing of the sender for a while asks there who serves.

    From dispatcher to client or worker.

    * `address`: where that one listens.
    """

    address: str
