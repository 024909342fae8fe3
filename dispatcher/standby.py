"""A dispatcher that stands by for another one, whose folder it does not share: on another machine, say.

It is sent the files of all sessions (`state/standby_copies.py`), keeps them in its own folder, and listens where it will serve.
Clients and workers that hear nothing of the other dispatcher, the primary, ask there (`gt/standby/search.py`), and are not
answered. It takes the place of the primary when an operator says so; or, with a lease, when it has heard nothing of it for so
long and most of the workers say that they have not either. Nobody can know whether the primary has ended or only stands still, so
the new dispatcher has a higher epoch: workers and clients that have joined it obey no lower one, and the old one ends when it
hears of it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from gt.bounds import MAX_DEFINITION_BYTES
from gt.daemon.active_clock import ActiveClock
from gt.daemon.host import host_facts
from gt.errors import ProtocolError
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire.connection import Connection, SessionRouter
from gt.wire.keys import owner_keys
from gt.wire.messages import codec
from gt.wire.principals import HELLO_ROLES, OPERATOR, WORKER
from gt.wire.transport import CurveKeys

from .access import Access, ServiceKeys
from .number_file import (
    FolderInUse,
    next_epoch,
    read_service,
    read_workers,
    replaced_by,
    store_numbers,
    take_over_numbers,
)
from .state.standby_copies import END, NUMBERS, is_copied

log = logging.getLogger("gt.dispatcher")
FORMER: Final = "former"
"""The file with the address of the dispatcher whose place was taken: who starts with this folder goes on in that place."""
COMPLETE: Final = "copied"
"""The file that says that the folder was once a whole copy."""
BEAT_SECONDS: Final = 1.0
POLL_MS: Final = 100
ASKED_SECONDS: Final = 5.0
"""Seconds for which a worker that has asked counts as one that hears nothing of the primary."""
MAX_ASKED: Final = 1 << 14
"""The most workers that are remembered to have asked."""
MAX_ADDRESS_LENGTH: Final = 1 << 10
LAST_WORD_SECONDS: Final = 0.3
"""The longest time to wait for the primary to say that it ends."""


class CopiedFiles:
    """Copies of another dispatcher's files, in a folder, each of which is whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complete = (folder / COMPLETE).exists()
        """Whether all that there was has been copied at some time: since then each file is the last that came."""
        self.seen: set[str] = set()
        """The files that are there, as far as was heard since the last `begin`."""
        self.name = ""
        self.left = 0
        self.draft: BinaryIO | None = None

    def begin(self) -> None:
        """All files come once more."""
        self._drop_draft()
        self.seen.clear()

    def take(self, message: m.CopyFile) -> bool:
        """Take a piece of a file. Returns whether that was the last one. Raises `ProtocolError` and `OSError`."""
        name, size, data = message.name, message.size, message.data
        if name == END:
            for path in list(self.folder.iterdir()):
                if is_copied(path.name) and path.name != NUMBERS and path.name not in self.seen:
                    path.unlink(missing_ok=True)
            (self.folder / COMPLETE).touch(0o600)
            self.complete = True
            return True
        if not is_copied(name) or size < -1:
            raise ProtocolError(f"{name[:40]!r} is no file of a dispatcher")
        path = self.folder / name
        if size == -1:
            self.seen.discard(name)
            path.unlink(missing_ok=True)
            return True
        if self.draft is None:
            self.name, self.left = name, size
            self.draft = self._draft(name).open("wb")
        self.left -= len(data)
        if name != self.name or self.left < 0:
            self._drop_draft()
            raise ProtocolError("the pieces of a file follow each other, and have its size")
        self.draft.write(data)
        if self.left:
            return False
        self.draft.close()
        self.draft = None
        if name == NUMBERS:
            store_numbers(self.folder, self._draft(name).read_bytes())
            self._draft(name).unlink()
        else:
            self._draft(name).replace(path)
            self.seen.add(name)
        return True

    def _draft(self, name: str) -> Path:
        return self.folder / f".{name}.draft"

    def _drop_draft(self) -> None:
        if self.draft is not None:
            self.draft.close()
            self.draft = None
            self._draft(self.name).unlink(missing_ok=True)


class TakeOverRule:
    """When a standby takes over by itself: never without a `lease` (seconds); with one, when it has heard nothing of the primary
    for so long, and more than half of its workers have asked just now, which they do when they hear nothing either."""

    def __init__(self, lease: float | None) -> None:
        self.lease = lease
        self.asked: dict[str, float] = {}

    def asks(self, worker: str, now: float) -> None:
        """A worker hears nothing of the primary."""
        self.asked[worker] = now
        if len(self.asked) > MAX_ASKED:
            del self.asked[min(self.asked, key=self.asked.__getitem__)]

    def is_due(self, now: float, silent_seconds: float, workers: int) -> bool:
        """Whether it takes over now, where the primary had so many workers."""
        if self.lease is None or silent_seconds < self.lease:
            return False
        self.asked = {worker: at for worker, at in self.asked.items() if now - at <= ASKED_SECONDS}
        return 2 * len(self.asked) > workers


class Former:
    """The dispatcher whose place was taken by the one at `own`: it is told so until it answers, also if it stands still, or is
    started again."""

    def __init__(
        self, address: str, own: str, epoch: int, service: int, keys: CurveKeys | None,
        connection: Connection | None = None,
    ) -> None:  # fmt: skip
        self.address = address
        self.service = service
        self.own = own
        self.epoch = epoch
        self.keys = keys
        self.over = addresses.is_same_address(address, own)
        """Whether there is nobody to be told any more."""
        self.connection = connection
        if connection is not None:
            connection.send(codec.encode(m.Replaced(epoch)))

    def look(self) -> None:
        """Tell it again if need be, and hear what it answers."""
        if self.over:
            return
        if self.connection is None or self.connection.failed:
            self._connect()
        connection = self.connection
        assert connection is not None
        with contextlib.suppress(ProtocolError):
            while (frames := connection.receive()) is not None:
                self._hear(codec.decode(frames))
        connection.look()

    def _hear(self, message: Any) -> None:
        if isinstance(message, m.Goodbye):
            self.over = True
            self.close()
            if message.kind:
                log.warning("the dispatcher at %s: %s", self.address, message.text)
            else:
                log.info("the dispatcher at %s has heard that it was replaced, and ends", self.address)

    def _connect(self) -> None:
        self.close()
        self.connection = Connection(self.address, lease=math.inf, keys=self.keys)
        facts = {**host_facts(), "address": self.own, "epoch": self.epoch, "service": self.service}
        self.connection.send(codec.encode(m.Hello(m.VERSION, "standby", facts)))

    def close(self) -> None:
        """Say no more."""
        if self.connection is not None:
            self.connection.close(linger=200)
            self.connection = None


class TakenOver(NamedTuple):
    """What a dispatcher has of the time when it stood by: its keys, the socket at which it listens, and its predecessor."""

    keys: ServiceKeys
    router: SessionRouter
    former: Former


class StandbyShell:
    """A dispatcher that stands by for the one at `primary`, with copies in `folder`. Raises `AddressRefused`, `AddressInUse`,
    `KeyRefused` or `ConnectionFailed`."""

    def __init__(self, primary: str, address: str, bulk: str | None, folder: Path, lease: float | None) -> None:
        self.primary = primary
        self.folder = folder
        self.keys = ServiceKeys(address, bulk, insecure=False)
        self.access = Access(address, keys=self.keys.authorized)
        self.router = _listen(address, self.keys)
        self.address = transport.endpoint(self.router.socket)
        self.copies = CopiedFiles(folder)
        self.rule = TakeOverRule(lease)
        self.clock = ActiveClock()
        self.primary_keys = owner_keys(primary)
        self.seekers: dict[bytes, str] = {}
        """Who asks whether this one serves: the worker's address, empty for clients."""
        self.operators: set[bytes] = set()
        self.joined = False
        """Whether the primary has let it in."""
        self.ordered = False
        """Whether an operator has told it to take over."""
        self.stopping = False
        self.said = ""
        """What the primary has said last when it sent this one away."""
        self.connection = self._connect()
        self.poller = transport.poller()
        self.registered: Any = None

    def _connect(self) -> Connection:
        connection = Connection(self.primary, lease=math.inf, clock=self.clock, keys=self.primary_keys)
        connection.send(codec.encode(m.Hello(m.VERSION, "standby", {**host_facts(), "address": self.address})))
        self.joined = False
        return connection

    def stop(self, *_: Any) -> None:
        """Stop at the next turn. Safe in a signal handler."""
        self.stopping = True

    def run(self) -> TakenOver | None:
        """Stand by. Returns what the dispatcher has that takes over now; None if it was stopped. Raises `OSError` if a copy
        cannot be written."""
        try:
            found = self._run()
        except BaseException:
            self._close()
            raise
        if found is None:
            self._close()
        return found

    def _run(self) -> TakenOver | None:
        self.poller.register(self.router.socket, transport.READABLE)
        log.info("standing by at %s for the dispatcher at %s", self.address, self.primary)
        beat = self.clock()
        while not self.stopping:
            self._listen_to_primary()
            self.poller.poll(POLL_MS)
            self._hear_primary()
            self._hear_others()
            now = self.clock()
            if now >= beat:
                beat = now + BEAT_SECONDS
                self._beat()
            if self.ordered or self._is_due(now):
                return self._take_over()
        return None

    def _close(self) -> None:
        self.connection.close()
        transport.unlink(self.router.socket)
        self.router.socket.close(linger=0)

    def _is_due(self, now: float) -> bool:
        silent = self.connection.silent_seconds
        return self.copies.complete and self.rule.is_due(now, silent, read_workers(self.folder))

    def _listen_to_primary(self) -> None:
        """Look after the connection to the primary, and listen to its socket."""
        if self.connection.failed:
            self.connection.close()
            self.connection = self._connect()
        self.connection.look()
        if self.registered is not self.connection.socket:
            if self.registered is not None:
                self.poller.unregister(self.registered)
            self.registered = self.connection.socket
            self.poller.register(self.registered, transport.READABLE)

    def _beat(self) -> None:
        ping = codec.encode(m.Ping())
        self.connection.send_unnumbered(ping)
        for peer in self.seekers:
            self.router.send_unnumbered(peer, ping)
        self.seekers = {peer: name for peer, name in self.seekers.items() if peer in self.router.streams}
        self.operators &= self.router.streams.keys()

    def _hear_primary(self) -> None:
        try:
            while (frames := self.connection.receive()) is not None:
                self._primary_said(codec.decode(frames))
        except ProtocolError as error:
            log.warning("the dispatcher at %s: %s", self.primary, error)
            self.connection.failed = str(error)

    def _primary_said(self, message: Any) -> None:
        if isinstance(message, m.Welcome):
            self.joined, self.said = True, ""
            self.copies.begin()
        elif isinstance(message, m.CopyFile):
            if self.copies.take(message):
                self.connection.send(codec.encode(m.FileCopied(message.name)))
                if message.name == END:
                    log.info("it has copies of all sessions of the dispatcher at %s", self.primary)
        elif isinstance(message, m.Goodbye):
            if message.text != self.said:
                log.warning("the dispatcher at %s: %s", self.primary, message.text)
            self.said = message.text
            self.connection.failed = "it said goodbye"
            time.sleep(BEAT_SECONDS)  # it would say the same again

    def _hear_others(self) -> None:
        """Hear who asks, and who orders."""
        for _ in range(256):
            peer = b""
            try:
                heard = self.router.receive()
                if heard is None:
                    return
                peer, frames, _ = heard
                if len(frames[0]):
                    self._said(peer, codec.decode(frames, codec.BEFORE_HELLO))
            except ProtocolError as error:
                self.router.refused += 1
                log.debug("refused a message: %s", error)

    def _said(self, peer: bytes, message: Any) -> None:
        """Act on what a peer has said. Raises `ProtocolError`."""
        name = self.seekers.get(peer)
        if name:
            self.rule.asks(name, self.clock())
        if isinstance(message, m.Hello):
            self._hello(peer, message)
        elif isinstance(message, m.TakeOver) and peer in self.operators:
            if self.copies.complete:
                self.ordered = True
                self._answer(peer, m.Answer(message.request, {"epoch": next_epoch(self.folder)}))
            else:
                text = f"it has no copy of the sessions of {self.primary} yet"
                self._answer(peer, m.Failed(message.request, "SessionError", text))

    def _hello(self, peer: bytes, hello: m.Hello) -> None:
        principal = self.access.origin(self.router.sender.credentials(self.address)).principal
        worker = hello.facts.get("worker", "")
        if hello.version != m.VERSION:
            text = f"this dispatcher speaks protocol {m.VERSION}, not {hello.version}"
            self._answer(peer, m.Goodbye("ProtocolError", text))
        elif hello.role == "seeker" and not principal.roles.isdisjoint(HELLO_ROLES["seeker"]):
            self.seekers[peer] = str(worker)[:MAX_ADDRESS_LENGTH] if WORKER in principal.roles else ""
            if self.seekers[peer]:
                self.rule.asks(self.seekers[peer], self.clock())
        elif hello.role == "prober" and not principal.roles.isdisjoint(HELLO_ROLES["prober"]):
            self._answer(peer, m.Welcome(0, {"standby_of": self.primary}))
        elif hello.role == "watcher" and OPERATOR in principal.roles:
            self.operators.add(peer)
            self._answer(peer, m.Welcome(0, {"capabilities": ["take over"]}))
        else:
            text = f"this dispatcher stands by for the one at {self.primary}: connect to that"
            self._answer(peer, m.Goodbye("SessionError", text))

    def _answer(self, peer: bytes, message: m.Message) -> None:
        self.router.send(peer, codec.encode(message))

    def _take_over(self) -> TakenOver:
        epoch, service = take_over_numbers(self.folder), read_service(self.folder)
        (self.folder / FORMER).write_text(self.primary, "utf-8")  # from here on there is no way back
        former = Former(
            self.primary, self.address, epoch, service, self.primary_keys, self.connection if self.joined else None
        )
        for peer in self.seekers:
            self._answer(peer, m.Welcome(0, {"epoch": epoch, "service": service}))
        until = time.monotonic() + LAST_WORD_SECONDS
        while not former.over and time.monotonic() < until:
            former.look()
            time.sleep(0.01)
        said = "" if former.over else "; that one does not answer, and ends when it hears of this"
        log.warning("it takes the place of the dispatcher at %s, with epoch %d%s", self.primary, epoch, said)
        return TakenOver(self.keys, self.router, former)


def _listen(address: str, keys: ServiceKeys) -> SessionRouter:
    """The socket of a dispatcher of whose address others are told. Raises `AddressRefused` or `AddressInUse`."""
    if addresses.is_wildcard(address):
        raise addresses.AddressRefused(
            f"clients and workers are told the address of a standby, so {address} is none: name one that they reach"
        )
    return SessionRouter(address, MAX_DEFINITION_BYTES, keys.check)


@contextlib.contextmanager
def _stopped_by_signals(shell: StandbyShell) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, shell.stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


STOPPED: Final = "stopped"


def stand_by(
    primary: str | None, address: str, bulk: str | None, folder: Path, lease: float | None, *, insecure: bool
) -> TakenOver | str | None:
    """Stand by for the dispatcher at `primary`, with a folder that this process has locked. Returns what the dispatcher has that
    takes over; `STOPPED` if it was stopped before; None if it is to stand by for none. One that took over before goes on with
    that. Raises `GTError` or `OSError`."""
    noted = folder / FORMER
    epoch = replaced_by(folder)
    if epoch and primary is None:
        raise FolderInUse(
            f"the sessions in {folder} have gone on at another dispatcher (epoch {epoch}): stand by for that one with "
            "--standby-of and its address, or give this one an empty folder"
        )
    if epoch:  # what is there is over
        for path in (noted, folder / COMPLETE):
            path.unlink(missing_ok=True)
    if noted.exists():
        former = noted.read_text("utf-8")
        keys = ServiceKeys(address, bulk, insecure=insecure)
        router = _listen(address, keys)
        log.info("this one has taken the place of the dispatcher at %s: it goes on", former)
        own, epoch = transport.endpoint(router.socket), next_epoch(folder) - 1
        told = Former(former, own, epoch, read_service(folder), owner_keys(former))
        return TakenOver(keys, router, told)
    if primary is None:
        return None
    shell = StandbyShell(primary, address, bulk, folder, lease)
    with _stopped_by_signals(shell):
        found = shell.run()
    return STOPPED if found is None else found
