"""Memory of CUDA graphs: what only their kernels read lies in one arena, what comes out in places that are lent to one value at a
time. Logic alone: the device is asked by whoever has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .capture import Taken

if TYPE_CHECKING:
    from .graphs import Graphs

ALIGNED: Final = 512
"""What memory of the device begins at a multiple of."""


class Dealt(NamedTuple):
    """Where each allocation of a passage goes: to its arena from this byte on, or (None) to a place of its own."""

    sizes: tuple[int, ...]
    offsets: tuple[int | None, ...]
    arena: int


def deal(log: Sequence[Taken]) -> Dealt:
    """Lay out memory whose lives are known: what is free again before the end lies in one arena, each in the first gap that is
    large enough; what is not has a place."""
    sizes = [taken.nbytes for taken in log if taken.nbytes >= 0]
    ended = {taken.number for taken in log if taken.nbytes < 0}
    offsets: list[int | None] = [None] * len(sizes)
    live: dict[int, tuple[int, int]] = {}
    arena = 0
    for number, nbytes in log:
        if nbytes < 0:
            live.pop(number, None)
        elif number in ended:
            size, start = -(-nbytes // ALIGNED) * ALIGNED, 0
            for first, last in sorted(live.values()):
                if first - start >= size:
                    break
                start = max(start, last)
            live[number] = (start, start + size)
            offsets[number] = start
            arena = max(arena, start + size)
    return Dealt(tuple(sizes), tuple(offsets), arena)


class Root:
    """What arrays over a place hold, as long as there are any."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Any) -> None:
        self.block = block


class Held:
    """Memory of the device that graphs have."""

    def __init__(self, graphs: Graphs, nbytes: int) -> None:
        self.block, self.nbytes = graphs.device.block(nbytes), nbytes
        self._graphs = graphs
        graphs.total += nbytes

    def __del__(self) -> None:
        if hasattr(self, "_graphs"):
            self._graphs.total -= self.nbytes


class Place(Held):
    """Memory for a result of a passage, lent to one value at a time."""

    def __init__(self, graphs: Graphs, nbytes: int) -> None:
        super().__init__(graphs, nbytes)
        self._lent: weakref.ref[Root] | None = None
        self.memory = graphs.device.seen(self.block).memory
        graphs.ours.add(self.memory)

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "memory"):
            self._graphs.ours.discard(self.memory)

    @property
    def free(self) -> bool:
        return self._lent is None or self._lent() is None

    def lend(self) -> Root:
        """For a value; it is back when nobody has the root."""
        assert self.free, "one value at a time"
        root = Root(self.block)
        self._lent = weakref.ref(root)
        return root
