"""What is fuzzed of bulk data: frames as clients, workers and the dispatcher's relay hear them."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgpack
import numpy as np

from gt.bounds import MAX_BULK_BYTES
from gt.dispatcher.bulk_window import MAX_HELD_BYTES, BulkWindow
from gt.errors import ProtocolError
from gt.wire.bulk import GET, MAX_EARLY_GRANTS, MAX_IN_FLIGHT_BYTES, PUT, Bulk, read_header
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.memfd import BULK_KIND, SharedMemory

PEER = b"peer"
BOX = [[0, 3], [2, 6]]
SENT, ANNOUNCED = (GET, 1, 5, 0), (GET, 1, 6, 0)
DUE = (PUT, 1, 7, 0)
MEMORY = "@memory"
"""In a sample, in place of the name of a memory that there is."""


@cache
def _memory() -> SharedMemory:
    return SharedMemory(1 << 12, BULK_KIND)


def _values() -> Any:
    return np.arange(12, dtype=np.float32).reshape(3, 4)


def samples() -> list[Any]:
    """Frames that belong together: [sender, header, payload]."""
    loan, offer = [MEMORY, BOX], [MEMORY, 64, [4, 8], BOX]
    return [
        [[PEER, [0, *DUE, 0], bytes(20)], [PEER, [0, *DUE, 20], bytes(28)]],
        [[PEER, [1, *SENT, 48], b""], [PEER, [1, *ANNOUNCED, 20], b"here"], [PEER, [1, *ANNOUNCED, 48], b""]],
        [[PEER, [2, *DUE, 128], loan]],
        [[PEER, [4, *SENT, 48], offer], [PEER, [4, *ANNOUNCED, 48], offer], [PEER, [3, *SENT, 0], b""]],
        [[PEER, [5, *DUE, 0], b""], [PEER, [1, *SENT, MAX_IN_FLIGHT_BYTES], b""]],
    ]


def build(tree: Any, packed: Any) -> bytes:
    """Frames, as bytes where they are others."""
    frames = []
    for item in tree if isinstance(tree, list) else [tree]:
        parts = item if isinstance(item, list) else [item]
        frames.append([part if isinstance(part, bytes) else packed(_named(part)) for part in parts])
    return bytes(packed(frames))


def _named(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_named(item) for item in tree]
    return _memory().where if tree == MEMORY else tree


def check(data: bytes) -> None:
    """Whoever hears it goes on in bounded memory, or says `ProtocolError`, as does the relay."""
    try:
        heard = msgpack.unpackb(data)
    except Exception:  # noqa: BLE001 — a mutation of bytes need not hold frames
        heard = [[data]]
    sound = isinstance(heard, list) and all(
        isinstance(frames, list) and all(isinstance(frame, bytes) for frame in frames) for frames in heard
    )
    conversation: list[list[bytes]] = (
        heard if sound else [[PEER, data, b""], [PEER, msgpack.packb([1, *SENT, 9]), data]]
    )
    _listen(conversation)
    _relay(conversation)


def _listen(conversation: list[list[bytes]]) -> None:
    each = Bulk("here", Borrower())
    each.inbox.open(PEER, DUE, BOX, np.dtype(np.float32), lambda: np.empty((3, 4), np.float32))
    sent = sum(len(chunk) for _, _, chunk in each.outbox.add(PEER, SENT, _values(), BOX))
    try:
        for frames in conversation:
            arrived, answers = each.heard(frames)
            sent += sum(memoryview(payload).nbytes for _, _, payload in answers)
            assert arrived is None or arrived[1] is None or arrived[1].shape == (3, 4)
        list(each.outbox.add(PEER, ANNOUNCED, _values(), BOX))
        each.opened(DUE)
        list(each.returned())
    except ProtocolError:
        pass
    assert sent < 10_000
    assert len(each.outbox.early) + len(each.inbox.early) + len(each.outbox.offers) <= 3 * MAX_EARLY_GRANTS


def _relay(conversation: list[list[bytes]]) -> None:
    window = BulkWindow()
    try:
        for frames in conversation:
            if len(frames) != 3:
                continue
            window.says(frames, 0)
            window.hears(frames[1], len(frames[2]))
            window.beat()
            window.released(0)
            kind, key, number = read_header(frames[1])
            assert all(type(each) is int and each >= 0 for each in (kind, *key, number))
    except ProtocolError:
        pass
    assert window.granted >= 0
    assert window.held_bytes <= MAX_HELD_BYTES + MAX_BULK_BYTES
    assert window.granted == sum(stream.end - stream.at for stream in window.streams.values())
