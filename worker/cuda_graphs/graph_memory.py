"""The memory of CUDA graphs.

What only a graph's own kernels read lies in an arena, which all graphs share. Each result has a place, which is lent to one
value at a time. This module decides what lies where; `worker/device/graph_capture.py` deals with the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.worker.device.graph_capture import AllocationEvent

if TYPE_CHECKING:
    from .graphs import CudaGraphs

ALLOCATION_ALIGNMENT: Final = 512
"""The alignment of the device's allocations, in bytes."""


class GraphMemoryLayout(NamedTuple):
    """The layout of a graph's memory: where each allocation of a captured range lies: at an offset in the arena of `arena`
    bytes, or (None) in a place of its own."""

    sizes: tuple[int, ...]
    offsets: tuple[int | None, ...]
    arena: int


def lay_out(log: Sequence[AllocationEvent]) -> GraphMemoryLayout:
    """Lay out allocations of known lifetimes: those freed before the end of the log lie in the arena, each in the first gap
    that is large enough; each of the others gets a place."""
    sizes = [taken.nbytes for taken in log if taken.nbytes >= 0]
    ended = {taken.number for taken in log if taken.nbytes < 0}
    offsets: list[int | None] = [None] * len(sizes)
    live: dict[int, tuple[int, int]] = {}
    arena = 0
    for number, nbytes in log:
        if nbytes < 0:
            live.pop(number, None)
        elif number in ended:
            size, start = -(-nbytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT, 0
            for first, last in sorted(live.values()):
                if first - start >= size:
                    break
                start = max(start, last)
            live[number] = (start, start + size)
            offsets[number] = start
            arena = max(arena, start + size)
    return GraphMemoryLayout(tuple(sizes), tuple(offsets), arena)


class AllocationRoot:
    """Held by all arrays over an allocation, so that it stays as long as one of them does."""

    __slots__ = ("__weakref__", "allocation")

    def __init__(self, allocation: Any) -> None:
        self.allocation = allocation


class GraphAllocation:
    """An allocation that belongs to graphs; counted in `CudaGraphs.total`."""

    def __init__(self, graphs: CudaGraphs, nbytes: int) -> None:
        self.allocation, self.nbytes = graphs.device.allocate(nbytes), nbytes
        self._graphs = graphs
        graphs.total += nbytes

    def __del__(self) -> None:
        if hasattr(self, "_graphs"):
            self._graphs.total -= self.nbytes


class ResultAllocation(GraphAllocation):
    """Memory for a result of a captured range, lent to one value at a time."""

    def __init__(self, graphs: CudaGraphs, nbytes: int) -> None:
        super().__init__(graphs, nbytes)
        self._lent: weakref.ref[AllocationRoot] | None = None
        self.memory = graphs.device.seen(self.allocation).memory
        graphs.ours.add(self.memory)

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "memory"):
            self._graphs.ours.discard(self.memory)

    @property
    def free(self) -> bool:
        return self._lent is None or self._lent() is None

    def lend(self) -> AllocationRoot:
        """Lend the memory to a value, until nothing holds the root any more."""
        assert self.free, "one value at a time"
        root = AllocationRoot(self.allocation)
        self._lent = weakref.ref(root)
        return root
