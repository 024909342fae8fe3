"""A stand-in for `gt/wire/transport.py`: sockets of simulated processes, and links between them that delay, break and repeat.

A connection keeps the order of what is sent on it, and nothing else does. What comes twice on one does so at any time, though
sockets repeat nothing: a router does, which answers the openings of earlier connections by the newest. But nothing that was sent
before the answer to a connection's own opening comes behind it. When it breaks, what is in flight is lost; its ends
are told, or hear nothing any more, as behind a router that has lost its state.
"""

from __future__ import annotations

import math
import os
import random
import select
import zlib
from collections import Counter, deque
from typing import Any

from gt.wire import addresses, transport
from gt.wire.reliable_stream import ACCEPTED, parse

from .scheduler import Killed, Process, Scheduler, Source
from .stand_ins import Descriptors, VirtualPoll

LARGE_FRAME_BYTES = 65536
"""From here on a frame arrives as a memoryview, as with ZeroMQ."""
REFUSED_SECONDS = 0.001
"""After so long a connection is found to be refused."""
HEARTBEAT_SECONDS = 25.0
"""After so long a silent connection is found to be broken by heartbeats of ZeroMQ's own."""
REPEAT_SECONDS = 0.5
"""Within so long something that was sent arrives again, where links repeat."""

Frames = list[Any]


class VirtualSocket(Source):
    """A socket of the process that makes it."""

    def __init__(self, network: VirtualTransport, address: str) -> None:
        super().__init__()
        self.network = network
        self.process = network.scheduler.process_now
        if self.process.dead:
            raise Killed
        self.process.sockets.append(self)
        self.address = address
        self.inbox: deque[Frames] = deque()
        self.senders: deque[Process] = deque()
        self.peers: dict[bytes, Wire] = {}
        """The connections of a router, by the identity of the other end."""
        self.wire: Wire | None = None
        """The connection of any other socket."""
        self.closed = False
        self.number = 0

    def is_ready(self) -> bool:
        return bool(self.inbox)

    def fileno(self) -> int:
        self.number = self.number or self.network.descriptors.add(self)
        return self.number

    def poll(self, timeout: float) -> int:
        """Wait for a message, at most so many milliseconds."""
        if not self.inbox:
            self.network.scheduler.wait([self], timeout / 1000)
        return len(self.inbox)

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        self.process.sockets.remove(self)
        self.inbox.clear()
        if self.network.listening.get(self.address) is self:
            del self.network.listening[self.address]
        if self.wire is not None:
            self.wire.end()
        for wire in list(self.peers.values()):
            wire.end()


class VirtualDealer:
    """A connection to a router, which knows when it is broken, unless the link is silent."""

    def __init__(self, address: str, identity: bytes, *, heartbeats: bool, network: VirtualTransport) -> None:
        self.socket = VirtualSocket(network, "")
        self.wire = self.socket.wire = Wire(network, self.socket, address, identity, heartbeats=heartbeats)

    @property
    def broken(self) -> bool:
        return self.wire.noticed

    def close(self, linger: int = 0) -> None:
        """Close it; what was sent may leave within `linger` milliseconds."""
        if linger and self.wire.alive:
            self.socket.wire = None
            self.wire.scheduler.at(self.wire.scheduler.now + linger / 1000, self.wire.end)
        self.socket.close()


class Wire:
    """One connection, of a dealer to a router."""

    def __init__(
        self, network: VirtualTransport, socket: VirtualSocket, address: str, identity: bytes, *, heartbeats: bool
    ) -> None:
        self.network = network
        self.scheduler = network.scheduler
        self.identity = identity
        self.near = socket
        self.far = network.listening.get(address)
        name = (
            f"{network.scheduler.seed} {socket.process.name} {address} {network.opened[socket.process.name, address]}"
        )
        network.opened[socket.process.name, address] += 1
        self.number = sum(network.opened.values())
        """Later connections have larger numbers."""
        self.random = random.Random(zlib.crc32(name.encode()))
        self.link = network.links.get(socket.process.name, HEALTHY)
        self.heartbeats = heartbeats
        self.alive = True
        self.noticed = False
        """Whether its beginning knows that it is broken."""
        self.answered = False
        """Whether the far end has answered its first words."""
        self.due = {True: 0.0, False: 0.0}
        """When what was sent last arrives, at the far end and at the near one."""
        network.wires[self] = None
        if self.far is None or self.link.is_down(self.scheduler.now):
            self.end()

    def send(self, frames: Frames, *, outward: bool) -> None:
        """Carry a message, which may be lost with the connection."""
        if not self.alive:
            return
        link, now = self.link, self.scheduler.now
        arrives = max(self.due[outward], now + self.random.random() ** 3 * link.delay)
        self.due[outward] = arrives
        self.answered |= not outward and parse(frames[0])[0] == ACCEPTED
        self.scheduler.at(arrives, lambda: self._arrive(frames, outward))
        if link.repeats and self.random.random() < link.repeats:
            repeat = max(arrives, now + self.random.random() * REPEAT_SECONDS)
            if not outward and not self.answered:
                repeat = arrives  # nothing of before the answer comes behind it: it would not be known for a repeat
            self.scheduler.at(repeat, lambda: self._arrive(frames, outward))

    def _arrive(self, frames: Frames, outward: bool) -> None:
        if not self.alive:
            return
        target = self.far if outward else self.near
        assert target is not None
        if outward:
            last = target.peers.get(self.identity)
            if last is not None and last is not self:
                if last.number > self.number:
                    return
                last.end()  # a new connection replaces the last one
            target.peers[self.identity] = self
        self.network.deliver(self, target, [_as_received(frame) for frame in frames], outward)

    def end(self, *, silent: bool | None = None) -> None:
        """Break; what is in flight is lost."""
        if not self.alive:
            return
        self.alive = False
        self.network.wires.pop(self, None)
        if self.far is not None and self.far.peers.get(self.identity) is self:
            del self.far.peers[self.identity]
        if silent is None:
            silent = self.link.is_silent(self.scheduler.now)
        if not silent or self.heartbeats:
            self.scheduler.at(self.scheduler.now + (HEARTBEAT_SECONDS if silent else REFUSED_SECONDS), self._notice)

    def _notice(self) -> None:
        self.noticed = True


class Link:
    """The way from one process to those that it connects to."""

    def __init__(self, delay: float, repeats: float = 0.0) -> None:
        self.delay = delay
        """The longest time, in seconds, that a message takes."""
        self.repeats = repeats
        """How often something arrives twice."""
        self.down_until = -math.inf
        self.silent = False
        """Whether nobody is told of a broken connection."""

    def is_down(self, now: float) -> bool:
        return now < self.down_until

    def is_silent(self, now: float) -> bool:
        return self.silent and self.is_down(now)


HEALTHY = Link(0.001)


class VirtualSender:
    """`transport.MessageSender`, by which a process on the dispatcher's machine is known."""

    def __init__(self) -> None:
        self.process: Process | None = None

    def credentials(self, _address: str) -> transport.PeerCredentials:
        local = self.process is not None and not self.process.name.startswith("remote")
        return transport.PeerCredentials(os.geteuid(), self.process.number if self.process and local else 0)


def _as_sent(frame: Any) -> Any:
    """What is sent of a frame: a large one is not copied."""
    return frame if len(frame) >= LARGE_FRAME_BYTES else bytes(frame)


def _as_received(frame: Any) -> Any:
    return memoryview(bytes(frame)) if len(frame) >= LARGE_FRAME_BYTES else frame


class VirtualTransport:
    """`transport`, for all processes of a simulation."""

    READABLE = select.POLLIN
    MessageSender = VirtualSender

    def __init__(self, scheduler: Scheduler, descriptors: Descriptors) -> None:
        self.scheduler = scheduler
        self.descriptors = descriptors
        self.listening: dict[str, VirtualSocket] = {}
        self.links: dict[str, Link] = {}
        """By the name of the process that connects; others are healthy."""
        self.wires: dict[Wire, None] = {}
        self.opened: Counter[tuple[str, str]] = Counter()
        self.identities = 0
        self.delivered = 0
        self.trace = 0
        """A checksum of all that was delivered, with times."""

    def __getattr__(self, name: str) -> Any:
        return getattr(transport, name)

    def deliver(self, wire: Wire, target: VirtualSocket, frames: Frames, outward: bool) -> None:
        """A message arrives at a socket."""
        if target.closed:
            return
        self.delivered += 1
        about = f"{self.scheduler.now:.9f} {wire.near.process.name} {outward} {[len(frame) for frame in frames]}"
        self.trace = zlib.crc32(about.encode(), self.trace)
        target.inbox.append([wire.identity, *frames] if outward else frames)
        target.senders.append(wire.near.process)
        self.scheduler.wake(target)

    def cut(self, name: str, seconds: float, *, silent: bool) -> None:
        """Break all connections that a process has made; none can be made for a while."""
        link = self.links[name]
        link.down_until = max(link.down_until, self.scheduler.now + seconds)
        link.silent = silent
        for wire in [wire for wire in self.wires if wire.link is link]:
            wire.end(silent=silent)

    # what the modules call

    def Dealer(  # noqa: N802 — as there
        self, address: str, identity: bytes, _keys: object = None, *, heartbeats: bool = False
    ) -> VirtualDealer:
        return VirtualDealer(address, identity, heartbeats=heartbeats, network=self)

    def _listen(self, address: str) -> VirtualSocket:
        if address in self.listening:
            raise addresses.AddressInUse(f"{address} is in use")
        made = self.listening[address] = VirtualSocket(self, address)
        return made

    def router(
        self, address: str, _frame_bytes: int = 0, _keys: object = None, *, heartbeats: bool = False
    ) -> VirtualSocket:
        return self._listen(address)

    def publisher(self, address: str, _keys: object = None) -> VirtualSocket:
        return self._listen(address)

    def endpoint(self, socket: VirtualSocket) -> str:
        return socket.address

    def unlink(self, socket: VirtualSocket) -> None:
        """Nothing is left of a socket's path."""

    def new_identity(self) -> bytes:
        self.identities += 1
        return b"g%015d" % self.identities

    def send(self, socket: VirtualSocket, frames: Frames, peer: bytes | None = None) -> bool:
        kept = [_as_sent(frame) for frame in (frames if peer is None else [peer, *frames])]
        if socket.closed:
            return False
        if socket.wire is not None:
            socket.wire.send(kept, outward=True)
            return True
        wire = socket.peers.get(bytes(kept[0]))
        if wire is None:
            return False
        wire.send(kept[1:], outward=False)
        return True

    def receive(
        self, socket: VirtualSocket, sender: VirtualSender | None = None, *, polled: bool = False
    ) -> Frames | None:
        if not socket.inbox:
            return None
        process = socket.senders.popleft()
        if sender is not None:
            sender.process = process
        return socket.inbox.popleft()

    def subscription(self, _publisher: VirtualSocket, _sender: VirtualSender | None = None) -> None:
        """Nobody is in a group so large that messages are published to it."""

    def poller(self) -> VirtualPoll:
        return VirtualPoll(self.scheduler, self.descriptors)
