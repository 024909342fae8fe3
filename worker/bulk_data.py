"""What passes over a worker's bulk socket: large puts that come, and large parts of fetches that go.

The shell owns the socket, and says what has arrived; nothing in here knows a socket or the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gt.bounds import MAX_INLINE_BYTES
from gt.errors import ProtocolError
from gt.sharding.partition import extent
from gt.wire import messages as m
from gt.wire.bulk import PUT, Arrived, Bulk, Frames, Key
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.pool import Pool, half_of_memory
from gt.worker.base.events import BulkIn, BulkOut
from gt.worker.transfer.fetch_memory import FetchMemory

from .core import WorkerCore


class BulkData:
    """The large data of a `core`. With `borrows` clients' shared memory is used.

    `send` sends frames on the bulk socket, `say` a message to the dispatcher; `act` has the core act on an event, and `refuse`
    notes what was wrong with a message.
    """

    def __init__(
        self, core: WorkerCore, send: Callable[[Frames], object], say: Callable[[m.Message], object],
        act: Callable[[BulkIn], object], refuse: Callable[[Exception], object], *, borrows: bool,
    ) -> None:  # fmt: skip
        self.core = core
        self.send = send
        self.say = say
        self.act = act
        self.refuse = refuse
        self.borrows = borrows
        self.pool = Pool(half_of_memory())
        """The memory for what comes in chunks, or from a GPU."""
        self.incoming: dict[Key, tuple[int, int]] = {}
        """Puts that were granted: by stream, (client, tensor)."""
        self.begin()

    def begin(self) -> None:
        """Begin with another bulk socket, and nothing under way."""
        self.streams = Bulk(borrower=Borrower() if self.borrows else None)
        self.incoming.clear()
        self.core.stored.host_memory = FetchMemory(self.streams.outbox, self.pool)

    def trim(self, now: float) -> None:
        """Give up memory that was not used for a while. `now` is in seconds, from any steady clock."""
        self.pool.trim(now)
        staging = self.core.backend.staging
        if staging is not None and staging.registered is not None:
            staging.registered.trim(now)
        if self.streams.borrower is not None:
            self.streams.borrower.trim(now)

    def part(self, part: BulkOut) -> None:
        """Send a fetched part: a small one with its message, a large one as a bulk transfer that the client must grant."""
        if part.array.nbytes <= MAX_INLINE_BYTES:
            self.say(m.Part(*part.message[:-1], part.array.tobytes()))
            return
        if part.placed:
            self.send(self.streams.outbox.wrote(part.receiver, part.key))
        else:
            for chunk in self.streams.outbox.add(part.receiver, part.key, part.array):
                self.send(chunk)
        self.say(part.message._replace(bulk=True))

    def give_back(self) -> None:
        """Return clients' memory that is no longer read."""
        for frames in self.streams.returned():
            self.send(frames)

    def open_puts(self) -> None:
        """Grant bulk puts that were announced to their senders; forget those that were called off."""
        expecting = self.core.stored.expecting
        if not expecting and not self.incoming:
            return
        known = set(self.incoming.values())
        here: list[Arrived] = []
        for (client, tensor), (sender, spec, part) in expecting.items():
            if (client, tensor) not in known:
                key = (PUT, client, tensor, self.core.number)
                make = partial(self.pool.empty, extent(part), spec.dtype.numpy)
                self.incoming[key] = client, tensor
                grant = self.streams.inbox.open(sender, key, part, spec.dtype.numpy, make)
                whole = self._answer(self.streams.opened, key)
                if whole is None:
                    self.send(grant)
                else:
                    here.append(whole)
        for key, (client, tensor) in list(self.incoming.items()):
            if (client, tensor) not in expecting:
                del self.incoming[key]
                self.streams.inbox.close(key)
        while here:
            key, array = here.pop(0)
            put = self.incoming.pop(key, None)
            if put is not None:  # else what the core did for another one has called it off
                self.act(BulkIn(*put, array))

    def heard(self, frames: Any) -> None:
        """Act on frames of the bulk socket."""
        whole = self._answer(self.streams.heard, frames)
        if whole is not None:
            self.act(BulkIn(*self.incoming.pop(whole[0]), whole[1]))

    def _answer(self, hear: Callable[[Any], tuple[Arrived | None, Iterator[Frames]]], what: Any) -> Arrived | None:
        """Answer a bulk frame. Returns the put that is complete now, if one is."""
        try:
            whole, answers = hear(what)
            for answer in answers:
                self.send(answer)
        except (ProtocolError, ValueError) as error:
            self.refuse(error)
            return None
        return whole
