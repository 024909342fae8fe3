"""The sessions that wait for one worker, in the order of their shares of its time.

A tree as the shares are one: of principals, the programs of each, and the meshes of each. The parts of a node lie in a heap by
virtual time. Shares move forward again and again, and then a heap is left as it is until one of them comes to its top; only
what moves back is put in anew. So whatever happens costs the logarithm of the number that waits, and to release a plan nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

from .shares import Share

Waiting = TypeVar("Waiting", bound=Hashable)
"""What waits: the mesh of a session (`Lane` in `cells.py`), of which nothing matters here but which one it is."""
INTERACTIVE_CREDIT: Final = 50_000_000
"""How many virtual nanoseconds an interactive session may be before others with as good a claim."""
SPARE_ENTRIES: Final = 16
"""So many entries of a heap may be out of date besides as many as are valid."""

Place = tuple[float, int]
"""By which shares are in order: a virtual time, and a number for those at the same."""
Path = tuple[Share, Share, Share]


class Node(Generic[Waiting]):
    """A share of which something waits. `whole` has none."""

    __slots__ = ("below", "entry", "heap", "lane", "parts", "share", "urgent")

    def __init__(self, share: Share | None) -> None:
        self.share = share
        self.below = 0
        """How many meshes wait that are part of it."""
        self.urgent = 0
        """How many of them are of interactive sessions."""
        self.parts = 0
        self.heap: list[tuple[float, int, int, Node[Waiting]]] = []
        self.entry: tuple[float, int, int, Node[Waiting]] | None = None
        """Its valid entry in the heap that it is part of."""
        self.lane: Waiting | None = None
        """The mesh that waits."""

    @property
    def place(self) -> Place:
        """Where it is now."""
        assert self.share is not None, "the whole has no place"
        return self.share.virtual - (INTERACTIVE_CREDIT if self.urgent else 0), self.share.number


class WaitingLine(Generic[Waiting]):
    """The meshes that wait for a worker. Some may be hidden for a while: those that are looked at already."""

    def __init__(self) -> None:
        self.whole: Node[Waiting] = Node(None)
        self.nodes: dict[Share, Node[Waiting]] = {}
        self.count = itertools.count()
        self.lanes: dict[Waiting, tuple[Path, bool]] = {}
        """All of them, with their shares and whether they are of interactive sessions."""
        self.hidden: dict[Waiting, None] = {}
        self.steps = 0
        """How many entries of heaps were looked at."""

    def add(self, lane: Waiting, path: Path, *, urgent: bool) -> None:
        """A mesh waits."""
        self.lanes[lane] = path, urgent
        self._enter(lane)

    def remove(self, lane: Waiting) -> None:
        """A mesh waits no more."""
        if lane in self.hidden:
            del self.hidden[lane]
        else:
            self._leave(lane)
        del self.lanes[lane]

    def hide(self, lane: Waiting) -> None:
        """Pass a mesh over until all are shown again."""
        self._leave(lane)
        self.hidden[lane] = None

    def show(self) -> None:
        """Show all that are hidden."""
        for lane in self.hidden:
            self._enter(lane)
        self.hidden.clear()

    def moved_back(self, path: Path) -> None:
        """The virtual times of shares have become less."""
        above = self.whole
        for share in path:
            node = self.nodes.get(share)
            if node is None:
                return
            self._put(above, node)
            above = node

    def head(self) -> Waiting | None:
        """Who is first."""
        node = self.whole
        while node.lane is None:
            first = self._first(node)
            if first is None:
                return None
            node = first
        return node.lane

    def lead(self, principal: Share) -> float:
        """How many virtual nanoseconds a principal that waits is before the first one."""
        first, node = self._first(self.whole), self.nodes.get(principal)
        own = principal.virtual if node is None else node.place[0]
        return 0.0 if first is None else own - first.place[0]

    def order(self, lane: Waiting) -> tuple[Place, ...]:
        """By what one that waits is in order with others."""
        path, _ = self.lanes[lane]
        return tuple([self.nodes[share].place for share in path])

    def _enter(self, lane: Waiting) -> None:
        path, urgent = self.lanes[lane]
        above = self.whole
        for share in path:
            node = self.nodes.get(share)
            if node is None:
                node = self.nodes[share] = Node(share)
                above.parts += 1
            node.below += 1
            node.urgent += urgent
            if node.entry is None or (urgent and node.urgent == 1):
                self._put(above, node)
            above = node
        above.lane = lane

    def _leave(self, lane: Waiting) -> None:
        path, urgent = self.lanes[lane]
        above = self.whole
        for share in path:
            node = self.nodes[share]
            node.below -= 1
            node.urgent -= urgent
            if not node.below:
                del self.nodes[share]
                node.entry = None
                above.parts -= 1
            above = node

    def _put(self, above: Node[Waiting], node: Node[Waiting]) -> None:
        """Put a node into its heap, at its place."""
        node.entry = (*node.place, next(self.count), node)
        heappush(above.heap, node.entry)
        if len(above.heap) > 2 * above.parts + SPARE_ENTRIES:
            self.steps += len(above.heap)
            above.heap = [entry for entry in above.heap if entry[3].entry is entry]
            heapify(above.heap)

    def _first(self, above: Node[Waiting]) -> Node[Waiting] | None:
        heap = above.heap
        while heap:
            self.steps += 1
            entry = heap[0]
            node = entry[3]
            if node.entry is not entry:
                heappop(heap)
            elif node.place > entry[:2]:
                node.entry = (*node.place, next(self.count), node)
                heapreplace(heap, node.entry)
            else:
                return node
        return None

    def check(self) -> None:
        """The invariants: each node has its valid entry, which is not behind its place."""
        assert self.hidden.keys() <= self.lanes.keys()
        shown = [self.lanes[lane] for lane in self.lanes if lane not in self.hidden]
        assert self.nodes.keys() == {share for path, _ in shown for share in path}
        for share, node in self.nodes.items():
            assert node.below == sum(share in path for path, _ in shown)
            assert node.urgent == sum(urgent and share in path for path, urgent in shown)
            above = self.whole if share.parent is None else self.nodes.get(share.parent, self.whole)
            assert node.entry is not None
            assert any(entry is node.entry for entry in above.heap)
            assert node.entry[:2] <= node.place
