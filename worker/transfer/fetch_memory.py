"""The host's memory to which parts of fetches are copied from a GPU.

Copying into new pages takes about three times as long as into those that were used before (on the host of an H100: 3.2 and
10.9 GB/s). So a part goes straight to the place that its receiver has offered, if there is one by now; else to recycled memory,
from where it is copied or sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.bounds import MAX_INLINE_BYTES
from gt.wire.bulk import Key, Outbox
from gt.wire.shared_memory.pool import Pool


class FetchMemory:
    """Finds memory for parts of fetches, as `TensorStore.host_memory` says."""

    def __init__(self, outbox: Outbox, pool: Pool) -> None:
        self.outbox = outbox
        self.pool = pool

    def __call__(self, key: Key, receiver: bytes, value: Any) -> tuple[np.ndarray[Any, Any] | None, bool]:
        """(memory for a part, whether it was offered by the receiver); small ones travel with their message."""
        if value.nbytes <= MAX_INLINE_BYTES:
            return None, False
        place = self.outbox.place_for(receiver, key, value.shape, value.dtype)
        if place is not None:
            return place, True
        try:
            return self.pool.empty(value.shape, value.dtype), False
        except MemoryError:
            return None, False
