"""Which connections to end because of messages that do not end: the decision, without sockets, clocks or processes.

ZeroMQ holds all frames of a message back until the last has come, and nothing bounds how many there are. What it holds can be
seen in one place alone, the memory of the process. So when that has grown by more than a bound a *suspicion* begins: for some
seconds it is noted by which connections whole messages come, and by which only bytes. Who holds an unfinished message open
cannot finish another one on the same connection, and honest peers finish some every second.

A connection is ended when more bytes have come by it than any message has, and none was finished. On Unix sockets nobody
counts bytes; there any message crosses in a fraction of a second, so one that takes longer is enough. While the memory
grows on as fast as it did, that goes for all connections: there are frames that take 32 times as much memory as they had bytes.
What remains is many messages that stand still, or come so slowly that nobody sees it. When the memory has grown by several times
the bound and nobody was found to be the cause, all connections are ended by which nothing whole has come in a whole suspicion.

Who is cut off by mistake loses nothing: its session goes on by its next connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from gt.bounds import MAX_UNFINISHED_BYTES

SUSPICION_SECONDS: Final = 5.0
"""How long a suspicion lasts at most: clients send something every second, watchers every other."""
CONFIRM_SECONDS: Final = 0.2
"""For how long bytes must have come, and no whole message. So much time a thread has to take what lies there for it."""
LAST_RESORT: Final = 8
"""After growth by so many times the bound whose cause was not found, silence is enough."""

Connection = TypeVar("Connection", bound=Hashable)


class Reading(NamedTuple, Generic[Connection]):
    """What came by a connection since it was last read."""

    connection: Connection
    finished: bool
    """Whether a whole message has come."""
    received: float
    """The bytes that have come; `math.inf` if it is not known how many, and 0 if there were none."""
    message_bytes: int
    """The bytes of the largest message that may come by it."""
    trusted: bool = False
    """Whether it may be silent for ever."""


class UnfinishedMessages(Generic[Connection]):
    """Decides which connections to end. `bound`: the growth, in bytes, that begins a suspicion of at most `seconds`."""

    def __init__(self, bound: int = MAX_UNFINISHED_BYTES, seconds: float = SUSPICION_SECONDS) -> None:
        self.bound = bound
        self.seconds = seconds
        self.began: float | None = None
        """When the suspicion began; None while there is none."""
        self.calm = math.inf
        """The memory before it grew: the least since the last suspicion."""
        self._unexplained_from = math.inf
        """The memory from which on no cause of its growth was found."""
        self._memory_then = 0
        """The memory when the suspicion began."""
        self._silent: set[Connection] = set()
        """The connections that were there then, and by which nothing whole has come since."""
        self._unfinished: dict[Connection, tuple[float, float]] = {}
        """When the first bytes have come after the last whole message, and how many there are by now."""

    def look(self, now: float, memory: int, read: Callable[[], Iterable[Reading[Connection]]]) -> list[Connection]:
        """The connections to end now, where the process has so many bytes of memory; in a suspicion, `read` tells of all."""
        self.calm = min(self.calm, memory)
        self._unexplained_from = min(self._unexplained_from, memory)
        if memory - self.calm <= self.bound:
            self.began = None
            return []
        if self.began is None:
            self.began, self._memory_then = now, memory
            self._silent = {each.connection for each in read() if not each.trusted}
            self._unfinished = {}
            return []
        guilty = self._hear(now, memory - self._memory_then >= self.bound, read())
        if now - self.began < self.seconds:
            return guilty
        self.began, self.calm = None, memory
        if memory - self._unexplained_from >= LAST_RESORT * self.bound:
            self._unexplained_from = memory
            guilty += self._silent.difference(guilty)
        return guilty

    def _hear(self, now: float, growing: bool, readings: Iterable[Reading[Connection]]) -> list[Connection]:
        """Note what has come by all connections. Returns those whose messages are too long, or come too slowly."""
        before, self._unfinished = self._unfinished, {}
        guilty, present = [], set()
        for connection, finished, received, message_bytes, trusted in readings:
            if finished:
                continue
            if not trusted:
                present.add(connection)
            since, total = before.get(connection, (now, 0.0))
            total += received
            if total:
                self._unfinished[connection] = since, total
            if total > (0 if growing else message_bytes) and now - since >= CONFIRM_SECONDS:
                guilty.append(connection)
        self._silent &= present
        return guilty
