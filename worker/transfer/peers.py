"""One worker's view of the others: their addresses, who is lost, whose memory it can read, how fast the links are, and so in
which form a piece goes to each.

A worker that can read this one's memory gets a piece as a loan (`shared_memory.py`). All others get its bytes, compressed if
the link is slow enough (`link_probe.py`, `compression.py`). What a piece means is known to the core and to the move. No
socket, clock or thread is used here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from gt.errors import GTError, ProtocolError
from gt.wire import messages as m
from gt.worker.base.events import Send, ToDispatcher, ToPeer, Unreachable
from gt.worker.device.cuda_ipc import OPENED_LOAN, CardMemory, GpuLoan

from .compression import Packer
from .link_probe import LinkProbes

MIN_SHARED_PIECE_BYTES: Final = 32 << 10
"""The size in bytes from which on a piece goes through shared memory, if there is any."""
MIN_RETURNED_LOANS: Final = 4
"""How many loans a reader returns in one message while it waits in a move."""
MAX_PROBED: Final = 4096
"""The most unknown workers whose probes are kept until their addresses are known."""


PieceHeader = tuple[int, int, int, int, list[str]]
"""The first fields of a piece: order, step, part, source and fault."""


class PeerMemory(Protocol):
    """The memory that this worker lends to others on its machine, and the memory of theirs that it reads (`shared_memory.py`)."""

    def know(self, worker: int, address: str) -> None:
        """Learn a worker's address, and with it where its memory is."""

    def forget(self, worker: int) -> None:
        """Forget a worker that is gone and reads no more."""

    def reaches(self, worker: int) -> bool:
        """Whether a worker can read what this one lends."""

    def lend(self, nbytes: int, readers: list[int]) -> tuple[int, int, np.ndarray[Any, Any]] | None:
        """The number of a loan, its offset, and the bytes to fill; None if there is no room."""

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""

    def view(self, worker: int, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes that a worker has lent. Raises `GTError` if there are none."""


class Peers:
    """All other workers. `number` is this worker's own, once the dispatcher has said it; messages to send are appended to
    `out`."""

    def __init__(
        self,
        memory: PeerMemory | None,
        links: LinkProbes | None,
        packer: Packer | None,
        card: CardMemory | None = None,
    ) -> None:
        self.memory = memory
        self.card = card
        self.links = links
        self.packer = packer
        self.number = -1
        self.addresses: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        """The lost workers, and why they are lost."""
        self.read: dict[int, list[int]] = {}
        """Loans that were read and are still to be returned, by lender."""
        self.probed: dict[int, int] = {}
        """Probes of workers whose addresses are not known yet."""
        self.out: list[Send] = []

    def know(self, worker: int, address: str, now: float) -> None:
        """Learn a worker's address. The link to a worker that cannot read this one's memory is measured, once."""
        if worker == self.number or worker in self.lost:
            return
        self.addresses[worker] = address
        if self.card is not None and self.card.know(worker, address):
            self.out.append(ToPeer(address, m.Read(self.number, [OPENED_LOAN])))
        if self.memory is not None:
            self.memory.know(worker, address)
            if self.memory.reaches(worker):
                return
        if self.links is not None:
            probe = self.links.meet(self.number, worker, now)
            if probe is not None:
                self.out.append(ToPeer(address, probe))
            self._answer()

    def lose(self, worker: int, text: str) -> None:
        """A worker is gone."""
        self.lost[worker] = text
        self.out.append(Unreachable(worker, self.addresses.pop(worker, "")))
        self.read.pop(worker, None)
        self.probed.pop(worker, None)
        if self.links is not None:
            self.links.forget(worker)
        if self.memory is not None:
            self.memory.forget(worker)
        if self.card is not None:
            self.card.forget(worker)

    # links

    def hear(self, event: m.Read | m.Probe | m.Echo, now: float) -> None:
        """Process a message of another worker that is not a piece."""
        if isinstance(event, m.Read):
            if self.card is not None:
                if OPENED_LOAN in event.loans:
                    self.card.opened(event.reader)
                self.card.back(event.reader, event.loans)
            if self.memory is not None:
                self.memory.back(event.reader, event.loans)
        elif isinstance(event, m.Probe):
            if len(self.probed) < MAX_PROBED:
                self.probed[event.worker] = event.probe
                self._answer()
        elif self.links is not None:
            answer = self.links.echoed(self.number, event, now)
            if isinstance(answer, m.Probe):
                self.out.append(ToPeer(self.addresses[event.worker], answer))
            elif answer is not None:
                said = m.Linked(event.worker, int(answer.bandwidth), int(answer.latency * 1e9))
                self.out.append(ToDispatcher(said))

    def _answer(self) -> None:
        for worker in [worker for worker in self.probed if worker in self.addresses]:
            echo = m.Echo(self.number, self.probed.pop(worker), self.packer is not None)
            self.out.append(ToPeer(self.addresses[worker], echo))

    # pieces that go

    def say(self, head: PieceHeader, workers: list[int], block: Sequence[int] = ()) -> None:
        """Send these workers a piece without data: a fault, a word, or a piece that lies in shared memory at `block`."""
        for worker in workers:
            self.out.append(ToPeer(self.addresses[worker], m.Piece(*head, [*block], False, b"")))

    def send(self, head: PieceHeader, array: np.ndarray[Any, Any], workers: list[int]) -> None:
        """Send a piece, `head` and an array, to these workers; those on this machine read one copy in shared memory."""
        near, block = self._lend(array, workers)
        far = [worker for worker in workers if worker not in near]
        data, packed = self._packed(array, far) if far else (b"", False)
        for worker in workers:
            piece = m.Piece(*head, block, False, b"") if worker in near else m.Piece(*head, [], packed, data)
            self.out.append(ToPeer(self.addresses[worker], piece))

    def on_my_card(self, worker: int) -> bool:
        """Whether a worker can read what this one lends on its GPU."""
        return self.card is not None and worker in self.card.readers

    def lend_on_card(self, held: Any, workers: list[int]) -> GpuLoan | None:
        """Copy an array of the device to where those of these workers can read it that have mapped the GPU's memory. None if
        none has, if the array is small, or if there is no room."""
        near = [worker for worker in workers if self.on_my_card(worker)]
        if self.card is None or not near or held.nbytes < MIN_SHARED_PIECE_BYTES:
            return None
        return self.card.lend(self.number, held, near)

    def _lend(self, array: np.ndarray[Any, Any], workers: list[int]) -> tuple[list[int], list[int]]:
        """Copy an array to shared memory for those of these workers that can read it. Returns those workers, and where it
        lies."""
        memory = self.memory
        if memory is None or array.nbytes < MIN_SHARED_PIECE_BYTES:
            return [], []
        near = [worker for worker in workers if memory.reaches(worker)]
        lent = memory.lend(array.nbytes, near) if near else None
        if lent is None:
            return [], []
        loan, offset, place = lent
        np.copyto(place.view(array.dtype).reshape(array.shape), array)
        return near, [self.number, loan, offset, array.nbytes]

    def _packed(self, array: np.ndarray[Any, Any], workers: list[int]) -> tuple[Any, bool]:
        """The bytes of an array for these workers, and whether they are compressed."""
        if not array.size:
            return b"", False
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        bandwidth = self.links.slowest(workers) if self.links is not None else None
        packed = None if self.packer is None or bandwidth is None else self.packer.packed(data, bandwidth)
        return (data, False) if packed is None else (packed, True)

    # pieces that come

    def look(self, piece: m.Piece) -> m.Piece:
        """A piece with the shared memory that it lies in, if that can be read, because its owner may be gone when the piece is
        needed."""
        if piece.block and piece.block[0] in self.addresses and piece.block[1] <= OPENED_LOAN:
            try:
                return piece._replace(data=self._view(piece))
            except GTError:
                pass  # the move that reads it says why
        return piece

    def on_card(self, piece: m.Piece, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array of a piece that lies in a GPU's memory; None for other pieces. Raises `GTError` if it cannot be read."""
        if not piece.block or piece.block[1] <= OPENED_LOAN:
            return None
        lender, _, offset, nbytes = piece.block
        if self.card is None or nbytes != math.prod(shape) * dtype.itemsize:
            raise ProtocolError("a piece in memory of a card that is none, or of another size")
        return self.card.view(lender, offset, shape, dtype)

    def bytes_of(self, piece: m.Piece, nbytes: int) -> Any:
        """The bytes of a piece, of which there must be `nbytes`. Raises `GTError` if they cannot be read."""
        if piece.block and not len(piece.data):
            return self._view(piece)
        if not piece.packed:
            return piece.data
        if self.packer is None:
            raise ProtocolError("a packed piece, and LZ4 is not installed here")
        return self.packer.unpacked(piece.data, nbytes)

    def _view(self, piece: m.Piece) -> Any:
        lender, _, offset, nbytes = piece.block
        if self.memory is None:
            raise ProtocolError("a piece in shared memory, of which this worker has none")
        return self.memory.view(lender, offset, nbytes)

    @property
    def reading(self) -> bool:
        """Whether kernels still read what peers have lent on their GPUs."""
        return self.card is not None and self.card.reading

    def was_read(self, block: list[int]) -> None:
        """Note that a loan, if it is one, was read; one on a GPU counts as read when the kernels that read it have finished."""
        if block and self.card is not None and block[1] > OPENED_LOAN:
            self.card.read(block)
        elif block:
            self.read.setdefault(block[0], []).append(block[1])

    def give_back(self, *, waits: bool) -> None:
        """Tell lenders which loans were read: in batches while a plan waits (`waits`), else all of them."""
        for lender, loan, *_ in self.card.was_read() if self.card is not None else ():
            self.read.setdefault(lender, []).append(loan)
        for worker, loans in list(self.read.items()):
            if not waits or len(loans) >= MIN_RETURNED_LOANS:
                del self.read[worker]
                address = self.addresses.get(worker)
                if address is not None:
                    self.out.append(ToPeer(address, m.Read(self.number, loans)))
