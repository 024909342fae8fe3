"""Fair shares of one worker's time: virtual times of principals, of the programs of each and of the sessions of each.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), once on each level. A share that uses the worker for some
nanoseconds moves forward by those, divided by its weight, and who is furthest behind has the next turn. A share that comes
back after a pause starts where the others are by now: what it did not use meanwhile is gone, and nobody pays for it.
"""

from __future__ import annotations

from collections.abc import Hashable


class Share:
    """A share of a worker's time, among its siblings. `clock` is the virtual time of its own parts."""

    __slots__ = ("active", "clock", "parent", "parts", "virtual", "weight")

    def __init__(self, parent: Share | None, weight: float = 1.0) -> None:
        self.parent = parent
        self.parts: list[Share] = []
        self.weight = weight
        self.virtual: float = 0.0 if parent is None else parent.clock
        self.clock: float = 0.0
        self.active = 0
        """How many meshes with something waiting or in flight are part of it."""

    @property
    def floor(self) -> float:
        """Where the active one of its parts is that is furthest behind. (`clock` stands still while a worker is kept free for a
        plan that other workers have no room for.)"""
        return min([part.virtual for part in self.parts if part.active], default=self.clock)


Key = tuple[Hashable, ...]
"""Names a share: (principal,), (principal, program) or (principal, program, mesh)."""


class WorkerShares:
    """The shares of one worker's time, as a tree of three levels."""

    def __init__(self) -> None:
        self.whole = Share(None)
        self.shares: dict[Key, Share] = {}

    def add(self, key: Key, weights: tuple[float, float, float]) -> None:
        """Note a session's mesh, with the weights of its principal, its program and itself."""
        parent = self.whole
        for level, weight in enumerate(weights, 1):
            share = self.shares.get(key[:level])
            if share is None:
                share = self.shares[key[:level]] = Share(parent, weight)
                parent.parts.append(share)
            share.weight = weight
            parent = share

    def remove(self, key: Key) -> None:
        """Forget an inactive mesh, and its program and principal with the last one."""
        for level in (3, 2, 1):
            share = self.shares[key[:level]]
            if share.parts:
                return
            del self.shares[key[:level]]
            assert share.parent is not None, "the whole is nobody's"
            share.parent.parts.remove(share)

    def path(self, key: Key) -> tuple[Share, Share, Share]:
        """The shares of a session: of its principal, its program and its own."""
        return self.shares[key[:1]], self.shares[key[:2]], self.shares[key]

    def begin(self, key: Key) -> None:
        """A session has something to run again."""
        for share in self.path(key):
            if not share.active and share.parent is not None:
                share.virtual = max(share.virtual, share.parent.clock)
            share.active += 1

    def end(self, key: Key) -> None:
        """A session has nothing waiting or in flight."""
        for share in self.path(key):
            share.active -= 1

    def charge(self, key: Key, nanoseconds: int, credit: int = 0) -> None:
        """A session's plan is released, which may be so far before others by its class."""
        for share in self.path(key):
            parent = share.parent
            assert parent is not None, "the whole is nobody's"
            parent.clock = max(parent.clock, share.virtual - credit)
            share.virtual += nanoseconds / share.weight

    def correct(self, key: Key, nanoseconds: int) -> None:
        """A plan has taken so much longer (or less) than was charged."""
        for share in self.path(key):
            share.virtual += nanoseconds / share.weight

    def copy(self) -> WorkerShares:
        """The same shares of another worker, on which the same sessions have run the same plans."""
        other = WorkerShares()
        other.whole.clock = self.whole.clock
        for key in sorted(self.shares, key=len):
            before = self.shares[key]
            parent = other.shares[key[:-1]] if len(key) > 1 else other.whole
            share = Share(parent, before.weight)
            parent.parts.append(share)
            share.virtual, share.clock, share.active = before.virtual, before.clock, before.active
            other.shares[key] = share
        return other
