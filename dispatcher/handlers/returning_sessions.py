"""Sessions whose clients come back: from the dispatcher before this one, or on another connection.

A dispatcher that is started again finds the cards of all sessions that had a mark, or a mesh. A client says in its `Hello` by
which key it looks for its session, and the number of its last mark. The shell reads what the dispatcher had of the session in
that mark; then the client is told to go back to it (`Rewind`), as after the loss of a worker, and the rest is the same
(`recovery.py`). Whoever has no mark begins again, also where nothing is known of the session: the client has all of it.

A client may also have given up its connection while the session is here. It says the same, and takes its session over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.state.events import ReadSession, SessionRead
from gt.dispatcher.state.mark_bytes import SessionCard, SessionOrders
from gt.errors import ProtocolError, SessionError
from gt.wire import messages as m
from gt.wire.bulk import ALL_WORKERS
from gt.wire.principals import Principal

from .marks import MarkHandler

if TYPE_CHECKING:
    from gt.dispatcher.state.records import ClientRecord
    from gt.dispatcher.state.shared_state import DispatcherState

KEY_BYTES: Final = 16
"""The bytes of the key by which a client finds its session again."""


class ReturningSessions:
    """The sessions that may come back, by their keys. `cards` are of those of earlier dispatchers."""

    def __init__(
        self, service: DispatcherState, marks: MarkHandler, cards: Iterable[SessionCard], lease: float
    ) -> None:
        self.service = service
        self.marks = marks
        self.lease = lease
        for card in cards:
            service.away.setdefault(card.key, []).append(card)
        self.reading: dict[int, SessionCard] = {}
        """By number, the clients whose marks are being read."""
        self.since: float | None = None
        """Since when they have been waited for, on the shell's clock."""

    def tick(self) -> None:
        """Give up the sessions that do not come back."""
        if not self.service.away:
            return
        self.since = self.service.now if self.since is None else self.since
        if self.service.now - self.since > self.lease:
            gone, self.service.away = self.service.away, {}
            self.service.log("warning", f"{len(gone)} sessions of the dispatcher before did not come back")
            for cards in gone.values():
                self.marks.drop_all(cards)
            self.service.queued.due = True

    def give_up(self, key: bytes) -> None:
        """A session cannot come back: the process of its client has ended."""
        self.marks.drop_all(self.service.away.pop(key, ()))
        self.service.queued.due = True

    def present(self, facts: dict[str, Any], principal: Principal) -> ClientRecord | None:
        """The session of a `Hello`, if it is here on another connection. Raises `ProtocolError`, or `SessionError` if it is
        another principal's."""
        key, _ = _key_and_mark(facts)
        found = next((each for each in self.service.clients.values() if key and each.recovery.key == key), None)
        if found is not None and found.principal.name != principal.name:
            raise SessionError("this session is another user's")
        return found

    def put_back(self, client: ClientRecord) -> None:
        """Let a session whose mark is being read come back once more: its client has another connection."""
        card = self.reading.pop(client.number, None)
        if card is not None:
            self.service.away[card.key] = [card]

    def check(self, facts: dict[str, Any], principal: Principal) -> bool:
        """Whether a `Hello` is of a session that comes back. Raises `ProtocolError`, or `SessionError` if it is not there."""
        key, mark = _key_and_mark(facts)
        if mark is None:
            return False
        cards = self.service.away.get(key, [])
        foreign = any(card.principal != principal.name for card in cards)
        if foreign or (mark and all(card.mark != mark for card in cards)):
            raise SessionError(
                "the service has no copy of this session any more: it was given up, or another service runs at this address; "
                "its tensors are lost"
            )
        return True

    def is_known(self, facts: dict[str, Any]) -> bool:
        """Whether the dispatcher before knew the session of a `Hello`, which was checked."""
        return facts.get("session_key") in self.service.away

    def begin(self, client: ClientRecord, mark: int) -> None:
        """A client has come back: read its mark, or have it begin again."""
        recovery = client.recovery
        recovery.awaited, recovery.since, recovery.taken = True, self.service.now, client.facts.get("sent", 0)
        cards = self.service.away.pop(recovery.key, [])
        if cards:
            _follow_orders(client, min(cards, key=_age).orders)
        for card in cards:
            recovery.shapes |= card.shapes
            recovery.recoveries = max(recovery.recoveries, card.recoveries)
            if mark and card.mark == mark:
                self.reading[client.number] = card
        self.marks.drop_all(card for card in cards if card.mark not in (0, mark))
        if mark:
            self.marks.file_work.append(ReadSession(client.number, recovery.key, mark))
        else:
            self._expect(max((math.prod(sizes) for _, sizes, *_ in recovery.shapes), default=1))
            self._rewind(client)

    def _expect(self, workers: int) -> None:
        """Have sessions wait for as many workers as one had that comes back: those of the dispatcher before join one by one."""
        if len(self.service.workers) < workers:
            self.service.expect(workers)

    def read(self, event: SessionRead) -> None:
        """The mark of a session that comes back was read, or cannot be."""
        card = self.reading.pop(event.client, None)
        if card is None:
            return
        client, mark = self.service.by_number.get(event.client), event.mark
        if client is None or mark is None or not client.recovery.awaited:
            self.marks.drop_all([card])
            if client is not None and mark is None:
                text = f"the session cannot go on: {event.fault[1] if event.fault else 'its mark cannot be read'}"
                self.service.ending[client.identity] = text
            return
        base = self.service.config
        if mark.base is not None and base is not None and mark.base.to_wire() == base.to_wire():
            mark.base = base
        client.recovery.marks.append(mark)
        self._expect(len(mark.mesh.members))
        self._rewind(client)

    def _rewind(self, client: ClientRecord) -> None:
        text = "the dispatcher has ended, and was started again"
        self.service.send(client.identity, m.Rewind(client.number, text, ALL_WORKERS))
        self.service.log(
            "warning", f"client {client.number} comes back from the dispatcher before", "rewind", client.number
        )


def _age(card: SessionCard) -> tuple[bool, int]:
    """The least one is that of the card of a session that was written last: what holds without a mark, or else its last mark."""
    return card.mark > 0, -card.mark


def _follow_orders(client: ClientRecord, orders: SessionOrders) -> None:
    """Have what operators have ordered of a session hold on, whatever its program says now."""
    client.paused = orders.paused
    if orders.priority:
        client.priority, client.ordered = Priority(orders.priority), client.ordered | {"priority"}
    if orders.weight:
        client.weight, client.ordered = orders.weight, client.ordered | {"weight"}


def _key_and_mark(facts: dict[str, Any]) -> tuple[bytes, int | None]:
    """By what a client finds its session (empty: it has no key), and the mark that it has; None: it is new. Raises
    `ProtocolError`."""
    key, mark = facts.get("session_key", b""), facts.get("mark")
    if not isinstance(key, bytes) or len(key) not in (0, KEY_BYTES):
        raise ProtocolError(f"a session's key has {KEY_BYTES} bytes")
    if mark is not None and not (_is_count(mark) and key):
        raise ProtocolError("a session that comes back has a key, and the number of a mark")
    if mark is not None and not _is_count(facts.get("sent", 0)):
        raise ProtocolError("a session that comes back says how many messages it has sent")
    return key, mark


def _is_count(said: object) -> bool:
    return type(said) is int and said >= 0
