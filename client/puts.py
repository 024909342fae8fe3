"""Large puts on their way out: the program's array is copied once, to where workers on this machine can read it.

Where the parts of a put go the dispatcher says (`Cut`). Another such tensor in the same signal is cut the same way before it
says so, and made right in the rare case that it says otherwise. What lies in the pool is nobody else's, so a put need not wait
until workers that can read it there have heard of it. Nothing in here knows a socket.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import prod
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from gt.bulk import PUT, Frames, Outbox
from gt.partition import Box, extent
from gt.pool import Pool
from gt.ranges import PAGE

AHEAD: Final = 64 << 20
"""Bytes of earlier puts of which workers may not have heard yet; whoever puts more waits for them."""
MAX_KNOWN: Final = 256
"""Kinds of tensors of which it is remembered how they were cut."""
Array = np.ndarray[Any, Any]


class Put:
    """An array to be put: `parts` are copies of it, or else `array` is the program's own."""

    __slots__ = ("array", "kind", "parts")

    def __init__(self, kind: Hashable, array: Array) -> None:
        self.kind = kind
        self.array: Array | None = array
        self.parts: dict[Box, Array] = {}

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def whole(self) -> Array:
        """The array, put together again if it was cut."""
        if self.array is not None:
            return self.array
        first = next(iter(self.parts.values()))
        array = np.empty([max(box[at][1] for box in self.parts) for at in range(first.ndim)], first.dtype)
        for box, part in self.parts.items():
            array[_window(box)] = part
        return array


class Puts:
    """Puts that workers have not heard of, and those that lie in the pool while workers use them."""

    def __init__(self, pool: Pool, outbox: Outbox) -> None:
        self.pool = pool
        self.outbox = outbox
        self.waiting: dict[int, Put] = {}
        """By tensor, until the dispatcher has said where its parts go."""
        self.known: dict[Hashable, tuple[Box, ...]] = {}
        """How tensors of a kind were cut."""
        self.shown: WeakValueDictionary[int, Array] = WeakValueDictionary()
        """By tensor the whole of it, as long as a worker or somebody else reads it in the pool."""

    def prepare(self, array: Array, kind: Hashable) -> Put:
        """Copy an array, if it is known how tensors of this kind are cut. Needs no lock: the copy may take long."""
        put = Put(kind, array)
        boxes = self.known.get(kind)
        if boxes:
            put.parts = self._copied(array, boxes)
            if put.parts:
                put.array = None
        return put

    def begin(self, tensor: int, put: Put) -> None:
        """The dispatcher is told of a put."""
        self.waiting[tensor] = put

    def cut(self, tensor: int, places: Sequence[tuple[int, bytes, Box]], client: int) -> Iterator[Frames]:
        """Offer each worker its part: (worker, its bulk identity, the box). What may leave already."""
        put = self.waiting.pop(tensor, None)
        if put is None or not places:
            return  # the put was interrupted, or refused
        boxes = tuple(dict.fromkeys(box for _, _, box in places))
        if boxes != tuple(put.parts):
            array = put.whole()
            put.parts = self._copied(array, boxes) or {box: np.ascontiguousarray(array[_window(box)]) for box in boxes}
            self._remember(put.kind, boxes)
        where = {box: self.pool.place(part) for box, part in put.parts.items()}
        if len(boxes) == 1 and where[boxes[0]] is not None:
            self.shown[tensor] = put.parts[boxes[0]]
        for worker, identity, box in places:
            yield from self.outbox.add(identity, (PUT, client, tensor, worker), put.parts[box], where[box])

    def sending(self, tensor: int) -> bool:
        """Whether the program's array may not be changed yet, or too much is on its way besides this tensor."""
        put = self.waiting.get(tensor)
        if put is not None and put.array is not None:
            return True
        ahead = sum(put.nbytes for other, put in self.waiting.items() if other != tensor)
        for key, stream in self.outbox.streams.items():
            if key[2] != tensor:
                ahead += stream.nbytes
            elif stream.place is None or key[3] not in self.outbox.near:
                return True
        return ahead > AHEAD

    def cancel(self, tensor: int) -> None:
        """Send no more of a put."""
        self.waiting.pop(tensor, None)
        self.outbox.cancel(tensor)

    def _remember(self, kind: Hashable, boxes: tuple[Box, ...]) -> None:
        self.known[kind] = boxes
        if len(self.known) > MAX_KNOWN:
            del self.known[next(iter(self.known))]

    def _copied(self, array: Array, boxes: Sequence[Box]) -> dict[Box, Array]:
        """The parts of an array side by side in the pool, not writable; none when there is no room."""
        sizes = [-(-prod(extent(box)) * array.itemsize // PAGE) * PAGE for box in boxes]
        room = self.pool.room(sum(sizes))
        if room is None:
            return {}
        parts, at = {}, 0
        for box, size in zip(boxes, sizes, strict=True):
            shape = extent(box)
            part = room[at : at + prod(shape) * array.itemsize].view(array.dtype).reshape(shape)
            part[...] = array[_window(box)]
            parts[box] = part
            at += size
        for each in (room, *parts.values()):
            each.flags.writeable = False  # for good: nothing else lets them be written to
        return parts


def _window(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
