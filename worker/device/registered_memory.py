"""Shared memory that is registered with CUDA, so that a GPU copies between it and its own without the host's help.

Of the host's memory a GPU reads and writes only pages that are locked. The blocks of clients, in which they put and fetch
(`gt/wire/shared_memory/pool.py`), are used again and again, so their pages are locked where they are: at their second use, since
locking pages that this process has used already takes a seventh of the time, and much is put only once. On the host of an H100
locking 256 MiB took 15 ms, new pages 110 ms, a copy of them by the host 24 ms. A range is registered in pieces, a few
milliseconds each: one a turn, while what was registered before is copied.

* **Pages.** The owner of a range may give its pages up and have new ones at the same place, of which a device knows nothing. The
  stamp of a range tells (`gt/wire/shared_memory/page_stamp.py`).
* **Lifetime.** A range is unregistered when no copy uses it any more (`done`), and unmapped after that, because whoever is
  registered holds the mapping.
* **Limit.** Locked pages are never swapped out and stay when their owner has given them up. So there are at most `limit` bytes of
  them; those used longest ago are unregistered first, and those not used for some seconds too. Where the host locks no (more)
  memory, there are as many as it has locked; all else is copied through pinned memory.

Takes the module `cupy` as an argument, in `CudaStreams`. Whoever copies is in `async_copies.py`.
"""

from __future__ import annotations

import logging
import mmap
from collections import OrderedDict
from itertools import pairwise
from typing import Any, Final

import numpy as np

from gt.wire.shared_memory.page_stamp import StampedRange, stamped_range

from .cuda_streams import CudaStreams

log = logging.getLogger(__name__)
PIECE_BYTES: Final = 32 << 20
"""The size of the pieces that are registered on their own."""
MIN_REGISTERED_BYTES: Final = 1 << 20
"""The smallest array for which memory is registered: a smaller one is copied in less time than a registration takes."""
MAX_REGISTERED_BYTES: Final = 4 << 30
"""The most bytes that a worker has registered, unless GT_REGISTERED_MEMORY says otherwise."""
MAX_SEEN_RANGES: Final = 256
"""The most ranges that are remembered, registered or used once."""
UNUSED_SECONDS: Final = 10.0
"""The seconds without a use after which a range is unregistered; their owner gives pages up after as many."""


class RegisteredRange:
    """A range that was used before, of which some pieces are registered."""

    __slots__ = ("address", "memory", "nbytes", "pieces", "refused", "since", "stamp", "users")

    def __init__(self, found: StampedRange, now: float) -> None:
        self.memory: mmap.mmap = found.memory
        self.address, self.nbytes, self.stamp = found.address, found.nbytes, found.stamp
        self.pieces: set[int] = set()
        """The numbers of those that are registered."""
        self.users = 0
        """How many copies use it."""
        self.since = now
        """When it was last used."""
        self.refused = False
        """Whether no more of it is to be registered for now."""

    def is_of(self, found: StampedRange) -> bool:
        """Whether these are the pages of `found`, and all of them."""
        return self.stamp == found.stamp and self.memory is found.memory and self.nbytes >= found.nbytes

    def touches(self, found: StampedRange) -> bool:
        """Whether some page may be of both."""
        return self.address < found.address + found.nbytes and found.address < self.address + self.nbytes

    def extent(self, piece: int) -> tuple[int, int]:
        """(address, bytes) of a piece."""
        return self.address + piece * PIECE_BYTES, min(PIECE_BYTES, self.nbytes - piece * PIECE_BYTES)

    def piece_at(self, address: int) -> tuple[int, int]:
        """(number of the piece that an address lies in, bytes from there to its end)."""
        piece = (address - self.address) // PIECE_BYTES
        start, nbytes = self.extent(piece)
        return piece, start + nbytes - address


class RegisteredMemory:
    """The registered ranges of this process: at most `limit` bytes."""

    def __init__(self, streams: CudaStreams, limit: int) -> None:
        self.streams = streams
        self.runtime = streams.cupy.cuda.runtime
        self.limit = limit
        self.nbytes = 0
        """Bytes that are registered."""
        self.refused = False
        """Whether the host has locked no more once: nothing is unregistered any more to make room."""
        self.now = 0.0
        self.ranges: OrderedDict[int, RegisteredRange] = OrderedDict()
        """By address, the one that was used last at the end."""

    def use(self, array: np.ndarray[Any, Any]) -> RegisteredRange | None:
        """The range that an array lies in, for one copy, after which it is `done`; None if the copy should not use it."""
        if not MIN_REGISTERED_BYTES <= array.nbytes <= self.limit:
            return None
        found = stamped_range(array)
        if found is None:
            return None
        known = self.ranges.get(found.address)
        if known is None or not known.is_of(found):
            self._note(found)
            return None
        self.ranges.move_to_end(found.address)
        known.since, known.refused = self.now, False
        known.users += 1
        return known

    def done(self, used: RegisteredRange) -> None:
        """A copy that used a range is over."""
        used.users -= 1

    def registered(self, within: RegisteredRange, address: int) -> int:
        """How many bytes from an address on a copy may read or write: to the end of its piece; 0 if that is not registered."""
        piece, nbytes = within.piece_at(address)
        return nbytes if piece in within.pieces else 0

    def register(self, within: RegisteredRange, address: int) -> None:
        """Register the piece that an address lies in, if there is room."""
        piece, _ = within.piece_at(address)
        start, nbytes = within.extent(piece)
        if not self._make_room(nbytes):
            within.refused = True
            return
        try:
            with self.streams.device:
                self.runtime.hostRegister(start, nbytes, 0)
        except self.runtime.CUDARuntimeError as error:
            within.refused, self.limit = True, self.nbytes
            if self.refused:
                return
            self.refused = True
            log.warning(
                "large puts and fetches take longer: this host locks no more memory for the GPU than %s MiB (%s); raise the "
                "limit of locked memory (ulimit -l; of a container: --ulimit memlock=-1), or say GT_REGISTERED_MEMORY=0",
                self.nbytes >> 20, error,
            )  # fmt: skip
            return
        within.pieces.add(piece)
        self.nbytes += nbytes
        log.debug("%s MiB of shared memory are registered", self.nbytes >> 20)

    def trim(self, now: float) -> None:
        """Unregister what was not used for a while. `now` is in seconds, from any steady clock."""
        self.now = now
        for each in list(self.ranges.values()):
            if now - each.since < UNUSED_SECONDS:
                return
            if not each.users:
                self._forget(each)

    def check(self) -> None:
        """The invariants."""
        sizes = [each.extent(piece)[1] for each in self.ranges.values() for piece in each.pieces]
        assert self.nbytes == sum(sizes) <= self.limit
        places = sorted((each.address, each.address + each.nbytes) for each in self.ranges.values())
        assert all(stop <= start for (_, stop), (start, _) in pairwise(places)), "none touch"
        assert all(each.users >= 0 for each in self.ranges.values())

    def _note(self, found: StampedRange) -> None:
        """Remember a range that is used for the first time, in place of those that had its pages' addresses before."""
        touched = [each for each in self.ranges.values() if each.touches(found)]
        if any(each.users for each in touched):
            return
        for each in touched:
            self._forget(each)
        if len(self.ranges) >= MAX_SEEN_RANGES:
            unused = next((each for each in self.ranges.values() if not each.users), None)
            if unused is None:
                return
            self._forget(unused)
        self.ranges[found.address] = RegisteredRange(found, self.now)

    def _forget(self, which: RegisteredRange) -> None:
        for piece in list(which.pieces):
            self._unregister(which, piece)
        del self.ranges[which.address]

    def _make_room(self, nbytes: int) -> bool:
        """Unregister what was used longest ago until there is room for so many bytes. Returns whether there is."""
        for each in () if self.refused else self.ranges.values():
            while self.nbytes + nbytes > self.limit and each.pieces and not each.users:
                self._unregister(each, next(iter(each.pieces)))
        return self.nbytes + nbytes <= self.limit

    def _unregister(self, which: RegisteredRange, piece: int) -> None:
        start, nbytes = which.extent(piece)
        which.pieces.discard(piece)
        self.nbytes -= nbytes
        try:
            with self.streams.device:
                self.runtime.hostUnregister(start)
        except (
            self.runtime.CUDARuntimeError
        ) as error:  # a device that has failed: the worker will hear of it by its next call
            log.debug("memory was not unregistered: %s", error)
