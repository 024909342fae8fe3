"""Whose new plan the workers compile next: programs take turns, as with what the dispatcher works out (`turns.py`).

A worker does what it is told in one order, so what lies before it is waited for by everybody. A plan that is new to it takes far
longer than one that is not; so a plan is sent only where little waits to be compiled (`Service.admits`). Who waits for
several workers is not overtaken by those who wait for one of them. What sessions that have ended left before a worker counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .turns import Ring

if TYPE_CHECKING:
    from .directory import Client
    from .service import Service


class Admission:
    """Sessions that each wait with one new plan."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.ring: Ring[Client] = Ring()
        self.waiting: set[int] = set()
        """The numbers of those in the ring."""
        self.admitted: set[int] = set()
        """Of those whose turn has come."""

    def asks(self, client: Client) -> bool:
        """Whether a session may send a new plan to the workers of its mesh now; if not, its turn will come."""
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

    def forget(self, client: Client) -> None:
        """It waits no longer."""
        self.admitted.discard(client.number)
        if client.number in self.waiting:
            self.waiting.discard(client.number)
            self.ring.remove(client.program, client)

    def turns(self) -> Iterator[Client]:
        """Those whose turn has come. Whoever iterates has each send its plan before the next."""
        found = bool(self.ring)
        while found:
            found = False
            for client in self._pass():
                found = True
                yield client

    def _pass(self) -> Iterator[Client]:
        """One of each program."""
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
