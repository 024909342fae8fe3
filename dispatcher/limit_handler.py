"""What an operator's limits do while a service runs: sessions that wait begin, and those that were there follow other limits.

What is granted is in `dispatcher/limits`; a new session is counted in `handlers/handshake.py`, its meshes in
`session_meshes/session_mesh.py`, and its runs in `handlers/runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gt.dispatcher.handlers.handshake import Handshake
from gt.dispatcher.handlers.message_queues import MessageQueues
from gt.dispatcher.limits.limit_table import LimitTable
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import SessionError
from gt.wire import messages as m

FOLLOW_PER_TURN: Final = 32
"""How many sessions follow other limits in one turn."""
BEGIN_PER_TURN: Final = 4
"""How many sessions that have waited begin in one turn."""
TOLD_PER_TURN: Final = 64
"""How many sessions are told their positions in one turn."""
RUNS_PER_EVENT: Final = 4
"""How many sessions go on in one event, because their principals may issue instructions again."""


class LimitHandler:
    """The limits in force."""

    def __init__(self, service: DispatcherState, handshake: Handshake, queues: MessageQueues) -> None:
        self.service = service
        self.handshake = handshake
        self.queues = queues
        self.following: list[int] = []
        """The sessions that have yet to get what their principals are granted now."""

    def adopt(self, table: LimitTable) -> None:
        """Grant principals what an operator's file says now."""
        self.service.adopt_limits(table)
        self.following = [*self.service.by_number]
        self.service.queued.due = True
        self.service.log("info", f"there are other limits now: {len(table.named)} principals have their own", "limits")

    def follow(self) -> Iterator[None]:
        """Gives sessions that were there what their principals are granted now, in turns."""
        while self.following:
            some, self.following[:FOLLOW_PER_TURN] = self.following[:FOLLOW_PER_TURN], []
            for number in some:
                self.service.pacer.follow(number)
                for record in self.service.meshes_of.get(number, ()):
                    self.service.multicast(record.mesh, self.service.charge(record))
            yield

    def let_begin(self) -> Iterator[None]:
        """Lets sessions begin that have waited until their principals have fewer, and tells the others their positions; in
        turns."""
        queued = self.service.queued
        while queued.due:
            queued.due = False
            for at, session in enumerate(queued.ready(self.handshake.room), 1):
                if queued.waiting.pop(session.peer, None) is not None:  # it may have left meanwhile
                    self._begin(session.peer)(*session.said)
                if at % BEGIN_PER_TURN == 0:
                    queued.due = True  # what was found may not hold after others' turns
                    break
            yield
            for at, session in enumerate(queued.moved_up(), 1):
                self.service.send(session.peer, m.Queued(session.told, self.handshake.reason(session.principal)))
                if at % TOLD_PER_TURN == 0:
                    yield

    def _begin(self, peer: bytes) -> Callable[..., None]:
        def begin(hello: m.Hello, origin: object) -> None:
            try:
                self.handshake.begin(peer, hello, origin)  # type: ignore[arg-type]
            except SessionError as error:
                self.service.send(peer, m.Goodbye("SessionError", str(error)))

        return begin

    def go_on(self) -> None:
        """Let sessions issue runs whose principals may issue instructions again."""
        for number in self.service.rates.turns(self.service.now, RUNS_PER_EVENT):
            client = self.service.by_number.get(number)
            if client is not None:
                self.queues.pump(client)
