"""Takes the tensors of a mark that another rank has written from the file of that rank.

Ranks that held the same part of a tensor, and keep marks in one folder, write it once (`ShareMark`).
Whoever reads the file of one of them finds there which rank has it, and how it lay in memory: on that depends the order in which
NumPy adds up, so a copy that lies there differently is put into that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from gt.errors import SnapshotError
from gt.worker.base.events import MarkBuffer, MarkContents, Marked, MarkedReplica, MarkedView
from gt.worker.device.buffers import BufferView

Array = np.ndarray[Any, Any]
ReadRank = Callable[[int, Set[int]], MarkContents]


def with_replicas(contents: MarkContents, read: ReadRank) -> MarkContents:
    """What a rank had, whoever has written it; `read` reads some tensors of the file of another rank. Raises `SnapshotError` if
    one is not there, and what `read` raises else."""
    wanted: dict[int, dict[int, MarkedReplica]] = {}
    for tensor, value in contents.tensors.items():
        if isinstance(value, MarkedReplica):
            wanted.setdefault(value.rank, {})[tensor] = value
    if not wanted:
        return contents
    buffers, tensors = list(contents.buffers), dict(contents.tensors)
    for rank, replicas in wanted.items():
        found = read(rank, replicas.keys())
        first = len(buffers)
        buffers += found.buffers
        for tensor, replica in replicas.items():
            copy: Marked = found.tensors.get(tensor)
            if copy is None or isinstance(copy, MarkedReplica):
                raise SnapshotError(f"the file of rank {rank} lacks a tensor of the mark that others left to it")
            if isinstance(copy, MarkedView):
                copy = _lying_as(replica.view, copy._replace(buffer=copy.buffer + first), buffers)
            tensors[tensor] = copy
    return MarkContents(buffers, tensors, contents.signals)


def _lying_as(view: BufferView, value: MarkedView, buffers: list[MarkBuffer]) -> MarkedView:
    """The tensor as it lay at another rank: in place, or copied to another buffer, which is added."""
    there = value.view
    if (there.dtype, there.shape) != (view.dtype, view.shape):
        raise SnapshotError("a tensor of the mark has another shape in the file of the rank that wrote it")
    if there.strides == view.strides:
        return value
    backwards = sum((count - 1) * -stride for count, stride in zip(view.shape, view.strides, strict=True) if stride < 0)
    span = sum((count - 1) * abs(stride) for count, stride in zip(view.shape, view.strides, strict=True))
    memory = np.empty(span + view.dtype.itemsize if all(view.shape) else 0, np.uint8)
    array: Array = np.ndarray(view.shape, view.dtype, memory, backwards, view.strides)
    array[...] = looking(value, buffers)
    buffers.append(MarkBuffer(lambda: (memory.data,), memory))
    return MarkedView(len(buffers) - 1, view._replace(offset=backwards), owns=False, scalar=value.scalar)


def looking(value: MarkedView, buffers: Sequence[MarkBuffer]) -> Array:
    """A tensor of a mark, in memory that was read."""
    array, view = buffers[value.buffer].array, value.view
    assert array is not None, "what was read has an array"
    memory = array.reshape(-1).view(np.uint8)
    return np.ndarray(view.shape, view.dtype, memory, view.offset, view.strides)
