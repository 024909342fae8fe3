"""A device that is none: NumPy's arrays, whose copies to and from pinned memory are done when somebody waits for them.

Until then a pinned holds nonsense, so whoever reads it without `settle` is found; copies are in order, as on a stream.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gt.worker.device.buffers import HostBuffers

NONSENSE = 0xAA


class Unhurried(HostBuffers):
    """What moves memory, and how often it did: `outs` and `ins` are copies, `settled` waits, `pinned` blocks made."""

    def __init__(self) -> None:
        self.outs = self.ins = self.settled = self.pinned = 0
        self.settled_in: set[int] = set()
        """Threads that waited."""
        self.under_way: list[tuple[Any, bytes]] = []
        self.lock = threading.Lock()
        """Those who read ahead wait in their own thread."""

    def pin(self, nbytes: int) -> np.ndarray[Any, Any]:
        self.pinned += 1
        return np.full(nbytes, NONSENSE, np.uint8)

    def copy_out(self, value: Any, pinned: np.ndarray[Any, Any]) -> None:
        self.outs += 1
        with self.lock:
            self.under_way.append((pinned, bytes(self.dump(value))))
            pinned[:] = NONSENSE

    def copy_in(self, pinned: np.ndarray[Any, Any], nbytes: int) -> Any:
        self.ins += 1
        root = np.empty(nbytes, np.uint8)
        with self.lock:
            late = [data for other, data in self.under_way if other is pinned]
            root[:] = np.frombuffer(late[-1], np.uint8)[:nbytes] if late else pinned[:nbytes]
        return root

    def settle(self) -> None:
        self.settled += 1
        self.settled_in.add(threading.get_ident())
        with self.lock:
            for pinned, data in self.under_way:
                pinned[: len(data)] = np.frombuffer(data, np.uint8)
            self.under_way.clear()
