"""The resend buffer: what a session has sent since its last mark, which it sends again when the service has lost something.

The n-th message of a session has the *position* n, also when it is sent again. A mark is a copy of all that the service has of
the session after the message of some position. Once it is durable, messages up to there are not needed any more; but a request
among them can only be asked again, not restored, so they are kept until all of these are answered. Messages that are sent again
are those of the first time, byte for byte, with two exceptions: in place of a request that has been answered goes one that does
nothing, and a snapshot gets other files, since workers may still write those of the first time.
State only: nothing here is sent, and nothing waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final

from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.reliable_stream import Frames

from .bulk_puts import BulkPut

UNANSWERED: Final = 0
"""A message that is not answered."""
COUNTED: Final = 1
"""A message for which the dispatcher gives a credit back."""
BULK_PUT: Final = 2
"""The same, and data that goes by the bulk socket; its number is that of the tensor."""
ASKING_RUN: Final = 3
"""A run that asks for what it makes: a message for which a credit is given back, and a request, whose number it has. It is sent
again as it is, and an answer that comes again has no effect."""
CONFIGURE: Final = 4
"""A request that changes what follows. The number of each request is its own."""
FETCH: Final = 5
QUESTION: Final = 6
SNAPSHOT: Final = 7
SOON_BYTES: Final = 512 << 20
"""Bytes from which on a mark would be welcome in any case, if it is cheap; less if the limit is less than twice this."""
MESSAGE_BYTES: Final = 256
"""The memory that a kept message takes beside its frames, in bytes."""
MAX_UNHEARD_PUT_BYTES: Final = 64 << 20
"""Bytes of earlier puts of which workers may not have heard; whoever puts more waits for them."""
NO_EFFECT: Final = codec.encode(m.Free([]))
"""The frames in place of a request that has been answered."""
Kept = tuple[bytes, bytes | None, int, int]
"""The frames of a message, its kind, and its number."""


class ResendBuffer:
    """The messages of a session after its last mark, of at most `limit` bytes if whoever adds them heeds `threshold`."""

    __slots__ = (
        "asked", "done", "dropped", "durable", "kept", "lapsed", "limit", "mark", "nbytes", "puts", "requested", "resent",
        "threshold", "unheard", "unsent",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: deque[Kept] = deque()
        self.unsent: deque[Kept] = deque()
        """After a rewind: the kept messages that are still to be sent again, and behind them the program's new ones."""
        self.asked: deque[tuple[int, int]] = deque()
        """(position, number) of each request that was not known to be answered when a mark was last looked at."""
        self.puts: dict[int, BulkPut] = {}
        """By tensor, the data of bulk puts."""
        self.nbytes = 0
        self.mark = self.dropped = self.done = 0
        """The last mark: its number, its position, and how many runs and puts it has."""
        self.resent = 0
        """While messages wait: how many runs and puts do not."""
        self.unheard: deque[tuple[int, int]] = deque()
        """Bulk puts that were sent again: which of all runs and puts each is, and its bytes."""
        self.durable: m.Durable | None = None
        """A mark before which there are unanswered requests."""
        self.requested = 0
        """Whether a mark was asked for, and has not come yet: 1, or 2 if it is urgent."""
        self.threshold = min(limit // 2, SOON_BYTES)
        """The number of kept bytes at which the session asks for a mark, or waits for it."""
        self.lapsed = False
        """Whether nothing is kept any more."""

    @property
    def position(self) -> int:
        """The position of the last message."""
        return self.dropped + len(self.kept)

    def add(self, frames: Frames, kind: int, number: int = 0) -> None:
        """Keep a message that was sent or, while others wait to be, has them before it."""
        entry: Kept
        if len(frames) == 1:
            first = frames[0]
            entry = first, None, kind, number
            self.nbytes += len(first) + MESSAGE_BYTES
        else:
            entry = frames[0], frames[1], kind, number
            self.nbytes += _size(entry)
        self.kept.append(entry)
        if kind > BULK_PUT:
            self.asked.append((self.dropped + len(self.kept), number))
        if self.unsent:
            self.unsent.append(entry)
            if self.lapsed:
                self._clear()

    def keep_data(self, tensor: int, put: BulkPut) -> None:
        """Keep the data of a bulk put, whose message follows."""
        if not self.lapsed:
            self.puts[tensor] = put
            self.nbytes += put.nbytes

    def cancel(self, tensor: int) -> None:
        """Keep the data of a bulk put no more, because nobody will hold the tensor."""
        put = self.puts.pop(tensor, None)
        if put is not None:
            self.nbytes -= put.nbytes

    def reaches(self, more: int) -> bool:
        """Whether a mark may be to be asked for, or waited for, with `more` bytes to come."""
        return self.requested > 0 or self.nbytes + more >= self.threshold

    def request(self, more: int, *, scarce: bool = False) -> bool | None:
        """Whether the mark is urgent that is to be asked for now, with `more` bytes to come; None if none is. It is if memory
        is `scarce` that was used before: to touch new memory takes longer than most marks do."""
        urgent = scarce or self.nbytes + more >= self.limit // 4 * 3
        if self.lapsed or self.requested > urgent:
            return None
        self.requested = 1 + urgent
        self.threshold = self.limit if urgent else self.limit // 4 * 3
        return urgent

    def settle(self, unanswered: Container[int]) -> int | None:
        """The number of the mark that has become the last one, None if requests before it are `unanswered` still. What it
        has is dropped."""
        durable = self.durable
        if durable is None:
            return None
        position = min(durable.position, self.position - len(self.unsent))
        while self.asked and self.asked[0][0] <= position:
            if self.asked[0][1] in unanswered:
                return None
            self.asked.popleft()
        for _ in range(position - self.dropped):
            entry = self.kept.popleft()
            self.nbytes -= _size(entry)
            if entry[2] == BULK_PUT:
                self.cancel(entry[3])
        self.dropped = max(self.dropped, position)
        self.mark, self.done, self.durable = durable.mark, durable.done, None
        self._expect_mark()
        return self.mark

    def _expect_mark(self) -> None:
        self.requested, self.threshold = 0, min(self.limit // 2, SOON_BYTES)

    def rewind(self) -> None:
        """Everything after the last mark waits to be sent again."""
        self.kept = deque(_with_other_files(entry) if entry[2] == SNAPSHOT else entry for entry in self.kept)
        self.unsent = deque(self.kept)
        self.resent = self.done
        self.unheard.clear()
        self.durable = None
        self._expect_mark()

    def next(self, unanswered: Container[int], credited: int, credits: int) -> tuple[Frames, int, int] | None:
        """The frames, kind and number of the next message to be sent again, which then waits no more; None if there is none,
        or it must wait on for credits. `credited` of all runs and puts are known to be done; `credits` may be under way.
        """
        if not self.unsent:
            return None
        first, second, kind, number = self.unsent[0]
        if UNANSWERED < kind < CONFIGURE:
            if self.resent - credited >= credits or (kind == BULK_PUT and not self._may_put(credited)):
                return None
            self.resent += 1
            if kind == BULK_PUT and number in self.puts:
                self.unheard.append((self.resent, self.puts[number].nbytes))
        self.unsent.popleft()
        if kind > CONFIGURE and number not in unanswered:
            return NO_EFFECT, UNANSWERED, 0
        return [first] if second is None else [first, second], kind, number

    def _may_put(self, credited: int) -> bool:
        while self.unheard and self.unheard[0][0] <= credited:
            self.unheard.popleft()
        return sum(nbytes for _, nbytes in self.unheard) <= MAX_UNHEARD_PUT_BYTES

    def lapse(self) -> None:
        """Keep nothing any more. What waits to be sent still does."""
        self.lapsed = True
        self._clear()

    def _clear(self) -> None:
        self.dropped = self.position
        self.kept.clear()
        self.asked.clear()
        self.puts.clear()
        self.nbytes, self.durable = 0, None

    def check(self) -> None:
        """The invariants of a buffer between calls."""
        assert self.nbytes == sum(map(_size, self.kept)) + sum(put.nbytes for put in self.puts.values()) or self.lapsed
        assert len(self.unsent) <= len(self.kept) or self.lapsed, "what waits is kept"
        assert self.done <= self.resent or not self.unsent, "what waits comes after the mark"


def _size(entry: Kept) -> int:
    return len(entry[0]) + len(entry[1] or b"") + MESSAGE_BYTES


def _with_other_files(entry: Kept) -> Kept:
    """A snapshot with other files, of which nobody else has heard."""
    first, body, kind, number = entry
    asked: m.WriteSnapshot = codec.decode([first, body])
    parts = f"{(int(asked.parts, 16) + 1) % (1 << 64):016x}"
    first, body = codec.encode(asked._replace(parts=parts))
    return first, body, kind, number
