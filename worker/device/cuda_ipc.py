"""GPU memory that the workers of one host lend each other, so that pieces pass between GPUs, or within one, without the host.

It is for a GPU's memory what `worker/transfer/shared_memory.py` is for the host's. A worker allocates a slab of its own,
outside CuPy's pool, because others map an allocation as a whole, and announces its CUDA IPC handle in its address. A peer
that has mapped it says so by reading the special loan `OPENED_LOAN`, and from then on gets its pieces here. A peer that
cannot map it (on another host, in another container, or with a GPU out of reach) says nothing and gets pieces as before. A
piece is copied to a slot once, and its readers add directly from it; a reader returns the slot when its kernels have read
it, which an event tells.

Takes the module `cupy` as an argument, in `CudaStreams`, because only `worker/base/backend.py` names it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

from gt.errors import WorkerError
from gt.sharding.collectives import MAX_CHUNK_BYTES
from gt.wire.shared_memory.memfd import machine
from gt.wire.shared_memory.slab import Slab

from .cuda_streams import CudaStreams

log = logging.getLogger(__name__)
GPU_SLOTS: Final = 16
"""How many pieces a worker can lend at the same time; others go through the host."""
OPENED_LOAN: Final = 1 << 40
"""The special loan that a peer reads when it has mapped a GPU's memory; loans of such memory have larger numbers, those of the
host's memory smaller ones."""
HANDLE_BYTES: Final = 64


class GpuLoan:
    """A piece on its way to a slot. When nothing is `left` to be copied, its readers find it at `block`."""

    def __init__(self, block: list[int], over: Any) -> None:
        self.block = block
        self._over = over

    @property
    def left(self) -> bool:
        return not self._over.done


class CardMemory:
    """The memory that a worker lends on its GPU, and that of the peers that it has mapped.

    Raises what CuPy raises if there is no such memory or it cannot be shared.
    """

    def __init__(self, streams: CudaStreams, slots: int = GPU_SLOTS) -> None:
        self.streams = streams
        self.cupy = streams.cupy
        self.own = self.cupy.cuda.Memory(slots * MAX_CHUNK_BYTES)
        self.handle = bytes(self.cupy.cuda.runtime.ipcGetMemHandle(self.own.ptr))
        self.slab = Slab(slots, OPENED_LOAN)
        self.readers: set[int] = set()
        """The workers that have mapped this one's memory."""
        self.peers: dict[int, Any] = {}
        """The memory that peers lend."""
        self._reading: deque[tuple[Any, list[int]]] = deque()
        """The loans that kernels still read, each with the event after those kernels."""

    def announce(self, address: str) -> str:
        """A worker's address with the places of its memory on the host and on the GPU."""
        return f"{address}#{machine()}/{self.handle.hex()}" if machine() and "#" in address else address

    def know(self, worker: int, address: str) -> bool:
        """Map a peer's memory, if it is on this machine. Returns whether it is newly mapped and the peer has to be told."""
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
        """A peer has mapped this worker's memory."""
        self.readers.add(worker)

    def forget(self, worker: int) -> None:
        """A peer is gone: its loans are returned, and its memory is unmapped."""
        self.readers.discard(worker)
        self.slab.lost(worker)
        pointer = self.peers.pop(worker, None)
        if pointer is not None:
            self.streams.compute.synchronize()  # it may be read as yet
            try:
                self.cupy.cuda.runtime.ipcCloseMemHandle(pointer)
            except RuntimeError as error:
                log.debug("the card's memory of worker %d cannot be given up: %s", worker, error)

    def lend(self, number: int, array: Any, readers: list[int]) -> GpuLoan | None:
        """Copy an array of this worker (its number is `number`) to where `readers` can read it; None if it is too large or all
        slots are in use."""
        lent = self.slab.lend(readers) if array.nbytes <= MAX_CHUNK_BYTES else None
        if lent is None:
            return None
        loan, slot = lent
        self._look(self.own.ptr, slot * MAX_CHUNK_BYTES, array.shape, array.dtype, self.own)[...] = array
        return GpuLoan(
            [number, loan, slot * MAX_CHUNK_BYTES, int(array.nbytes)], self.streams.mark(self.streams.compute)
        )

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""
        self.slab.back(reader, loans)

    def view(self, worker: int, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array that a peer has lent. Raises `WorkerError` if there is none."""
        pointer = self.peers.get(worker)
        if pointer is None:
            raise WorkerError(f"the card's memory of worker {worker} cannot be read: it has ended, or is elsewhere")
        if offset + MAX_CHUNK_BYTES > self.own.size:
            raise WorkerError(f"worker {worker} has no memory of its card at {offset}")
        return self._look(pointer, offset, shape, dtype, self)

    @property
    def reading(self) -> bool:
        """Whether kernels may still read some loan."""
        return bool(self._reading)

    def read(self, block: list[int]) -> None:
        """All kernels that read a loan have been launched."""
        self._reading.append((self.streams.mark(self.streams.compute), block))

    def was_read(self) -> list[list[int]]:
        """The loans whose kernels have finished reading."""
        found = []
        while self._reading and self._reading[0][0].done:
            found.append(self._reading.popleft()[1])
        return found

    def _look(self, pointer: int, offset: int, shape: tuple[int, ...], dtype: Any, owner: Any) -> Any:
        cuda = self.cupy.cuda
        memory = cuda.UnownedMemory(pointer, self.own.size, owner, self.own.device_id)
        return self.cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, offset))
