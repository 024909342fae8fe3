"""Events that go into the worker's core and come out of it, besides the wire's messages (`gt/wire/messages`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gt.ir.spec import Spec
from gt.sharding.partition import Box
from gt.wire import messages as m
from gt.wire.bulk import Key
from gt.wire.faults import Fault
from gt.worker.device.buffers import BufferView


class ToDispatcher(NamedTuple):
    """A message for the dispatcher."""

    message: m.Message


class ToPeer(NamedTuple):
    """A message for another worker, by its address."""

    address: str
    message: m.Piece | m.Read | m.Probe | m.Echo


class BulkOut(NamedTuple):
    """A part of a fetch. `array` may wait for a bulk grant under `key`, or travel with `message`, as the shell decides; or it is
    `placed` where the receiver has offered a place for it."""

    message: m.Part
    key: Key
    receiver: bytes
    array: np.ndarray[Any, Any]
    placed: bool = False


class Forgotten(NamedTuple):
    """A client was forgotten: no part is sent to it any more."""

    client: int


class Unreachable(NamedTuple):
    """A worker is gone: nothing is sent to its address any more (empty: it was never known), and nothing of it is heard."""

    worker: int
    address: str


class SnapshotWork(NamedTuple):
    """Files to be read or written for a message, beside everything else. Ends with a `SnapshotReport` or a `SnapshotIn`.

    `values` are what a `WritePart` writes: for each tensor its position, spec, box, and this worker's array; `box` is what a
    `LoadPart` reads.
    """

    message: (
        m.WritePart
        | m.CommitSnapshot
        | m.DiscardParts
        | m.ReadSnapshots
        | m.LoadPart
        | m.ReadPublished
        | m.RevokePublished
    )
    worker: int
    values: Sequence[tuple[int, Spec, Box, np.ndarray[Any, Any]]] = ()
    box: Box = ()


class MarkBuffer(NamedTuple):
    """The memory of tensors of a mark: what gives its bytes once, in any thread, in parts of which each is valid until the next.
    `array`: where they are, of a mark that was read. `lent`: the name of a client's memory where they lie, and stay until the
    client needs the mark no more, and the offset there.

    `content` stands for the bytes: what has the same one in another mark has the same bytes. `release` gives up what is held to
    read them, if they need not be read. `read` raises `OSError` and `MemoryError`.
    """

    read: Callable[[], Iterable[memoryview]]
    array: np.ndarray[Any, Any] | None = None
    lent: tuple[str, int] | None = None
    content: object = None
    release: Callable[[], object] = lambda: None


class MarkedView(NamedTuple):
    """A tensor of a mark: how it looks at the buffer of this number.

    `owns`: it is the array that owns the buffer, in row-major order. `scalar`: it is a NumPy scalar.
    """

    buffer: int
    view: BufferView
    owns: bool
    scalar: bool


class MarkedReplica(NamedTuple):
    """A tensor of a mark that is in the file of another rank, which held the same: that rank, and how this one's lay in memory,
    wherever that began."""

    rank: int
    view: BufferView


Marked = MarkedView | MarkedReplica | Fault | None
"""A tensor of a mark: where its values are, the fault of one that could not be computed, or None for one of which the worker has
no part."""


class MarkContents(NamedTuple):
    """What one worker has of a session in a mark: each tensor, and by tensor the signal in which it was made, if there is one."""

    buffers: Sequence[MarkBuffer]
    tensors: Mapping[int, Marked]
    signals: Mapping[int, str]


class MarkedPart(NamedTuple):
    """What a worker is to have of a tensor of a mark: a box, or nothing; and for each rank of the mark, the box that it had."""

    spec: Spec
    wanted: Box | None
    held: Sequence[Box | None]


class MarkWork(NamedTuple):
    """Files of marks to be written, removed or read for a message, beside everything else. A `TakeMark` ends with a `MarkTaken`,
    a `RestoreMark` or the last `RestoreParts` with a `MarkIn`, a `PackParts` with a `MarkPacked`.

    `rank` is the worker's in the mesh of the message, or that of a `PackParts`; `contents` makes what a `TakeMark` writes, or a
    `PackParts` packs if that is in memory, in any thread, and `nanoseconds` is how long the worker needed for it until now.
    `parts`: by tensor, what is read for `RestoreParts`; `sent`: what peers have sent of it, with the ranks that had it.
    """

    message: m.TakeMark | m.DropMark | m.RestoreMark | m.RestoreParts | m.PackParts
    rank: int
    contents: Callable[[], MarkContents] | None = None
    nanoseconds: int = 0
    parts: Mapping[int, MarkedPart] = MappingProxyType({})
    sent: Sequence[tuple[int, np.ndarray[Any, Any]]] = ()


Send = ToDispatcher | ToPeer | BulkOut | Forgotten | Unreachable | SnapshotWork | MarkWork


class MarkIn(NamedTuple):
    """An event: what this worker is to have of a mark was read, or cannot be, for the reason `fault`."""

    mark: int
    client: int
    contents: MarkContents | None
    fault: Fault | None


class MarkPacked(NamedTuple):
    """An event: tensors of a mark were read for a peer, and are packed as bytes, or cannot be, for the reason `fault`."""

    message: m.PackParts
    array: np.ndarray[Any, Any] | None
    fault: Fault | None


class SnapshotIn(NamedTuple):
    """An event: this worker's part of a tensor was read from a snapshot, or cannot be, for the reason `fault`."""

    client: int
    tensor: int
    array: np.ndarray[Any, Any] | None
    fault: Fault | None


class BulkIn(NamedTuple):
    """An event: a bulk put has arrived completely. `array` is this worker's part, None if there was no memory for it."""

    client: int
    tensor: int
    array: np.ndarray[Any, Any] | None
