"""What came back into memory is still where it was outside, and as values never change it can go out again for nothing.

A copy is kept as long as the memory lives and nobody needs the room. It is believed only while one of the places whose value
it was has held that value ever since, for only then nobody was allowed to write there (`own.py`): a tensor in store is
nobody's to write to, and its number is never given again. Slots are used again, but within one run that is careful no step
writes in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from .residency import Place
from .spill import Outside


@dataclass(slots=True)
class _Copy:
    root: weakref.ref[Any]
    outside: Outside
    places: set[Place] = field(default_factory=set)


class Copies:
    """By the key of a buffer that is inside, where it still is outside."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _Copy] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(copy.outside.nbytes for copy in self.kept.values())

    def keep(self, key: Hashable, root: Any, outside: Outside, place: Place) -> None:
        """The value in a place looks at a buffer that has come in from `outside`; `root` lives as long as its memory."""
        known = self.kept.get(key)
        if known is None or known.outside is not outside or known.root() is not root:
            known = self.kept[key] = _Copy(weakref.ref(root, lambda dead: self._gone(key, dead)), outside)
        known.places.add(place)

    def of(self, key: Hashable, places: Collection[Place]) -> Outside | None:
        """Where a buffer still is outside, at which the values in these places look; None where that is not sure."""
        known = self.kept.get(key)
        if known is None or known.root() is None or known.places.isdisjoint(places):
            return None
        return known.outside

    def drop(self, key: Hashable) -> None:
        """A buffer has gone out, or its copy is needed no more."""
        self.kept.pop(key, None)

    def drop_pinned(self, enough: Callable[[], bool]) -> None:
        """Give up copies in pinned memory, the oldest first, until it is enough."""
        for key in [key for key, copy in self.kept.items() if copy.outside.pinned is not None]:
            if enough():
                return
            del self.kept[key]

    def forget_slots(self) -> None:
        """Another run has begun: slots mean other values."""
        for key, copy in list(self.kept.items()):
            copy.places = {place for place in copy.places if not isinstance(place, int)}
            if not copy.places:
                del self.kept[key]

    def _gone(self, key: Hashable, dead: weakref.ref[Any]) -> None:
        known = self.kept.get(key)
        if known is not None and known.root is dead:
            del self.kept[key]
