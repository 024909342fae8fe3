"""The client's sockets: control, and bulk beside it. Nothing here knows what messages mean, but for the bulk streams."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from gt.bounds import MAX_INLINE_BYTES
from gt.daemon.active_clock import ActiveClock
from gt.daemon.host import environment_number, host_facts, memory_limit
from gt.daemon.process_end import has_ended, process_descriptor
from gt.errors import ConnectionFailed
from gt.ir.spec import Spec
from gt.standby.search import StandbySearch
from gt.unix_sockets.dealer import UnixDealer
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire.bulk import Bulk
from gt.wire.bulk import Frames as BulkFrames
from gt.wire.connection import LOOK_SECONDS, Connection
from gt.wire.keys import keys_for
from gt.wire.messages import codec
from gt.wire.reliable_stream import LEASE_SECONDS, Frames
from gt.wire.shared_memory.memfd import machine
from gt.wire.shared_memory.pool import Pool, half_of_memory

from .bulk_fetches import BulkFetches
from .bulk_puts import BulkPut, BulkPuts

LAST_MESSAGES_SECONDS: Final = 0.2
"""Seconds in which what a dispatcher sent before its end is read, once the connection is cut."""
CUT_SECONDS: Final = 2.0
"""Seconds after a dispatcher's end in which its connection is found to be cut, however busy the machine is."""
EDGE_SECONDS: Final = 0.02
"""The longest wait on ZeroMQ's descriptors, which signal edges, and on a connection that has ended and may be opened again."""
REASON_SECONDS: Final = 1.0
"""Seconds in which the control socket may say why a session has ended of which the bulk socket is not known any more."""


MAX_RESEND_BYTES: Final = 1 << 30
"""The most bytes of messages that are kept to be sent again, unless GT_RESEND_BYTES says otherwise."""
RESEND_MEMORY_FRACTION: Final = 8
"""At most this fraction of the memory is used for them."""


class Together:
    """While it lasts, what is sent by a socket is kept, and it leaves at the end."""

    __slots__ = ("socket",)

    def __init__(self, socket: UnixDealer) -> None:
        self.socket = socket

    def __enter__(self) -> None:
        self.socket.hold()

    def __exit__(self, *_: object) -> None:
        self.socket.let_go()


EACH_BY_ITSELF: Final = nullcontext()
"""For a part of what is kept already; and for libzmq, whose thread joins messages by itself."""


def resend_limit() -> int:
    """The limit of a session's resend buffer in bytes, from GT_RESEND_BYTES; 0 if GT_RECOVERY is 0. Raises `SessionError` if one
    is no number."""
    limit = environment_number("GT_RESEND_BYTES", min(MAX_RESEND_BYTES, memory_limit() // RESEND_MEMORY_FRACTION))
    return int(limit) if environment_number("GT_RECOVERY", 1) else 0


class SocketLink:
    """A connection to the dispatcher at `address`, on which nothing is lost while the session lives. `local` is the set of
    daemons started for this process, if any; `key` is the path of a key file, where the service needs another key than this
    user's own (`gt/wire/keys.py`)."""

    def __init__(self, address: str, local: Any = None, key: str | None = None) -> None:
        self.local = local
        self.address = address
        self.keys = keys_for(address, key)
        lease = environment_number("GT_LEASE", LEASE_SECONDS)
        self.clock = ActiveClock()
        self.look_at = 0.0
        """When the connections are looked at next."""
        self.lease = lease
        self.control = self._connected()
        self.bulk: Connection | None = None
        self.left: Connection | None = None
        """The bulk connection that was there before, whose stream goes on if the dispatcher is the same."""
        self.bulk_stirs = False
        """Whether the bulk socket may have something. It has nothing after it was read empty, until its descriptor becomes
        readable or it is used, which takes back what the descriptor says."""
        self.bulk_identity = transport.new_identity()
        self.client = 0
        limit = environment_number("GT_SHARED_MEMORY", half_of_memory())
        self.memory = Pool(limit)
        self.streams = Bulk(machine() if limit else "")
        self.resend_bytes = resend_limit()
        self.puts = BulkPuts(self.memory, self.streams.outbox, keeps=self.resend_bytes > 0)
        self.fetches = BulkFetches(self.memory, self.streams.inbox)
        self.process: int | None = None
        """The descriptor of the dispatcher's process, if it is on this machine."""
        self.ended = 0.0
        """When that process was first found to have ended."""
        self.unknown_since = 0.0
        """When the bulk socket was first found not to be known any more, though the control socket is."""
        self.processes_due = 0.0
        """When processes are looked at next: that takes as long as a few messages, and whoever waits asks after each."""
        self.search = StandbySearch(self.keys, self.clock)
        self.replaced = ""
        """What to say of the dispatcher if another one serves in its place."""
        self.absent = False
        """Whether nothing may be sent, because no dispatcher knows the session."""
        self.closed = False
        """Another thread may still wait for something, and finds that nothing comes any more."""
        self.pollers = threading.local()
        """A poll object serves one thread at a time: each that waits has its own, with the descriptor of the control socket."""

    def _reopened(self) -> None:
        """There is another socket to wait for."""
        self.pollers = threading.local()
        self.bulk_stirs = True

    def _connected(self) -> Connection:
        return Connection(self.address, lease=self.lease, reopened=self._reopened, clock=self.clock, keys=self.keys)

    def connect_bulk(self, facts: dict[str, Any]) -> None:
        """Connect the bulk socket that the dispatcher named in its first welcome."""
        self.found_again(facts)
        self.absent = False

    def has_bulk(self) -> bool:
        """Whether the bulk socket is connected. Raises `ConnectionFailed` if it cannot be."""
        bulk = self.bulk
        if bulk is not None and bulk.failed and not self.absent:
            raise ConnectionFailed(f"{bulk.address}: {bulk.failed}")
        return bulk is not None and bulk.accepted

    def look_again(self, hello: m.Hello) -> bool:
        """Close all connections, and open others to whatever dispatcher comes to the address. Returns False, and does nothing,
        where the daemons of this process have ended too often and are not started again."""
        if self.closed or (self.local is not None and self.local.failure() is not None):
            return False
        if self.replaced:
            self.address, self.replaced = self.search.take(), ""
        self.absent = True
        self.control.close()
        if self.bulk is not None:
            self.bulk.close()
            if self.bulk.unknown:
                self.bulk_identity = transport.new_identity()
            self.left, self.bulk = self.bulk, None
        if self.process is not None:
            os.close(self.process)
        self.process, self.ended = None, 0.0
        self.control = self._connected()
        self._reopened()
        self.control.send(codec.encode(hello._replace(facts={**hello.facts, "bulk": self.bulk_identity})))
        return True

    def found_again(self, facts: dict[str, Any]) -> None:
        """A dispatcher has answered, with these facts: connect its bulk socket."""
        self.search.welcomed(self.address, facts)
        self.client = self.fetches.client = int(facts["number"])
        lease = self.control.lease = self.lease = float(facts.get("lease", self.lease))
        address = addresses.reachable(str(facts["bulk_address"]), self.address)
        before, self.left = self.left, None
        if facts.get("continues") is True and before is not None and before.identity == self.bulk_identity:
            before.open_again(lease)
            self.bulk = before
        else:
            self.bulk = Connection(
                address,
                identity=self.bulk_identity,
                lease=lease,
                reopened=self._reopened,
                clock=self.clock,
                keys=self.keys,
            )
        self._reopened()
        self.process = process_descriptor(facts.get("process"), host_facts())

    def send(self, message: m.Message) -> Frames:
        """Send one message, and return its frames. Never waits, never loses."""
        frames = codec.encode(message)
        if self.closed or self.absent:
            return frames
        if type(message) is m.Ping:
            self.control.send_unnumbered(frames)
            if self.bulk is not None:
                self.bulk_stirs = True
                self.bulk.send_unnumbered([b""])
        else:
            self.control.send(frames)
        return frames

    def together(self) -> AbstractContextManager[None]:
        """What is sent while it lasts leaves at its end. Nothing may wait meanwhile."""
        socket = self.control.socket
        return Together(socket) if isinstance(socket, UnixDealer) and not socket.holds else EACH_BY_ITSELF

    def encode(self, message: m.Message) -> Frames:
        """The frames of a message that is sent later."""
        return codec.encode(message)

    def send_frames(self, frames: Frames) -> None:
        """Send a message that was encoded before."""
        if not self.closed and not self.absent:
            self.control.send(frames)

    def receive(self) -> list[m.Message]:
        """All messages that have arrived; bulk chunks are put in place on the way."""
        found: list[m.Message] = []
        if self.closed:
            return found
        while (frames := self.control.receive()) is not None:
            found.append(codec.decode(frames))
        now = self.clock()
        look = now >= self.look_at
        bulk = self.bulk
        if bulk is not None and (self.bulk_stirs or look):
            self.bulk_stirs = False
            while (frames := bulk.receive()) is not None:
                self._bulk(frames)
        if look:
            self.look_at = now + LOOK_SECONDS
            self.control.look()
            if bulk is not None:
                bulk.look()
            if self.search.address and self.search.look(None if self.absent else self.control):
                self.replaced = f"another dispatcher has taken its place, at {self.search.address}"
        return found

    def wait(self, timeout: float) -> None:
        """Wait until something may have arrived, at most `timeout` seconds, and never long where that might be missed.

        Another thread may open the connections again meanwhile: what is found closed is not waited for, and not remembered.
        """
        pollers = self.pollers
        known = getattr(pollers, "known", None)
        if known is None:
            bulk = self.bulk
            control = transport.descriptor(self.control.socket)
            sockets = [control] if bulk is None else [control, transport.descriptor(bulk.socket)]
            known = select.poll(), control
            for each in sockets:
                if each >= 0:
                    known[0].register(each, select.POLLIN)
            if min(sockets) >= 0:
                pollers.known = known
        poll, control = known
        for descriptor, _ in poll.poll((timeout if self._wakes else min(timeout, EDGE_SECONDS)) * 1000):
            if descriptor != control:
                self.bulk_stirs = True

    @property
    def _wakes(self) -> bool:
        """Whether each message, and the end of each connection, wakes whoever waits for it."""
        if self.absent or self.search.address:
            return False
        sockets = [each.socket for each in (self.control, self.bulk) if each is not None]
        return all(isinstance(socket, UnixDealer) and not socket.broken for socket in sockets)

    def prepare(self, array: np.ndarray[Any, Any], kind: Hashable) -> BulkPut | None:
        """A put by the bulk socket, copied already where that can be; None for what its message can carry. Needs no lock.

        `kind`: what tensors have in common that are cut in the same way.
        """
        return self.puts.prepare(array, kind) if array.nbytes > MAX_INLINE_BYTES else None

    def has_memory(self, nbytes: int, count: int) -> bool:
        """Whether so many puts of so many bytes find memory that was used before, if nothing else takes it. A put that is cut
        may need a little more."""
        return nbytes <= MAX_INLINE_BYTES or self.memory.has_warm(nbytes, count)

    def put_bulk(self, tensor: int, put: BulkPut, *, later: bool = False) -> BulkPut:
        """Offer the parts of a put to where such go, or keep it until `cut` says where that is; `later`: its message is not
        sent yet. Returns the put."""
        if later:
            self.puts.again({tensor: put})
        else:
            for chunk in self.puts.begin(tensor, put, self.client):
                self._send_bulk(chunk)
        return put

    def cut(self, message: m.Cut) -> None:
        """Offer each worker its part of a bulk put; the worker grants when it is ready."""
        where = tuple(
            (worker, bytes(identity), tuple((start, stop) for start, stop in box))
            for worker, identity, box in message.parts
        )
        for chunk in self.puts.cut(message.tensor, where, self.client):
            self._send_bulk(chunk)

    def sending(self, tensor: int) -> bool:
        """Whether a put must be waited for: the program's array is still needed, or too much is on its way."""
        return self.puts.sending(tensor)

    def under_way(self) -> tuple[int, int]:
        """(bytes moved, bytes in all) of the bulk data that is on its way, in or out."""
        return self.streams.under_way()

    def cancel(self, tensor: int) -> None:
        """Send no more of a bulk put."""
        self.puts.cancel(tensor)

    def local_values(self, tensor: int) -> np.ndarray[Any, Any] | None:
        """The values of a tensor that was put and lies here, where its worker reads it; not writable."""
        found = self.puts.shown.get(tensor)
        return None if found is None else found.view()

    def break_off(self, lost: int) -> None:
        """Let no bulk data that is on its way go on: without those of worker `lost` the other parts of tensors serve nobody."""
        self._break_off(lost, renumbered=False)
        self.give_up_lost()

    def _break_off(self, lost: int, *, renumbered: bool) -> None:
        self.puts.break_off(lost, renumbered=renumbered)
        self.fetches.break_off()
        self.memory.renew()  # a worker that is not as dead as it seems may still read and write there

    def give_up_lost(self) -> None:
        """Use again what workers were lent that are lost: no mark refers to it any more."""
        self.streams.outbox.give_up_lost()

    def rewind(self, client: int, lost: int, puts: Mapping[int, BulkPut]) -> None:
        """Break off all bulk data, and go on under another session number; the messages of `puts` are sent again."""
        self.absent = False
        self._break_off(lost, renumbered=True)
        self.client = self.fetches.client = client
        self.puts.waiting.clear()
        self.puts.again(puts)

    def offer_fetch(self, request: int, known: Spec) -> np.ndarray[Any, Any] | None:
        """The array for a fetch that is asked for now, offered already to whom is thought to have the tensor; None: nobody is."""
        array, frames = self.fetches.offer(request, known)
        for each in frames:
            self._send_bulk(each)
        return array

    def ignore(self, message: m.Value) -> None:
        """Hear a part that nobody waits for to its end, so that its worker need not keep it."""
        for each in self.fetches.ignore(message):
            self._send_bulk(each)

    def fetch_bulk(self, message: m.Value, array: np.ndarray[Any, Any], done: Callable[[], None]) -> None:
        """Receive a part of `array` into its place; `done` when it is there."""
        for each in self.fetches.part(message, array, done):
            self._send_bulk(each)

    def settle(self, request: int) -> None:
        """A fetch is over, well or not."""
        self.fetches.settle(request)

    def _send_bulk(self, frames: BulkFrames) -> None:
        if self.closed or self.absent:
            return
        assert self.bulk is not None, "bulk data comes after the welcome"
        peer, header, payload = frames
        if isinstance(payload, memoryview):
            payload = bytes(payload)  # of an array that its owner may change as soon as all of it has left
        self.bulk_stirs = True
        self.bulk.send([peer, header, payload])

    def _bulk(self, frames: list[Any]) -> None:
        whole, answers = self.streams.heard(frames)
        for answer in answers:
            self._send_bulk(answer)
        if whole is not None:
            self.fetches.arrived(*whole)

    def silent_seconds(self) -> float:
        """The seconds since the dispatcher was last heard, without those in which this process stood still."""
        return self.control.silent_seconds

    def alive(self) -> str | None:
        """None, or why the service cannot answer any more."""
        if self.replaced:
            return self.replaced
        if self.control.failed:
            return self.control.failed
        now = time.monotonic()
        if self.bulk is None or not self.bulk.failed:
            self.unknown_since = 0.0
        else:
            self.unknown_since = self.unknown_since or now
            if not self.bulk.unknown or now - self.unknown_since > REASON_SECONDS:
                return self.bulk.failed
        if now < self.processes_due:
            return None
        self.processes_due = now + LOOK_SECONDS
        if self.process is not None and has_ended(self.process):
            self.ended = self.ended or now
            if now - self.ended > (LAST_MESSAGES_SECONDS if self.control.cut else CUT_SECONDS):
                return "its process ended"
        return None if self.local is None else self.local.failure()

    def close(self) -> None:
        """Close the sockets; what was sent still leaves."""
        self.closed = True
        if self.process is not None:
            os.close(self.process)
            self.process = None
        self.search.stop()
        self.control.close(linger=500)
        if self.bulk is not None:
            self.bulk.close()
