"""A client and a worker with bulk streams between them, and the frames on their way: for tests of `gt/wire/bulk.py`."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np

from gt.wire.bulk import (
    CHUNK_BYTES,
    DATA,
    GRANT,
    OFFER,
    PUT,
    Bulk,
    Frames,
    Key,
    read_header,
)
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.memfd import machine
from gt.wire.shared_memory.pool import Pool

CLIENT, WORKER = b"client", b"worker"
U8 = np.dtype(np.uint8)
ROOM = 64 << 20


def drawn(seed: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def box_of(shape: Any) -> list[tuple[int, int]]:
    return [(0, size) for size in shape]


def into(array: np.ndarray[Any, Any]) -> Any:
    return lambda: array


class Wire:
    """A client and a worker, and the frames between them: one queue each way, delivered in the order of `choose`.

    `near`: both are on one machine. `blind`: the worker says that it is, and cannot open the client's memory.
    """

    def __init__(self, near: bool = False, blind: bool = False) -> None:
        self.pool = Pool(ROOM)
        self.client = Bulk(machine() if near else "")
        self.worker = Bulk(borrower=Borrower() if near else None)
        if blind:
            assert self.worker.borrower is not None
            self.worker.borrower.maps = Closed()
        self.ends = {CLIENT: self.client, WORKER: self.worker}
        self.queues: dict[bytes, deque[Any]] = {CLIENT: deque(), WORKER: deque()}
        """What is on its way to each."""
        self.near = near
        self.granted: dict[Key, int] = {}
        self.sent: dict[Key, int] = {}
        self.whole: dict[Key, np.ndarray[Any, Any] | None] = {}
        self.kinds: list[int] = []

    def post(self, frames: Frames, source: bytes) -> None:
        """What one end sends to the other; the relay says who sent it."""
        target, header, payload = frames
        kind, key, number = read_header(header)
        if kind in (GRANT, OFFER):
            self.granted[key] = number
        elif kind == DATA:
            assert len(payload) <= CHUNK_BYTES
            self.sent[key] = number + len(payload)
            assert self.sent[key] <= self.granted[key], "no byte leaves that was not granted"
        self.kinds.append(kind)
        self.queues[target].append((source, header, bytes(payload)))

    def put(self, key: Key, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The client sends `data`, in its pool where both are near; the worker opens the stream."""
        room = self.pool.room(data.nbytes) if self.near else None
        array = np.empty(data.shape, data.dtype) if room is None else room.view(data.dtype).reshape(data.shape)
        array[...] = data
        for frames in self.client.outbox.add(
            WORKER, key, array, box_of(data.shape), self.pool.place(array) if self.near else None
        ):
            self.post(frames, CLIENT)
        made = np.zeros(data.shape, data.dtype)
        self.post(self.worker.inbox.open(CLIENT, key, box_of(data.shape), data.dtype, into(made)), WORKER)
        return made

    def get(self, key: Key, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The worker has `data` for the client, which opens the stream, with a place for it where both are near."""
        assert list(self.worker.outbox.add(CLIENT, key, data)) == []
        array = self.pool.empty(data.shape, data.dtype)
        place = self.pool.place(array) if self.near else None
        offer = None if place is None else (*place, data.shape, box_of(data.shape))
        self.post(self.client.inbox.open(WORKER, key, box_of(data.shape), data.dtype, into(array), offer), CLIENT)
        return array

    def deliver(self, target: bytes) -> None:
        whole, answers = self.ends[target].heard(list(self.queues[target].popleft()))
        if whole is not None:
            self.whole[whole[0]] = whole[1]
        for frames in answers:
            self.post(frames, target)

    def deliver_all(self, choice: random.Random) -> None:
        while any(self.queues.values()):
            self.deliver(choice.choice([end for end, queue in self.queues.items() if queue]))

    def returned(self) -> None:
        """The worker says what it reads no more."""
        for frames in self.worker.returned():
            self.post(frames, WORKER)
        self.deliver_all(random.Random(0))

    def idle(self) -> bool:
        boxes = (self.client.outbox, self.client.inbox, self.worker.outbox, self.worker.inbox)
        return not any(box.streams for box in boxes) and self.client.under_way() == self.worker.under_way() == (0, 0)


class Closed(dict[int, Any]):
    """Memory that may not be opened."""

    def get(self, *_: Any) -> Any:
        raise PermissionError("not yours")


# in frames


def far(size: int, seed: int = 1) -> tuple[Wire, Key, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    wire, key, data = Wire(), (PUT, 1, 1, 0), drawn(seed, size)
    return wire, key, data, wire.put(key, data)


def no_memory() -> Any:
    raise MemoryError


# shared memory


def borrowed(size: int = 100_000) -> tuple[Wire, Key, np.ndarray[Any, Any]]:
    """A put that the worker has borrowed."""
    wire, key, data = Wire(near=True), (PUT, 1, 1, 0), drawn(3, size)
    wire.put(key, data)
    wire.deliver_all(random.Random(0))
    return wire, key, data
