"""Clean copies: restored buffers whose copies in a lower tier are still valid, so evicting them again costs nothing.

A copy is kept as long as its buffer lives and nobody needs the room. It is trusted only if one of the places whose value it
was has held that value ever since, because only then nobody was allowed to write to the buffer
(`worker/device/exclusive_array.py`): nobody writes to a stored tensor, and its number is never used again. Slots are reused,
but within one low-memory run no step writes in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from .eviction import ValuePlace
from .spill_file import SpilledBuffer


@dataclass(slots=True)
class _CleanCopy:
    root: weakref.ref[Any]
    outside: SpilledBuffer
    places: set[ValuePlace] = field(default_factory=set)


class CleanCopies:
    """By the key of a buffer that is inside: where it still is outside."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, _CleanCopy] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(copy.outside.nbytes for copy in self.kept.values())

    def keep(self, key: Hashable, root: Any, outside: SpilledBuffer, place: ValuePlace) -> None:
        """The value in a place looks at a buffer that was restored from `outside`; `root` lives as long as its memory."""
        known = self.kept.get(key)
        if known is None or known.outside is not outside or known.root() is not root:
            known = self.kept[key] = _CleanCopy(weakref.ref(root, lambda dead: self._gone(key, dead)), outside)
        known.places.add(place)

    def of(self, key: Hashable, places: Collection[ValuePlace]) -> SpilledBuffer | None:
        """Where the buffer of the values in these places still is outside; None if that is not certain."""
        known = self.kept.get(key)
        if known is None or known.root() is None or known.places.isdisjoint(places):
            return None
        return known.outside

    def drop(self, key: Hashable) -> None:
        """Forget a copy, because its buffer was evicted or nobody needs it."""
        self.kept.pop(key, None)

    def drop_pinned(self, enough: Callable[[], bool]) -> None:
        """Give up copies in pinned memory, the oldest first, until there is enough room."""
        for key in [key for key, copy in self.kept.items() if copy.outside.pinned is not None]:
            if enough():
                return
            del self.kept[key]

    def forget_slots(self) -> None:
        """Forget slots at the beginning of another run, in which they hold other values."""
        for key, copy in list(self.kept.items()):
            copy.places = {place for place in copy.places if not isinstance(place, int)}
            if not copy.places:
                del self.kept[key]

    def _gone(self, key: Hashable, dead: weakref.ref[Any]) -> None:
        known = self.kept.get(key)
        if known is not None and known.root is dead:
            del self.kept[key]
