"""What all clients of a dispatcher do, for its instruction log (`--instruction-log`)."""

from __future__ import annotations

from gt.instruction_log.file import InstructionFile
from gt.instruction_log.text import LOGGED_MESSAGES, SessionEnded, fetch_of
from gt.wire import messages as m

from .core import DispatcherCore


class ClientLog:
    """The sessions of the dispatcher at `address` in one instruction log."""

    def __init__(self, file: InstructionFile, core: DispatcherCore, address: str) -> None:
        self.file = file
        self.core = core
        self.address = address
        self.numbers: dict[bytes, int] = {}
        """The number in the log of each client that has one."""

    def note(self, peer: bytes, message: m.Message) -> None:
        """Write down a message of a client. Values are written only where the file keeps them."""
        file, clients = self.file, self.core.service.clients
        session, client = self.numbers.get(peer), clients.get(peer)
        if session is None and client is not None:  # it has begun, perhaps after a while in the queue
            config = self.core.service.config
            plain = config.to_wire() if config is not None else None
            where = f"client {client.number} of {self.address}"
            session = self.numbers[peer] = file.session(where, len(self.core.service.in_service), plain)
        if isinstance(message, m.Put) and session is not None:
            data = message.data if file.keeps and not message.bulk else None
            file.add(session, message._replace(data=b""), data)
        elif isinstance(message, m.Restore) and session is not None:
            file.add(session, m.Put(message.tensor, message.spec, message.signal, False, b""), None)
        elif isinstance(message, LOGGED_MESSAGES) and session is not None:
            file.add(session, message)
            if isinstance(message, m.Run) and (fetch := fetch_of(message)) is not None:
                file.add(session, fetch)
        for gone in [each for each in self.numbers if each not in clients]:
            file.add(self.numbers.pop(gone), SessionEnded())

    def moved(self, before: bytes, now: bytes) -> None:
        """A client goes on with its session as another peer."""
        if before in self.numbers:
            self.numbers[now] = self.numbers.pop(before)
