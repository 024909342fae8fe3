"""Reads tensors of a mark for another mesh than the one on which it was taken: each worker puts its parts together from those
that the ranks of the mark had, whoever wrote them. Those of which it sees no file may have come from peers.

Where several ranks had the same box, any of their files will do, so a replicated tensor is there as long as one of them is.
A part that was a whole box of some rank is taken as it lies in memory there, any other is made anew in row-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gt.errors import SnapshotError
from gt.sharding.partition import Box, extent, intersect, relative
from gt.worker.base.events import MarkBuffer, MarkContents, Marked, MarkedPart, MarkedView
from gt.worker.device.buffers import BufferView

from .mark_replicas import ReadRank, looking

Array = np.ndarray[Any, Any]


def read_parts(
    parts: Mapping[int, MarkedPart], read: ReadRank, sent: Sequence[tuple[int, MarkContents]] = ()
) -> MarkContents:
    """The parts of tensors of a mark; `read` reads some tensors of one of its ranks, and `sent` are some that peers have read of
    these ranks. Raises `SnapshotError` if a box is in no file that can be read, and what `read` raises else."""
    found = _Found()
    left = {(tensor, held) for tensor, part in parts.items() for held in found.begin(tensor, part)}
    for giver, contents in sent:
        for tensor in contents.tensors:
            box = parts[tensor].held[giver] if tensor in parts else None
            if box is not None and (tensor, box) in left:
                found.add(tensor, parts[tensor], box, contents, giver)
                left.discard((tensor, box))
    failed: dict[int, SnapshotError] = {}
    while left:
        wanted: dict[int, list[tuple[int, Box]]] = {}
        for tensor, held in sorted(left):
            ranks = [rank for rank, each in enumerate(parts[tensor].held) if each == held]
            rank = next((rank for rank in ranks if rank not in failed), None)
            if rank is None:
                raise failed[ranks[0]]
            wanted.setdefault(rank, []).append((tensor, held))
        for rank, pieces in wanted.items():
            try:
                contents = read(rank, {tensor for tensor, _ in pieces})
            except SnapshotError as error:
                failed[rank] = error
                continue
            for tensor, held in pieces:
                found.add(tensor, parts[tensor], held, contents, rank)
            left.difference_update(pieces)
    return MarkContents(found.buffers, found.tensors, found.signals)


class _Found:
    """What has been read so far."""

    def __init__(self) -> None:
        self.buffers: list[MarkBuffer] = []
        self.taken: dict[int, int] = {}
        """By identity, the numbers of buffers that are taken as they are."""
        self.tensors: dict[int, Marked] = {}
        self.signals: dict[int, str] = {}
        self.made: dict[int, Array] = {}
        """By tensor, the memory that is filled from several boxes."""

    def begin(self, tensor: int, part: MarkedPart) -> Iterator[Box]:
        """The boxes of which something is needed."""
        wanted = part.wanted
        if wanted is None:
            self.tensors[tensor] = None
        elif not all(extent(wanted)):
            self._make(tensor, part, wanted)
        else:
            yield from {held for held in part.held if held is not None and intersect(held, wanted) is not None}

    def add(self, tensor: int, part: MarkedPart, held: Box, contents: MarkContents, rank: int) -> None:
        """Take what is needed of a box that was read. Raises `SnapshotError` if it is not there."""
        value, wanted, known = contents.tensors.get(tensor), part.wanted, self.tensors.get(tensor)
        if value is None or wanted is None:
            raise SnapshotError(f"the file of rank {rank} lacks its part of a tensor of the mark")
        if known is not None and not isinstance(known, MarkedView):
            return  # it has the fault of another part
        if tensor in contents.signals:
            self.signals[tensor] = contents.signals[tensor]
        if not isinstance(value, MarkedView):
            self.tensors[tensor] = value
        elif held == wanted:
            buffer = contents.buffers[value.buffer]
            number = self.taken.setdefault(id(buffer), len(self.buffers))
            if number == len(self.buffers):
                self.buffers.append(buffer)
            self.tensors[tensor] = value._replace(buffer=number)
        else:
            common = intersect(held, wanted)
            assert common is not None, "it was asked for because they meet"
            made = self.made.get(tensor)
            if made is None:
                made = self._make(tensor, part, wanted)
            made[relative(common, wanted)] = looking(value, contents.buffers)[relative(common, held)]

    def _make(self, tensor: int, part: MarkedPart, wanted: Box) -> Array:
        """New memory for a part."""
        array: Array = np.empty(extent(wanted), part.spec.dtype.numpy)
        data = array.reshape(-1).view(np.uint8).data
        view = BufferView(array.dtype, array.shape, array.strides, 0)
        self.tensors[tensor] = MarkedView(len(self.buffers), view, owns=True, scalar=False)
        self.buffers.append(MarkBuffer(lambda: (data,), array))
        self.made[tensor] = array
        return array
