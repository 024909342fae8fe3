"""Large fetches: each part is written by its worker to its place in one array, or arrives in chunks.

Whoever had the whole of the last tensor of a shape and dtype has this one too, most of the time. So it is offered the place
beside the question, and may have written before it has answered. Who does not have it, or has less of it, takes no notice.
Nothing in here knows a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gt.ir.spec import Spec, unpack_spec
from gt.wire import messages as m
from gt.wire.bulk import GET, Frames, Inbox, Key
from gt.wire.shared_memory.pool import MAX_UNPOOLED_BYTES, Pool

MAX_KNOWN_OWNERS: Final = 256
"""Specs for which the owner of the last tensor is remembered."""
Array = np.ndarray[Any, Any]


class _OfferedFetch:
    """An array that was offered before anybody said that it has the tensor; `written`: it has been."""

    __slots__ = ("array", "key", "offer", "spec", "written")

    def __init__(self, array: Array, key: Key, offer: Frames, known: Spec) -> None:
        self.array = array
        self.key = key
        self.offer = offer
        self.spec = known
        self.written = False


class BulkFetches:
    """Parts of tensors that this client receives."""

    def __init__(self, pool: Pool, inbox: Inbox) -> None:
        self.pool = pool
        self.inbox = inbox
        self.client = 0
        self.arriving: dict[Key, Callable[[Array | None], None]] = {}
        self.known: dict[Spec, tuple[int, bytes]] = {}
        """(worker, bulk identity) that had the whole of the last tensor of a spec."""
        self.offered: dict[int, _OfferedFetch] = {}
        """By request."""
        self.void: deque[Key] = deque(maxlen=64)
        """Streams of fetches that failed, whose sender may have written already."""

    def offer(self, request: int, known: Spec) -> tuple[Array | None, list[Frames]]:
        """(the array for a fetch that is asked for now, what to send), if there is a guess who has the tensor."""
        guess = self.known.get(known) if known.nbytes > MAX_UNPOOLED_BYTES else None
        if guess is None:
            return None, []
        try:
            array = self.pool.empty(known.shape, known.dtype.numpy)
        except MemoryError:
            return None, []
        place = self.pool.place(array)
        if place is None:
            return array, []
        worker, identity = guess
        key = (GET, self.client, request, worker)
        box = [(0, size) for size in known.shape]
        offer = self.inbox.open(identity, key, box, array.dtype, lambda: array, (*place, known.shape, box))
        early = self.offered[request] = _OfferedFetch(array, key, offer, known)

        def arrived(_: Array | None) -> None:
            early.written = True

        self.arriving[key] = arrived
        return array, [offer]

    def part(self, message: m.Value, array: Array, done: Callable[[], None]) -> list[Frames]:
        """Receive a part of `array` into its place; calls `done` when it is there. Returns what to send."""
        key = (GET, self.client, message.request, message.worker)
        whole = all(stop - start == size for (start, stop), size in zip(message.box, array.shape, strict=True))
        early = self.offered.pop(message.request, None)
        if early is not None and whole and early.key == key:
            if early.written:
                done()
                return []
            self.arriving[key] = lambda _: done()
            return [early.offer] if self.inbox.streams[key].at == 0 else []  # again: it may have been forgotten
        if early is not None:
            self._close(early)
        if whole:
            self.known[unpack_spec(message.spec)] = message.worker, bytes(message.sender)
            if len(self.known) > MAX_KNOWN_OWNERS:
                del self.known[next(iter(self.known))]
        window = array[tuple(slice(start, stop) for start, stop in message.box)]

        def make() -> Array:
            return window if window.flags.c_contiguous else self.pool.empty(window.shape, window.dtype)

        def arrived(part: Array | None) -> None:
            if part is not None and part is not window:
                window[...] = part
            done()

        place = self.pool.place(array)
        self.arriving[key] = arrived
        offer = None if place is None else (*place, array.shape, message.box)
        return [self.inbox.open(bytes(message.sender), key, message.box, array.dtype, make, offer)]

    def ignore(self, message: m.Value) -> list[Frames]:
        """Receive a part that nobody waits for, so that its worker need not keep it. Returns what to send."""
        key = (GET, self.client, message.request, message.worker)
        if key in self.void:
            return []
        self.arriving[key] = lambda _: None
        dtype = unpack_spec(message.spec).dtype.numpy
        return [self.inbox.open(bytes(message.sender), key, message.box, dtype, lambda: None)]

    def settle(self, request: int) -> None:
        """End a fetch. If it came otherwise than was guessed, or failed, nobody may write to what was offered any more."""
        early = self.offered.pop(request, None)
        if early is not None:
            self.void.append(early.key)
            if not early.written:
                self._close(early)
                self.pool.renew()

    def _close(self, early: _OfferedFetch) -> None:
        self.known.pop(early.spec, None)
        if not early.written:
            self.inbox.close(early.key)
            del self.arriving[early.key]

    def arrived(self, key: Key, array: Array | None) -> None:
        """Act on a stream that is whole."""
        self.arriving.pop(key)(array)

    def break_off(self) -> None:
        """Wait no more for anything that is on its way."""
        for key in self.arriving:
            self.inbox.close(key)
        for table in (self.arriving, self.offered, self.known):
            table.clear()
