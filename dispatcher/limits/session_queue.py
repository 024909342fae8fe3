"""The queue of sessions whose principals have as many as they may: the first of each principal's begins when one has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
MAX_QUEUED: Final = 256
"""The most sessions of one principal that wait."""
MAX_ALL_QUEUED: Final = 1024
"""The most of all principals together."""
MAX_UNREAD_POSITIONS: Final = 16
"""How often a session that reads nothing is told its position."""


@dataclass(slots=True, eq=False)
class QueuedSession(Generic[T]):
    """A session that waits, with what it said of itself."""

    peer: bytes
    principal: str
    said: T
    heard: float
    since: float
    told: int = 0
    """The position that it was told last."""
    unread: int = 0
    """How often it was told one since it last had read everything."""
    behind: bool = False
    """Whether it was not told another one because of that."""
    unread_bytes: int = 0
    """What it was sent and has not acknowledged, as of its last message."""


class SessionQueue(Generic[T]):
    """The sessions that wait, in order of their coming."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, QueuedSession[T]] = {}
        """By peer."""
        self.due = False
        """Whether one of them may begin, or has another position than it was told."""

    def __contains__(self, peer: bytes) -> bool:
        return peer in self.waiting

    def is_full(self, principal: str) -> bool:
        """Whether no further session of a principal may wait."""
        return len(self.waiting) >= MAX_ALL_QUEUED or sum(1 for _ in self._of(principal)) >= MAX_QUEUED

    def add(self, session: QueuedSession[T]) -> int:
        """A session waits from now on. Returns its position, from 1."""
        self.waiting[session.peer] = session
        session.told = sum(1 for _ in self._of(session.principal))
        return session.told

    def remove(self, peer: bytes) -> None:
        """A session waits no longer."""
        if self.waiting.pop(peer, None) is not None:
            self.due = True

    def ready(self, room: Callable[[str], int]) -> list[QueuedSession[T]]:
        """The sessions that may begin now, by how many more a principal may have: of each the first ones."""
        left: dict[str, int] = {}
        found = []
        for session in self.waiting.values():
            who = session.principal
            if who not in left:
                left[who] = room(who)
            if left[who] > 0:
                left[who] -= 1
                found.append(session)
        return found

    def moved_up(self) -> Iterator[QueuedSession[T]]:
        """The sessions that are to be told that they have other positions; each has its new one in `told`."""
        counts: dict[str, int] = {}
        for session in [*self.waiting.values()]:
            position = counts[session.principal] = counts.get(session.principal, 0) + 1
            if session.told == position:
                continue
            session.behind = session.unread >= MAX_UNREAD_POSITIONS
            if not session.behind:
                session.told, session.unread = position, session.unread + 1
                yield session

    def has_read(self, session: QueuedSession[T]) -> None:
        """A session has read all that it was told."""
        session.unread = 0
        self.due = self.due or session.behind

    def late(self, since: float) -> list[bytes]:
        """The peers of which nothing was heard since a time."""
        return [session.peer for session in self.waiting.values() if session.heard < since]

    def _of(self, principal: str) -> Iterator[QueuedSession[T]]:
        return (each for each in self.waiting.values() if each.principal == principal)
