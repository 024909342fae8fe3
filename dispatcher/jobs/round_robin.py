"""A round-robin queue over principals, their programs and what these have in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from itertools import zip_longest
from typing import Final, Generic, TypeVar

from gt.wire.principals import ProgramIdentity

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """A round-robin queue: principals take turns, so do the programs of each principal, and the items of each program. Those
    without items are left out. An owner that is no `ProgramIdentity` is a principal of its own."""

    def __init__(self) -> None:
        self.order: deque[Hashable] = deque()
        """The principals."""
        self.programs: dict[Hashable, deque[Hashable]] = {}
        """The owners of each principal."""
        self.owned: dict[Hashable, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.order)

    def add(self, owner: Hashable, thing: T) -> None:
        """Add an item behind the others of its owner."""
        if owner not in self.owned:
            self.owned[owner] = deque()
            principal = _principal_of(owner)
            if principal not in self.programs:
                self.programs[principal] = deque()
                self.order.append(principal)
            self.programs[principal].append(owner)
        self.owned[owner].append(thing)

    def remove(self, owner: Hashable, thing: T) -> None:
        """Remove an item."""
        own = self.owned[owner]
        own.remove(thing)
        if own:
            return
        del self.owned[owner]
        principal = _principal_of(owner)
        programs = self.programs[principal]
        programs.remove(owner)
        if not programs:
            del self.programs[principal]
            self.order.remove(principal)

    def owners(self) -> list[Hashable]:
        """The owners, in the order of their turns: one of each principal, then a second one of each, and so on."""
        rounds = zip_longest(*(self.programs[principal] for principal in self.order), fillvalue=_NOBODY)
        return [owner for turn in rounds for owner in turn if owner is not _NOBODY]

    def first(self, owner: Hashable) -> T:
        """The owner's item whose turn it is."""
        return self.owned[owner][0]

    def later(self, owner: Hashable) -> None:
        """Put an owner behind all others of its principal, if it has any item left, and its principal behind all others."""
        principal = _principal_of(owner)
        if owner in self.owned:
            self.programs[principal].remove(owner)
            self.programs[principal].append(owner)
        if principal in self.programs:
            self.order.remove(principal)
            self.order.append(principal)

    def next(self, rests: Callable[[Hashable], bool] = lambda principal: False) -> T:
        """The item whose turn it is: of the next principal that does not rest, if there is one. Then it is the next principal's
        turn, and later that of this one's next program and item."""
        for _ in self.programs:
            if not rests(self.order[0]):
                break
            self.order.rotate(-1)
        programs = self.programs[self.order[0]]
        own = self.owned[programs[0]]
        for ring in (self.order, programs, own):
            ring.rotate(-1)
        return own[-1]

    def check(self) -> None:
        """The invariants."""
        assert sorted(map(repr, self.order)) == sorted(map(repr, self.programs))
        owners = [owner for programs in self.programs.values() for owner in programs]
        assert sorted(map(repr, owners)) == sorted(map(repr, self.owned))
        assert all(self.owned.values())
        assert all(self.programs.values())


_NOBODY: Final = object()


def _principal_of(owner: Hashable) -> Hashable:
    return owner.principal if isinstance(owner, ProgramIdentity) else owner
