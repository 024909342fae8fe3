"""Events that go into the worker's core and come out of it, besides the wire's messages (`gt/wire/messages.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gt.ir.spec import Spec
from gt.sharding.partition import Box
from gt.wire import messages as m
from gt.wire.bulk import Key
from gt.wire.messages import Fault


class ToDispatcher(NamedTuple):
    """A message for the dispatcher."""

    message: m.Message


class ToPeer(NamedTuple):
    """A message for another worker, by its address."""

    address: str
    message: m.Piece | m.Read | m.Probe | m.Echo


class BulkOut(NamedTuple):
    """A part of a fetch. `array` may wait for a bulk grant under `key`, or travel with `message`, as the shell decides."""

    message: m.Part
    key: Key
    receiver: bytes
    array: np.ndarray[Any, Any]


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

    message: m.WritePart | m.CommitSnapshot | m.DiscardParts | m.ReadSnapshots | m.LoadPart
    worker: int
    values: Sequence[tuple[int, Spec, Box, np.ndarray[Any, Any]]] = ()
    box: Box = ()


Send = ToDispatcher | ToPeer | BulkOut | Forgotten | Unreachable | SnapshotWork


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
