"""The idle-flush thread of a session: it flushes idle instructions, receives what has arrived, and sends heartbeats.

A program that pauses, for a file or for its user, has gathered instructions that nobody computes. When its workers have
nothing else of it to do, they get these after a moment; when they are busy, gathering more costs nothing, and the thread waits
longer. Where a stream is cut depends on the clock here, and only here; and bits depend on where it is cut. So nothing is cut
while it is the service that lets time pass, nor in a loop that is cut where it repeats, unless its program pauses for long.
"""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from gt.client.segment.builder import FLUSH_LENGTH, Builder

if TYPE_CHECKING:
    from .session import Session

POLL_SECONDS: Final = 0.05
"""Seconds after which idle instructions are flushed while workers have nothing to do; and between looks at a busy program."""
IDLE_FLUSH_SECONDS: Final = 0.25
"""Seconds after which idle instructions are flushed in any case; and between looks at a program that waits."""
LONG_PAUSE_SECONDS: Final = 2.0
"""Seconds after which instructions are flushed that are part of a step of a pipeline, or of a loop whose period is known."""
HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between two heartbeats."""


class Idleness:
    """What each builder had gathered at the last look, and since when it has not changed."""

    def __init__(self) -> None:
        self.seen: WeakKeyDictionary[Builder, tuple[int, int, float | None]] = WeakKeyDictionary()
        self.moved = False
        """Whether anything was gathered between the last two looks."""

    def due(self, builder: Builder, now: float, *, standing: bool, held: bool = False) -> bool:
        """Whether to flush; `standing`: the workers have done all that this session has sent; `held`: the service lets the
        program wait, which does not count as a pause of it.

        A segment that may not be cut at its length, or that has a length at which its loop repeats, is not cut by a pause of the
        program either, unless that is a long one.
        """
        base, pending = builder.base, len(builder.record) + len(builder.dead)
        before = self.seen.get(builder)
        changed = before is None or before[:2] != (base, pending)
        if changed:
            self.moved = True
        if before is None or before[2] is None or changed or held:  # a pause begins when it is not held up
            self.seen[builder] = (base, pending, None if held else now)
            return False
        if builder.length > FLUSH_LENGTH or (builder.periods is not None and builder.periods.period):
            wait = LONG_PAUSE_SECONDS
        else:
            wait = POLL_SECONDS if standing else IDLE_FLUSH_SECONDS
        return bool(pending) and builder.capture is None and now >= before[2] + wait

    def pause(self) -> float:
        """The seconds until the next look."""
        moved, self.moved = self.moved, False
        return POLL_SECONDS if moved or any(pending for _, pending, _ in self.seen.values()) else IDLE_FLUSH_SECONDS


def run_idle_flush(session: Session, stop: Event) -> None:
    """The idle-flush thread: runs until the session ends."""
    idleness = Idleness()
    heard = alive = time.monotonic()
    while not stop.wait(idleness.pause()) and session.failure is None:
        now = time.monotonic()
        standing = session.credited >= session.sent
        held = session.held_up()
        for each in list(session.builders):
            waits = held or each.thread in session.waits
            if idleness.due(each, now, standing=standing, held=waits) and each.lock.acquire(blocking=False):
                try:
                    each.flush_from_outside()
                finally:
                    each.lock.release()
        lately = now - heard < IDLE_FLUSH_SECONDS
        if lately and standing:
            continue
        with session.exclusive():
            session.free_orphans()
            if now - alive >= HEARTBEAT_SECONDS:
                alive = now
                session.send_heartbeat()
                reason = session.link.alive()  # a daemon that was killed is started again, also while nobody waits
                if reason is not None:
                    session.gone(reason)
            session.pump()  # while workers are busy it is looked for their word that they are not, too
        if not lately:
            heard = now
            session.link.memory.trim(now)
