"""The admission of new plans to workers that have yet to compile others. Programs take turns, as they do for the
dispatcher's own work (`job_scheduler.py`).

A worker executes messages in one order, so everybody waits for what is already queued there. Compiling a new plan takes
far longer than running a known one, so a new plan is sent only while little waits to be compiled
(`DispatcherState.admits`). A session that waits for several workers is not overtaken by sessions that wait for only one
of them. Plans that ended sessions left on a worker count too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .round_robin import RoundRobin

if TYPE_CHECKING:
    from gt.dispatcher.state.records import ClientRecord
    from gt.dispatcher.state.shared_state import DispatcherState


class CompileAdmission:
    """The sessions that wait, each with one new plan."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service
        self.ring: RoundRobin[ClientRecord] = RoundRobin()
        self.waiting: set[int] = set()
        """The numbers of the clients in the ring."""
        self.admitted: set[int] = set()
        """The numbers of the clients whose turn has come."""

    def asks(self, client: ClientRecord) -> bool:
        """Whether a session may send a new plan to the workers of its mesh now. If not, it is queued for a turn."""
        assert client.mesh is not None, "a plan is for a mesh"
        if client.number in self.admitted:
            self.admitted.discard(client.number)
            return True
        if not self.ring and self.service.admits(client.mesh):
            return True
        if client.number not in self.waiting:
            self.waiting.add(client.number)
            self.ring.add(client.program, client)
        return False

    def forget(self, client: ClientRecord) -> None:
        """Remove a session that waits no longer."""
        self.admitted.discard(client.number)
        if client.number in self.waiting:
            self.waiting.discard(client.number)
            self.ring.remove(client.program, client)

    def turns(self) -> Iterator[ClientRecord]:
        """The clients whose turn has come. The caller lets each send its plan before it takes the next."""
        found = bool(self.ring)
        while found:
            found = False
            for client in self._pass():
                found = True
                yield client

    def _pass(self) -> Iterator[ClientRecord]:
        """One round: at most one session of each program."""
        reserved: set[int] = set()
        for program in self.ring.owners():
            if len(reserved) >= len(self.service.workers):
                return
            client = self.ring.first(program)
            mesh = client.mesh
            if mesh is not None and (not reserved.isdisjoint(mesh.members) or not self.service.admits(mesh)):
                reserved.update(mesh.members)
                continue
            self.ring.remove(program, client)
            self.waiting.discard(client.number)
            self.ring.later(program)
            self.admitted.add(client.number)
            yield client
