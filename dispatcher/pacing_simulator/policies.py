"""The policies of textbooks, for comparison with those that the service offers.

Some know more than the pacer: when the next plan of each session was asked for, and what is predicted of it. They are for the
simulator alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gt.dispatcher.pacing.learned_policy import LearnedPolicy, learned_network
from gt.dispatcher.pacing.paced_session import PacedSession
from gt.dispatcher.pacing.policy import PacingPolicy, Rank
from gt.dispatcher.pacing.priority import BATCH, INTERACTIVE, NORMAL

from .service import Heads

URGENCY: Final = {INTERACTIVE: 0, NORMAL: 1, BATCH: 2}
LEVEL_NANOSECONDS: Final = (10_000_000, 40_000_000, 160_000_000)
"""After so many nanoseconds of workers' time a session is on the next level of `mlfq`."""
BOOST_SECONDS: Final = 1.0
"""After so many seconds all sessions are on its first level again."""


class RankingPolicy:
    """Sessions by a rank that depends on each of them alone."""

    def __init__(self, rank: Callable[[PacedSession], Rank]) -> None:
        self.rank = rank

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """That rank."""
        return self.rank


class FeedbackPolicy:
    """Multi-level feedback queues: who has used little of the workers' time since the last boost goes first, in turns."""

    def __init__(self) -> None:
        self.period = -1
        self.before: dict[int, int] = {}
        """What sessions had used when the period began."""

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """By level, and then whoever has waited longest."""
        if int(now / BOOST_SECONDS) != self.period:
            self.period = int(now / BOOST_SECONDS)
            self.before.clear()

        def rank(session: PacedSession) -> Rank:
            used = session.spent - self.before.setdefault(session.number, session.spent)
            return sum(used >= each for each in LEVEL_NANOSECONDS), session.since, session.number

        return rank


POLICIES: Final[dict[str, Callable[[Heads], PacingPolicy | None]]] = {
    "fair": lambda heads: None,
    "learned": lambda heads: LearnedPolicy(learned_network()),
    "priority": lambda heads: RankingPolicy(
        lambda session: (URGENCY[session.kind], heads(session.number).asked, session.number)
    ),
    "mlfq": lambda heads: FeedbackPolicy(),
    "sjf": lambda heads: RankingPolicy(lambda session: (heads(session.number).nanoseconds, session.since)),
    "round_robin": lambda heads: RankingPolicy(lambda session: (session.since, session.number)),
    "fifo": lambda heads: RankingPolicy(lambda session: (heads(session.number).asked, session.number)),
}
"""By name. `fifo` goes by when plans were asked for, `round_robin` by since when sessions have waited for a turn, `sjf` by the
predicted seconds of plans, `priority` strictly by class and then as `fifo`."""
