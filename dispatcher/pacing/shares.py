"""Fair shares of one worker's time: virtual times of principals, of the programs of each and of the sessions of each.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), once on each level. A share that uses the worker for some
nanoseconds moves forward by those, divided by its weight, and who is furthest behind has the next turn. A share that comes
back after a pause starts where the others are by now: what it did not use meanwhile is gone, and nobody pays for it.

A principal may have a part of the time reserved. While its weight alone would give it less beside those that are active, it
counts with the weight that gives it just that (`rates`); the others divide the rest by their weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Share:
    """A share of a worker's time, among its siblings. `clock` is the virtual time of its own parts."""

    __slots__ = ("active", "clock", "number", "parent", "parts", "rate", "reserved", "virtual", "weight")

    def __init__(self, parent: Share | None, number: int = 0) -> None:
        self.parent = parent
        self.number = number
        """Which one of its worker's it is, from the first that came on."""
        self.parts: list[Share] = []
        self.weight = 1.0
        self.reserved = 0.0
        """The part of the parent's time that it gets at least while it is active."""
        self.rate = 1.0
        """The weight with which it counts now."""
        self.virtual: float = 0.0 if parent is None else parent.clock
        self.clock: float = 0.0
        self.active = 0
        """How many meshes with something waiting or in flight are part of it."""

    @property
    def floor(self) -> float:
        """Where the active one of its parts is that is furthest behind. (`clock` stands still while a worker is kept free for a
        plan that other workers have no room for.)"""
        return min([part.virtual for part in self.parts if part.active], default=self.clock)

    def entitle(self, weight: float, reserved: float = 0.0) -> None:
        """Give it another weight, and another part that is reserved."""
        if (weight, reserved) == (self.weight, self.reserved):
            return
        touched = reserved > 0 or self.reserved > 0
        self.weight = self.rate = weight
        self.reserved = reserved
        if self.parent is not None:
            self.parent.divide(changed=touched)

    def divide(self, *, changed: bool = False) -> None:
        """Find out with which weights its active parts count, if any of them has a reserved part, or had (`changed`)."""
        if not changed and not any(part.reserved for part in self.parts):
            return
        active = [part for part in self.parts if part.active]
        for part, rate in zip(active, rates([(part.weight, part.reserved) for part in active]), strict=True):
            part.rate = rate


def rates(parts: Sequence[tuple[float, float]]) -> list[float]:
    """The weights with which parts count, each given with its weight and its reserved share of the whole: as they are, but
    larger for those that would have less than their reserved share. The reserved shares are less than 1 in all."""
    bound: set[int] = set()
    while True:
        left = 1.0 - sum(parts[at][1] for at in bound)
        weights = sum(weight for at, (weight, _) in enumerate(parts) if at not in bound)
        more = {at for at, (weight, reserved) in enumerate(parts) if reserved * weights > left * weight} - bound
        if not more:
            return [reserved * weights / left if at in bound else weight for at, (weight, reserved) in enumerate(parts)]
        bound |= more


Key = tuple[Hashable, ...]
"""Names a share: (principal,), (principal, program) or (principal, program, mesh)."""


class WorkerShares:
    """The shares of one worker's time, as a tree of three levels."""

    def __init__(self) -> None:
        self.whole = Share(None)
        self.shares: dict[Key, Share] = {}
        self.made = 0

    def add(self, key: Key, weights: tuple[float, float, float], reserved: float = 0.0) -> None:
        """Note a session's mesh, with the weights of its principal, its program and itself, and what is reserved for the
        principal."""
        parent = self.whole
        for level in (1, 2, 3):
            share = self.shares.get(key[:level])
            if share is None:
                self.made += 1
                share = self.shares[key[:level]] = Share(parent, self.made)
                parent.parts.append(share)
            parent = share
        self.entitle(key, weights, reserved)

    def entitle(self, key: Key, weights: tuple[float, float, float], reserved: float) -> None:
        """Give the principal, the program and the mesh of a session these weights."""
        for share, weight, part in zip(self.path(key), weights, (reserved, 0.0, 0.0), strict=True):
            share.entitle(weight, part)

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
            if share.active == 1 and share.parent is self.whole:
                self.whole.divide()

    def end(self, key: Key) -> None:
        """A session has nothing waiting or in flight."""
        for share in self.path(key):
            share.active -= 1
            if not share.active and share.parent is self.whole:
                share.rate = share.weight
                self.whole.divide()

    def charge(self, key: Key, nanoseconds: int, credit: int = 0) -> None:
        """A session's plan is released, which may be so far before others by its class."""
        for share in self.path(key):
            parent = share.parent
            assert parent is not None, "the whole is nobody's"
            parent.clock = max(parent.clock, share.virtual - credit)
            share.virtual += nanoseconds / share.rate

    def correct(self, key: Key, nanoseconds: int) -> tuple[Share, Share, Share]:
        """A plan has taken so much longer (or less) than was charged. Returns what has moved."""
        path = self.path(key)
        for share in path:
            share.virtual += nanoseconds / share.rate
        return path

    def forfeit(self, key: Key, nanoseconds: int) -> None:
        """A principal is from now on at most so many virtual nanoseconds behind the one that had the last turn."""
        share = self.shares[key[:1]]
        share.virtual = max(share.virtual, self.whole.clock - nanoseconds)

    def copy(self) -> WorkerShares:
        """The same shares of another worker, on which the same sessions have run the same plans."""
        other = WorkerShares()
        other.whole.clock = self.whole.clock
        other.made = self.made
        for key in sorted(self.shares, key=len):
            before = self.shares[key]
            parent = other.shares[key[:-1]] if len(key) > 1 else other.whole
            share = Share(parent, before.number)
            share.weight, share.reserved = before.weight, before.reserved
            parent.parts.append(share)
            share.virtual, share.clock, share.active = before.virtual, before.clock, before.active
            share.rate = before.rate
            other.shares[key] = share
        return other
