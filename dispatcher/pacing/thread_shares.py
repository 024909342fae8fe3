"""The shares of the dispatcher's one thread. Reading what a user sends, planning it and passing on what workers answer takes the
dispatcher's time, and on a machine where it has no core of its own, that of workers too.

While the workers compute for somebody else as well, a principal may use half of the thread, and what it has saved up besides: the
generic cell rate algorithm (ITU-T I.371), in seconds. While cores are short, so that workers lack what this thread has, it is a
quarter, and a fifth of the time counts for which it has saved up. Who has used more rests: its jobs and its queues go on when
that is paid off. Who is alone has the whole thread. Time decides nothing but the order between principals. No clock is used here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import inf
from typing import Final

SHARE: Final = 0.5
"""The part of the thread that a principal may use for long, while workers compute for others too."""
SHORT_SHARE: Final = 0.25
"""The same while cores are short."""
SHORT_SAVED_SECONDS: Final = 0.05
SHORT_WAIT: Final = 0.05
"""Cores are short when this thread has waited for one for such a part of the time, and for `SHORT_SECONDS` after that."""
SHORT_SECONDS: Final = 1.0
SAVED_SECONDS: Final = 0.25
"""Of so long a time it may use that part at once, as a program that begins does."""
OWED_SECONDS: Final = 0.1
"""Nobody rests for longer, whatever it was charged."""
FLOOD_SECONDS: Final = 0.0005
"""Of whoever rests, messages are read for so long at a time."""
MAX_PAUSE_SECONDS: Final = 0.002
"""The longest time for which nobody's messages are read because of that."""
BESIDE_SECONDS: Final = 1.0
"""So long after its last plan was issued, a principal still counts as one for which workers compute."""
MAX_KEPT: Final = 1024
"""Beyond so many principals, those are forgotten that owe nothing."""
NOBODY: Final = ""


class ThreadShares:
    """Who may use the thread. All times are seconds on the shell's clock."""

    def __init__(self) -> None:
        self.paid: dict[Hashable, float] = {}
        """By principal, until when what it has used is paid for; later than now if it owes something."""
        self.last: tuple[Hashable, float] = (NOBODY, -inf)
        """For whom a plan was issued last, and when."""
        self.before: tuple[Hashable, float] = (NOBODY, -inf)
        """For whom, of all others, and when."""
        self.beside_until = -inf
        """Until when somebody counts as one who uses the thread, with plans or without, while workers compute for others."""
        self.short_until = -inf
        """Until when cores count as short."""

    def waited(self, part: float, now: float) -> None:
        """This thread has waited for a core for such a part of the last moment."""
        if part >= SHORT_WAIT:
            self.short_until = now + SHORT_SECONDS

    def is_shared(self, now: float) -> bool:
        """Whether workers compute for one principal while the thread works for another, or they did a moment ago."""
        return now < self.beside_until or (self.before[0] != NOBODY and now - self.before[1] < BESIDE_SECONDS)

    def issued(self, principal: Hashable, now: float) -> None:
        """A plan of a principal was issued."""
        if self.last[0] != principal:
            self.before = self.last
        self.last = principal, now

    def is_beside_others(self, principal: Hashable, now: float) -> bool:
        """Whether workers compute for somebody else, or did a moment ago."""
        name, at = self.before if self.last[0] == principal else self.last
        return name != NOBODY and now - at < BESIDE_SECONDS

    def charge(self, principal: Hashable, seconds: float, now: float) -> None:
        """A principal has used so many seconds of the thread."""
        if not self.is_beside_others(principal, now):
            if self.paid:
                self.paid.pop(principal, None)
            return
        self.beside_until = now + BESIDE_SECONDS
        if len(self.paid) >= MAX_KEPT and principal not in self.paid:
            self.paid = {each: until for each, until in self.paid.items() if until > now}
        share, saved = (SHORT_SHARE, SHORT_SAVED_SECONDS) if now < self.short_until else (SHARE, SAVED_SECONDS)
        begin = max(self.paid.get(principal, -inf), now - saved)
        self.paid[principal] = min(begin + seconds / share, now + OWED_SECONDS)

    def rests(self, principal: Hashable, now: float) -> bool:
        """Whether a principal has used more than its share, and others wait for workers that might need the time."""
        return bool(self.paid) and self.paid.get(principal, -inf) > now and self.is_beside_others(principal, now)

    def pause(self, principal: Hashable, worked: float, now: float) -> float:
        """The seconds for which the thread should sleep after it has read messages for `worked` seconds.

        It is 0 unless `principal`, who sent the last of them, is over its share and goes on sending. Then the thread sleeps until
        reading has taken no more of its time than that share, `MAX_PAUSE_SECONDS` at most.
        """
        if worked < FLOOD_SECONDS or not self.rests(principal, now):
            return 0.0
        share = SHORT_SHARE if now < self.short_until else SHARE
        return min(worked * (1 / share - 1), MAX_PAUSE_SECONDS)

    def due(self, principals: Iterable[Hashable], now: float) -> float:
        """When the first of those that rest among some principals may go on."""
        return min((self.paid[each] for each in principals if self.rests(each, now)), default=inf)
