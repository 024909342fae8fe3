"""Policies: who is first among the sessions that wait for their turns. The service's own is `FairPolicy`.

A policy decides nothing else. How much is in flight, that a plan for several workers is released to all of them at once, and
that whoever ranks first is not overtaken for ever on a worker it needs, is the pacer's (`pacer.py`), whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from math import inf
from typing import Final, Protocol

from .cells import Lane
from .paced_session import PacedSession
from .priority import BATCH, INTERACTIVE
from .shares import Share

INTERACTIVE_CREDIT: Final = 50_000_000
"""How many virtual nanoseconds an interactive session may be before others with as good a claim."""
BATCH_PATIENCE: Final = 1.0
"""The seconds after which a batch session that waits has its turn like others."""

Rank = tuple[float, ...]
"""The least rank goes first."""


class PacingPolicy(Protocol):
    """Who is first among the sessions that wait."""

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """A function that ranks those that wait, while they have their turns one after the other. The turn of one may move
        others back, never forward."""
        ...


class FairPolicy:
    """Whoever is furthest behind its fair share of the workers' time: start-time fair queueing (`shares.py`).

    Shares are those of principals, and of the programs of each. An interactive session counts as `INTERACTIVE_CREDIT` further
    behind, which lets it go first and gives it no more time in the long run. A batch session goes when no other one waits for
    one of its workers, or after `BATCH_PATIENCE` seconds.
    """

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """Batch sessions last, then by principal, then by program, each by how far it is before the last of its siblings."""
        credits: dict[Hashable, int] = {}
        for session in waiting.values():
            if session.kind is INTERACTIVE:
                credits[session.key[0]] = INTERACTIVE_CREDIT
        floors: dict[Share, float] = {}

        def rank(session: PacedSession) -> Rank:
            lane, kind = session.waits, session.kind
            assert lane is not None, "a session that waits has a plan for a mesh"
            late = kind is BATCH and now - session.since < BATCH_PATIENCE
            principal, program, own = leads(lane, floors)
            if not late:
                principal -= credits.get(session.key[0], 0)
            if kind is INTERACTIVE:
                program -= INTERACTIVE_CREDIT
            return late, principal, program, own, session.since

        return rank


def leads(lane: Lane, floors: dict[Share, float]) -> list[float]:
    """How many virtual nanoseconds the principal, the program and the mesh of a session are before the last of their
    siblings; on several workers, where each is furthest. `floors` remembers where those are."""
    found = [-inf, -inf, -inf]
    for cell in lane.cells:
        for level, share in enumerate(cell.shares.path(lane.key)):
            parent = share.parent
            assert parent is not None, "the whole is nobody's"
            floor = floors.get(parent)
            if floor is None:
                floor = floors[parent] = parent.floor
            found[level] = max(found[level], share.virtual - floor)
    return found
