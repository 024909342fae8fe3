"""Large puts: the program's array is copied once, to where workers on this machine can read it.

Where the parts of a put go the dispatcher says (`Cut`). Another such tensor in the same signal goes the same way before it says
so, and is made right in the rare case that it says otherwise. What lies in the pool is nobody else's, so a put need not wait
until workers that can read it there have heard of it. Nothing in here knows a socket.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from gt.sharding.partition import Box, extent
from gt.wire.bulk import PUT, Frames, Outbox
from gt.wire.shared_memory.parallel_copy import copy_array
from gt.wire.shared_memory.pool import Pool
from gt.wire.shared_memory.ranges import PAGE_BYTES

MAX_KNOWN_LAYOUTS: Final = 256
"""Kinds of tensors for which it is remembered how they were cut."""
Array = np.ndarray[Any, Any]
PartOwners = tuple[tuple[int, bytes, Box], ...]
"""The owners of parts: (worker, its bulk identity, the box)."""


class BulkPut:
    """An array to be put: `parts` are copies of it, or else `array` is the program's own.

    `guess`: where the parts are thought to go; `offered`: to whom they were offered.
    """

    __slots__ = ("array", "guess", "kind", "nbytes", "offered", "parts")

    def __init__(self, kind: Hashable, array: Array) -> None:
        self.kind = kind
        self.nbytes = array.nbytes
        self.array: Array | None = array
        self.parts: dict[Box, Array] = {}
        self.guess: PartOwners = ()
        self.offered: PartOwners = ()

    def whole(self) -> Array:
        """The array, put together again if it was cut."""
        if self.array is not None:
            return self.array
        first = next(iter(self.parts.values()))
        if len(self.parts) == 1:
            return first
        array = np.empty([max(box[at][1] for box in self.parts) for at in range(first.ndim)], first.dtype)
        for box, part in self.parts.items():
            array[_window(box)] = part
        return array


class BulkPuts:
    """Puts that workers have not heard of, and those that lie in the pool while workers use them.

    With `keeps`, the parts of a put that was cut are never the program's own array: they may be sent again later.
    """

    def __init__(self, pool: Pool, outbox: Outbox, *, keeps: bool = False) -> None:
        self.pool = pool
        self.outbox = outbox
        self.keeps = keeps
        self.waiting: dict[int, BulkPut] = {}
        """By tensor, until the dispatcher has said where its parts go."""
        self.known: dict[Hashable, PartOwners] = {}
        """Where the last tensor of a kind went."""
        self.shown: WeakValueDictionary[int, Array] = WeakValueDictionary()
        """By tensor the whole of it, as long as a worker or somebody else reads it in the pool."""

    def prepare(self, array: Array, kind: Hashable) -> BulkPut:
        """Copy an array, if it is known how tensors of this kind are cut. Needs no lock: the copy may take long."""
        put = BulkPut(kind, array)
        guess = self.known.get(kind, ())
        if guess:
            put.parts = self._copied(array, _boxes(guess))
            if put.parts:
                put.array, put.guess = None, guess
        return put

    def begin(self, tensor: int, put: BulkPut, client: int) -> Iterator[Frames]:
        """Begin a put that the dispatcher is told of; yields what to send to workers that probably want a part."""
        self.waiting[tensor] = put
        found = [
            each
            for each in put.guess
            if each[0] in self.outbox.near and self.pool.place(put.parts[each[2]]) is not None
        ]
        return self._offer(tensor, put, tuple(found), client)

    def cut(self, tensor: int, where: PartOwners, client: int) -> Iterator[Frames]:
        """Offer each worker its part; yields what to send now."""
        put = self.waiting.pop(tensor, None)
        if put is None:
            return  # it was interrupted
        for worker, identity, box in put.offered:
            if (worker, identity, box) not in where:
                self.outbox.retract((PUT, client, tensor, worker))
        if not where:  # it was refused, and may be again
            if self.keeps and put.array is not None:
                put.array = put.array.copy()
            return
        self._cut_up(put, _boxes(where))
        boxes = tuple(put.parts)
        if where != put.guess:
            self.known[put.kind] = where
            if len(self.known) > MAX_KNOWN_LAYOUTS:
                del self.known[next(iter(self.known))]
        yield from self._offer(tensor, put, tuple(each for each in where if each not in put.offered), client)
        if len(boxes) == 1 and self.pool.place(put.parts[boxes[0]]) is not None:
            self.shown[tensor] = put.parts[boxes[0]]

    def _cut_up(self, put: BulkPut, boxes: tuple[Box, ...]) -> None:
        """See that a put has these parts, in the pool if there is room."""
        known = boxes == tuple(put.parts)
        if known and (put.nbytes > self.pool.limit or self.pool.place(put.parts[boxes[0]]) is not None):
            return
        array = put.whole()
        parts = self._copied(array, boxes)
        if parts or not known:
            put.parts = parts or {box: self._own(array[_window(box)]) for box in boxes}
        if self.keeps or parts:
            put.array = None

    def _own(self, part: Array) -> Array:
        """A part in row-major order, outside the pool."""
        return np.array(part, order="C") if self.keeps else np.ascontiguousarray(part)

    def again(self, puts: Mapping[int, BulkPut]) -> None:
        """Keep puts, by tensor, which the dispatcher is told of later, until it says where they go."""
        for put in puts.values():
            put.guess = put.offered = ()
        self.waiting.update(puts)

    def _offer(self, tensor: int, put: BulkPut, where: PartOwners, client: int) -> Iterator[Frames]:
        put.offered += where
        for worker, identity, box in where:
            part = put.parts[box]
            yield from self.outbox.add(identity, (PUT, client, tensor, worker), part, box, self.pool.place(part))

    def break_off(self, lost: int, *, renumbered: bool) -> None:
        """Forget where parts went, because worker `lost` (-1: none, -2: all) is gone, or another session number holds
        (`renumbered`). What others have been lent they still read, and marks may refer to what the lost one was lent."""
        self.outbox.break_off(lost, renumbered=renumbered)
        for put in self.waiting.values():
            put.guess = put.offered = ()
        self.known.clear()
        self.shown.clear()

    def sending(self, tensor: int) -> bool:
        """Whether the program's array may not be changed yet, or workers elsewhere have not got all of it."""
        put = self.waiting.get(tensor)
        if put is not None and (put.array is not None or put.offered != put.guess):
            return True
        near = self.outbox.near
        return any(
            key[2] == tensor and (stream.place is None or key[3] not in near)
            for key, stream in self.outbox.streams.items()
        )

    def cancel(self, tensor: int) -> None:
        """Send no more of a put."""
        self.waiting.pop(tensor, None)
        self.outbox.cancel(tensor)

    def _copied(self, array: Array, boxes: Sequence[Box]) -> dict[Box, Array]:
        """The parts of an array side by side in the pool, not writable; none when there is no room."""
        sizes = [-(-prod(extent(box)) * array.itemsize // PAGE_BYTES) * PAGE_BYTES for box in boxes]
        room = self.pool.room(sum(sizes))
        if room is None:
            return {}
        parts, at = {}, 0
        for box, size in zip(boxes, sizes, strict=True):
            shape = extent(box)
            part = room[at : at + prod(shape) * array.itemsize].view(array.dtype).reshape(shape)
            copy_array(part, array[_window(box)])
            parts[box] = part
            at += size
        for each in (room, *parts.values()):
            each.flags.writeable = False  # for good: nothing else lets them be written to
        return parts


def _boxes(where: PartOwners) -> tuple[Box, ...]:
    return tuple(dict.fromkeys(box for _, _, box in where))


def _window(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
