"""Other workers, as one worker knows them: where they are, who is lost, whose memory can be read, how fast the links are,
and so in which form a piece goes to each.

Who can read this worker's memory gets a piece as a loan (`shared.py`), everybody else its bytes, packed where the link is
slow enough (`links.py`, `packing.py`). What a piece means is the core's and the exchange's business. No socket, clock or
thread in here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from gt import messages as m
from gt.errors import GTError, ProtocolError

from .card_memory import OPENED, CardMemory, Lending
from .events import Send, ToDispatcher, ToPeer, Unreachable
from .links import Links
from .packing import Packer

SHARED: Final = 32 << 10
"""Bytes from which a piece goes through shared memory, where there is some."""
BATCH: Final = 4
"""Loans that a reader gives back with one message while it waits in a move."""
MAX_PROBED: Final = 4096
"""Workers of whom nothing is known yet, and whose probes wait for that."""


Head = tuple[int, int, int, int, list[str]]
"""What a piece begins with: order, step, part, source and fault."""


class Memory(Protocol):
    """Memory that this worker lends to others on its machine, and theirs that it reads (`shared.py`)."""

    def know(self, worker: int, address: str) -> None:
        """Where a worker is, and so its memory."""

    def forget(self, worker: int) -> None:
        """A worker is gone, and reads nothing more."""

    def reaches(self, worker: int) -> bool:
        """Whether a worker can read what this one lends."""

    def lend(self, nbytes: int, readers: list[int]) -> tuple[int, int, np.ndarray[Any, Any]] | None:
        """(the loan's number, where it lies, the bytes to fill), or None when there is no room."""

    def back(self, reader: int, loans: list[int]) -> None:
        """`reader` has read these loans."""

    def view(self, worker: int, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes that a worker has lent. Raises `GTError` when there are none."""


class Peers:
    """All other workers. `number` is the own one, once the dispatcher has said it; what is to be sent is added to `out`."""

    def __init__(
        self,
        memory: Memory | None,
        links: Links | None,
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
        """Who is gone, and why."""
        self.read: dict[int, list[int]] = {}
        """Loans that were read and not given back yet, by the worker that lent them."""
        self.probed: dict[int, int] = {}
        """Probes of workers whose address is not known yet."""
        self.out: list[Send] = []

    def know(self, worker: int, address: str, now: float) -> None:
        """Where another worker is. The link to one that cannot read this one's memory is measured, once."""
        if worker == self.number or worker in self.lost:
            return
        self.addresses[worker] = address
        if self.card is not None and self.card.know(worker, address):
            self.out.append(ToPeer(address, m.Read(self.number, [OPENED])))
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
        address = self.addresses.pop(worker, None)
        if address is not None:
            self.out.append(Unreachable(address))
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
        """What another worker says, beside pieces."""
        if isinstance(event, m.Read):
            if self.card is not None:
                if OPENED in event.loans:
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

    def say(self, head: Head, workers: list[int], block: Sequence[int] = ()) -> None:
        """To these workers a piece without data: a fault, a word, or one that lies in a block."""
        for worker in workers:
            self.out.append(ToPeer(self.addresses[worker], m.Piece(*head, [*block], False, b"")))

    def send(self, head: Head, array: np.ndarray[Any, Any], workers: list[int]) -> None:
        """One piece, `head` and an array, to these workers: those on this machine read one copy of it in shared memory."""
        near, block = self._lend(array, workers)
        far = [worker for worker in workers if worker not in near]
        data, packed = self._packed(array, far) if far else (b"", False)
        for worker in workers:
            piece = m.Piece(*head, block, False, b"") if worker in near else m.Piece(*head, [], packed, data)
            self.out.append(ToPeer(self.addresses[worker], piece))

    def on_my_card(self, worker: int) -> bool:
        """Whether a worker can read what this one lends on its card."""
        return self.card is not None and worker in self.card.readers

    def lend_on_card(self, held: Any, workers: list[int]) -> Lending | None:
        """Have an array of the device copied to where those of these workers can read it who have mapped the card's memory; None
        where nobody has, or it is small, or there is no room."""
        near = [worker for worker in workers if self.on_my_card(worker)]
        if self.card is None or not near or held.nbytes < SHARED:
            return None
        return self.card.lend(self.number, held, near)

    def _lend(self, array: np.ndarray[Any, Any], workers: list[int]) -> tuple[list[int], list[int]]:
        """Copy an array to where some of these workers can read it: (who they are, the block), or nobody."""
        memory = self.memory
        if memory is None or array.nbytes < SHARED:
            return [], []
        near = [worker for worker in workers if memory.reaches(worker)]
        lent = memory.lend(array.nbytes, near) if near else None
        if lent is None:
            return [], []
        loan, offset, place = lent
        np.copyto(place.view(array.dtype).reshape(array.shape), array)
        return near, [self.number, loan, offset, array.nbytes]

    def _packed(self, array: np.ndarray[Any, Any], workers: list[int]) -> tuple[Any, bool]:
        """The bytes of an array on their way to these workers, and whether they are packed."""
        if not array.size:
            return b"", False
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        bandwidth = self.links.slowest(workers) if self.links is not None else None
        packed = None if self.packer is None or bandwidth is None else self.packer.packed(data, bandwidth)
        return (data, False) if packed is None else (packed, True)

    # pieces that come

    def look(self, piece: m.Piece) -> m.Piece:
        """A piece with the memory that it lies in, if that can be read: its owner may be gone when its turn comes."""
        if piece.block and piece.block[0] in self.addresses and piece.block[1] <= OPENED:
            try:
                return piece._replace(data=self._view(piece))
            except GTError:
                pass  # the move that reads it says why
        return piece

    def on_card(self, piece: m.Piece, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array that a piece holds in memory of a card; None when it does not. Raises `GTError` when it cannot be read."""
        if not piece.block or piece.block[1] <= OPENED:
            return None
        lender, _, offset, nbytes = piece.block
        if self.card is None or nbytes != math.prod(shape) * dtype.itemsize:
            raise ProtocolError("a piece in memory of a card that is none, or of another size")
        return self.card.view(lender, offset, shape, dtype)

    def bytes_of(self, piece: m.Piece, nbytes: int) -> Any:
        """What a piece of so many bytes holds. Raises `GTError` when it cannot be read."""
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
        """Whether kernels read what peers have lent on their cards."""
        return self.card is not None and self.card.reading

    def was_read(self, block: list[int]) -> None:
        """A loan was read, if it was one: one on a card, when kernels that were told to read it have."""
        if block and self.card is not None and block[1] > OPENED:
            self.card.read(block)
        elif block:
            self.read.setdefault(block[0], []).append(block[1])

    def give_back(self, *, waits: bool) -> None:
        """Tell lenders what was read: in batches while a plan `waits`, all of it when none does."""
        for lender, loan, *_ in self.card.was_read() if self.card is not None else ():
            self.read.setdefault(lender, []).append(loan)
        for worker, loans in list(self.read.items()):
            if not waits or len(loans) >= BATCH:
                del self.read[worker]
                address = self.addresses.get(worker)
                if address is not None:
                    self.out.append(ToPeer(address, m.Read(self.number, loans)))
