"""The client's sockets: control, and bulk beside it. Nothing here knows what messages mean, but for the bulk streams."""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gt import messages as m
from gt import transport
from gt.bulk import GET, INLINE, PUT, Bulk, Frames, Key
from gt.host import environment_number
from gt.memfd import SHARED_MEMORY
from gt.partition import extent
from gt.spec import unpack_spec


class SocketLink:
    """A connection to the dispatcher at `address`. `local` is the set of daemons started for this process, if any."""

    def __init__(self, address: str, local: Any = None) -> None:
        self.local = local
        self.control = transport.dealer(address, transport.new_identity())
        self.bulk: transport.Socket | None = None
        self.bulk_identity = transport.new_identity()
        self.number = 0
        self.client = 0
        self.streams = Bulk(environment_number("GT_SHARED_MEMORY", SHARED_MEMORY))
        self.waiting_puts: dict[int, np.ndarray[Any, Any]] = {}
        self.arriving: dict[Key, Callable[[], None]] = {}
        self.gone = False
        self.pollers = threading.local()
        """A poll object serves one thread at a time, so each that waits has its own."""

    def joined(self, facts: dict[str, Any]) -> None:
        """Connect the bulk socket that the dispatcher named in its welcome."""
        self.client = int(facts["number"])
        self.bulk = transport.dealer(str(facts["bulk_address"]), self.bulk_identity)
        transport.loop_back(self.bulk, self.bulk_identity)
        self.pollers = threading.local()

    def send(self, message: m.Message) -> None:
        """Send one message. Never waits, never loses."""
        self.number += 1
        if not transport.send(self.control, m.encode(message, self.number)):
            self.gone = True

    def receive(self) -> list[m.Message]:
        """All messages that have arrived; bulk chunks are put in place on the way."""
        found: list[m.Message] = []
        while (frames := transport.receive(self.control)) is not None:
            found.append(m.decode(frames)[1])
        if self.bulk is not None:
            while (frames := transport.receive(self.bulk)) is not None:
                self._bulk(frames)
        return found

    def wait(self, timeout: float) -> None:
        """Wait until something may have arrived, at most `timeout` seconds (ZeroMQ's descriptors signal edges, so never long)."""
        poll = getattr(self.pollers, "poll", None)
        if poll is None:
            poll = self.pollers.poll = select.poll()
            for socket in (self.control, self.bulk):
                if socket is not None:
                    poll.register(socket.fileno(), select.POLLIN)
        poll.poll(min(timeout, 0.02) * 1000)

    def put_bulk(self, array: np.ndarray[Any, Any], tensor: int) -> bool:
        """Whether `array` goes by the bulk socket; if so it is kept until `cut` says where its parts go."""
        if array.nbytes <= INLINE or self.bulk is None:
            return False
        self.waiting_puts[tensor] = array  # its owner waits until all of it has left
        return True

    def cut(self, message: m.Cut) -> None:
        """Offer each worker its part of a bulk put; the worker grants when it is ready."""
        array = self.waiting_puts.pop(message.tensor, None)
        if array is None:
            return  # the put was interrupted
        for worker, identity, box in message.parts:
            part = np.ascontiguousarray(array[tuple(slice(*pair) for pair in box)])
            assert part.shape == extent(tuple((a, b) for a, b in box)), "the dispatcher cuts within the tensor"
            key = (PUT, self.client, message.tensor, worker)
            for chunk in self.streams.outbox.add(bytes(identity), key, part.reshape(-1).view(np.uint8).data):
                self._send_bulk(chunk)

    def sending(self, tensor: int) -> bool:
        """Whether a bulk put is still on its way out."""
        return tensor in self.waiting_puts or self.streams.outbox.sends(tensor)

    def cancel(self, tensor: int) -> None:
        """Send no more of a bulk put."""
        self.waiting_puts.pop(tensor, None)
        self.streams.outbox.cancel(tensor)

    def break_off(self) -> None:
        """Let no bulk data that is on its way go on: with one worker's parts of the tensors the others' are gone too."""
        self.streams.break_off()
        for key in self.arriving:
            self.streams.inbox.close(key)
        self.arriving.clear()

    def ignore(self, message: m.Value) -> None:
        """Hear a part that nobody waits for to its end, so that its worker need not keep it."""
        key = (GET, self.client, message.request, message.worker)
        self.arriving[key] = lambda: None
        nbytes = unpack_spec(message.spec).dtype.itemsize * math.prod(stop - start for start, stop in message.box)
        self._send_bulk(self.streams.inbox.ignore(bytes(message.sender), key, nbytes))

    def fetch_bulk(self, message: m.Value, buffer: Any, done: Callable[[], None]) -> None:
        """Receive a part into `buffer`; `done` when it is whole."""
        key = (GET, self.client, message.request, message.worker)
        self.arriving[key] = done
        self._send_bulk(self.streams.inbox.open(bytes(message.sender), key, buffer))

    def _send_bulk(self, frames: Frames) -> None:
        assert self.bulk is not None, "bulk data comes after the welcome"
        peer, header, payload = frames
        if isinstance(payload, memoryview):
            payload = bytes(payload)  # of an array that its owner may change as soon as all of it has left
        transport.send(self.bulk, [peer, header, payload])

    def _bulk(self, frames: list[Any]) -> None:
        whole, answers = self.streams.heard(frames)
        for answer in answers:
            self._send_bulk(answer)
        if whole is not None:
            self.arriving.pop(whole)()

    def alive(self) -> str | None:
        """None, or why the service cannot answer any more."""
        if self.gone:
            return "it closed the connection"
        return None if self.local is None else self.local.failure()

    def close(self) -> None:
        """Close the sockets; what was sent still leaves."""
        self.control.close(linger=500)
        if self.bulk is not None:
            self.bulk.close(linger=0)
