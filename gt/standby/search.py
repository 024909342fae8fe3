"""Asking the dispatcher that stands by whether it serves.

A service tells its clients and workers where another dispatcher stands by. Who hears nothing of its own dispatcher for some
seconds says `Hello` there as a seeker. As long as the other one stands by, it answers nothing, and counts which workers ask; once
it serves it answers with its epoch. A seeker that hears its own dispatcher again asks no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.connection import Connection
from gt.wire.messages import codec
from gt.wire.transport import CurveKeys

SEEK_SECONDS: Final = 2.5
"""The seconds of silence after which the other dispatcher is asked; a dispatcher says something every second."""
PING_SECONDS: Final = 1.0


class StandbySearch:
    """Looks for the dispatcher at `address`, of which a service has told; empty: it has told of none. `service` and `epoch`
    are those of the last dispatcher that has let this client or worker in. `facts` are told with the question; the clock counts
    seconds."""

    def __init__(
        self, keys: CurveKeys | None, clock: Callable[[], float], facts: dict[str, Any] | None = None, *,
        service: int = 0, epoch: int = 0,
    ) -> None:  # fmt: skip
        self.keys = keys
        self.clock = clock
        self.facts = facts or {}
        self.address = ""
        self.service = service
        self.epoch = epoch
        self.connection: Connection | None = None
        self.said_at = 0.0

    def welcomed(self, address: str, facts: Mapping[str, Any]) -> None:
        """A dispatcher at `address` has let this process in, with these facts. Raises `ProtocolError` if its epoch is over."""
        service, epoch = int(facts.get("service", 0)), int(facts.get("epoch", 1))
        if service == self.service and epoch < self.epoch:
            raise ProtocolError(
                f"the dispatcher at {address} was replaced (its epoch {epoch} is before {self.epoch}): nothing it says counts"
            )
        self.service, self.epoch = service, epoch

    @property
    def known(self) -> dict[str, int]:
        """What it says of the dispatcher that it has known."""
        return {"service": self.service, "epoch": self.epoch} if self.epoch else {}

    def look(self, own: Connection | None) -> bool:
        """Whether the other dispatcher serves now; to be called several times a second, with the connection to the own one, None
        while that is looked for."""
        if not self.address or not (own is None or own.resuming or own.silent_seconds > SEEK_SECONDS):
            self.stop()
            return False
        connection, now = self.connection, self.clock()
        if connection is None or connection.failed:
            self.stop()
            connection = self.connection = Connection(self.address, lease=math.inf, clock=self.clock, keys=self.keys)
            hello = m.Hello(m.VERSION, "seeker", {**self.facts, **self.known})
            connection.send(codec.encode(hello))
            self.said_at = now
        elif now - self.said_at >= PING_SECONDS:
            self.said_at = now
            connection.send_unnumbered(codec.encode(m.Ping()))
        found = self._answered(connection)
        connection.look()
        return found

    def _answered(self, connection: Connection) -> bool:
        try:
            while (frames := connection.receive()) is not None:
                message = codec.decode(frames)
                if type(message) is m.Welcome:
                    service, epoch = message.facts.get("service"), message.facts.get("epoch")
                    return service == self.service and type(epoch) is int and epoch > self.epoch
        except ProtocolError:
            pass  # whatever listens there, it is no dispatcher
        return False

    @property
    def asks(self) -> bool:
        """Whether the other dispatcher is being asked."""
        return self.connection is not None

    def take(self) -> str:
        """The address of the other dispatcher, which is this process' own from now on."""
        self.stop()
        address, self.address = self.address, ""
        return address

    def stop(self) -> None:
        """Ask no more."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
