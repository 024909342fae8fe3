"""Memory of a GPU that the workers of one host lend each other: pieces pass from card to card, or within one, not by the host.

What `shared.py` is for the host's memory this is for a card's. A worker has an allocation of its own, in slots, which is not of
CuPy's pool, for others map an allocation as a whole; its CUDA IPC handle is announced in the worker's address. Who maps it says
so, by reading the loan `OPENED`, and from then on gets its pieces here; who cannot (another host, another container, a card
out of reach) says nothing, and gets them as before. A piece is copied to a slot once, and its readers add straight out of it; the
slot is given back when the reader's kernels have read it, which an event says.

Takes the module `cupy` as an argument, in `Streams`, for only `backend.py` names it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

from gt.collectives import CHUNK
from gt.errors import WorkerError
from gt.memfd import machine
from gt.slab import Slab

from .streams import Streams

log = logging.getLogger(__name__)
SLOTS: Final = 16
"""Pieces that a worker lends at the same time; what finds no slot goes by the host."""
OPENED: Final = 1 << 40
"""Before the first loan of a card's memory: their numbers are larger than those of the host's. Read by who has mapped it."""
HANDLE_BYTES: Final = 64


class Lending:
    """A piece on its way to a slot. `block`: where its readers find it, when nothing is `left` to be copied."""

    def __init__(self, block: list[int], over: Any) -> None:
        self.block = block
        self._over = over

    @property
    def left(self) -> bool:
        return not self._over.done


class CardMemory:
    """The memory that a worker lends on its card, and that of the peers it has mapped.

    Raises what CuPy raises where there is no such memory, or it cannot be shared.
    """

    def __init__(self, streams: Streams, slots: int = SLOTS) -> None:
        self.streams = streams
        self.cupy = streams.cupy
        self.own = self.cupy.cuda.Memory(slots * CHUNK)
        self.handle = bytes(self.cupy.cuda.runtime.ipcGetMemHandle(self.own.ptr))
        self.slab = Slab(slots, OPENED)
        self.readers: set[int] = set()
        """Workers that have mapped what this one lends."""
        self.peers: dict[int, Any] = {}
        """The memory that peers lend."""
        self._reading: deque[tuple[Any, list[int]]] = deque()
        """Loans that kernels read, each with the event behind those."""

    def announce(self, address: str) -> str:
        """A worker's address with its memory in the host, and where that on its card is."""
        return f"{address}#{machine()}/{self.handle.hex()}" if machine() and "#" in address else address

    def know(self, worker: int, address: str) -> bool:
        """Map a peer's memory, if it is on this machine; whether that is new, and to be told."""
        where, _, handle = (address.split("#") + [""] * 3)[2].partition("/")
        if worker in self.peers or not where or where != machine() or len(handle) != 2 * HANDLE_BYTES:
            return False
        try:
            pointer = self.cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex(handle))
        except (ValueError, RuntimeError) as error:  # CuPy's errors of CUDA are such
            log.debug("the card's memory of worker %d cannot be mapped: %s", worker, error)
            return False
        self.peers[worker] = pointer
        return True

    def opened(self, worker: int) -> None:
        """A peer has mapped what this one lends."""
        self.readers.add(worker)

    def forget(self, worker: int) -> None:
        """A peer is gone: what it borrowed is free, what it lent is mapped no more."""
        self.readers.discard(worker)
        self.slab.lost(worker)
        pointer = self.peers.pop(worker, None)
        if pointer is not None:
            self.streams.compute.synchronize()  # it may be read as yet
            try:
                self.cupy.cuda.runtime.ipcCloseMemHandle(pointer)
            except RuntimeError as error:
                log.debug("the card's memory of worker %d cannot be given up: %s", worker, error)

    def lend(self, number: int, array: Any, readers: list[int]) -> Lending | None:
        """Have an array of worker `number`, this one, copied to where `readers` can read it; None when it is too large, or all
        slots are in use."""
        lent = self.slab.lend(readers) if array.nbytes <= CHUNK else None
        if lent is None:
            return None
        loan, slot = lent
        self._look(self.own.ptr, slot * CHUNK, array.shape, array.dtype, self.own)[...] = array
        return Lending([number, loan, slot * CHUNK, int(array.nbytes)], self.streams.mark(self.streams.compute))

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""
        self.slab.back(reader, loans)

    def view(self, worker: int, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array that a peer has lent. Raises `WorkerError` when there is none."""
        pointer = self.peers.get(worker)
        if pointer is None:
            raise WorkerError(f"the card's memory of worker {worker} cannot be read: it has ended, or is elsewhere")
        if offset + CHUNK > self.own.size:
            raise WorkerError(f"worker {worker} has no memory of its card at {offset}")
        return self._look(pointer, offset, shape, dtype, self)

    @property
    def reading(self) -> bool:
        """Whether kernels may read some loan as yet."""
        return bool(self._reading)

    def read(self, block: list[int]) -> None:
        """All kernels that read a loan were told to."""
        self._reading.append((self.streams.mark(self.streams.compute), block))

    def was_read(self) -> list[list[int]]:
        """The loans that kernels have read."""
        found = []
        while self._reading and self._reading[0][0].done:
            found.append(self._reading.popleft()[1])
        return found

    def _look(self, pointer: int, offset: int, shape: tuple[int, ...], dtype: Any, owner: Any) -> Any:
        cuda = self.cupy.cuda
        memory = cuda.UnownedMemory(pointer, self.own.size, owner, self.own.device_id)
        return self.cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, offset))
