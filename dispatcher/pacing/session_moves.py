"""Which running sessions should go on on another worker, because that would be faster for them for long.

A session moves when its work has taken `FASTER` times as long where it is as it would elsewhere, at every look for
`SUSTAINED_SECONDS`, and when what it would save, if it goes on for as long as it has lasted so far, is `COST_MARGIN` times
what the move costs. It never goes to a worker of another kind, nor for `RETURN_SECONDS` back to the one that it has left last;
and after each move it stays for a time that doubles. So the moves of a session are few, whatever happens: at most seven in two
hours.

Pure: sessions and workers are plain values, time is an argument. `dispatcher/session_mover.py` says what there is, and moves
sessions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from .soonest_end import STRAIN

FASTER: Final = 1.5
"""How many times as long work must take where a session is."""
SUSTAINED_SECONDS: Final = 5.0
LEAST_LOOKS: Final = 3
BUSY_DEMAND: Final = 0.5
"""A session that would use less of a worker, if it had it alone, is not moved: it would gain little."""
HORIZON_SECONDS: Final = 60.0
"""Beyond this nothing counts that a move would save."""
COST_MARGIN: Final = 4.0
MOVE_SECONDS: Final = 0.25
"""What a move costs at least, besides sending the session's data."""
BYTES_PER_SECOND: Final = 1e9
STAY_SECONDS: Final = 60.0
"""How long a session stays after its first move; after each further one twice as long."""
MOST_STAY_SECONDS: Final = 3600.0
RETURN_SECONDS: Final = 3600.0
PENDING_SECONDS: Final = 30.0
"""So long after it was told to move a session counts as on its way."""


class WorkerState(NamedTuple):
    """A worker in service. Sessions move between workers of equal `kind`; `pace` is its speed, in any unit that is the same for
    all; `strained`, whether it is short of memory or slowed down."""

    kind: Hashable
    pace: float
    strained: bool = False


class RunningSession(NamedTuple):
    """A session that may move. `demand` is the part of a worker's time that it would use alone, from 0 to 1."""

    key: int
    principal: Hashable
    worker: int
    demand: float
    seconds: float
    """How long it has lasted."""
    nbytes: int
    """What it holds."""
    allowed: frozenset[int] | None = None
    """The workers to which its principal is confined; None: all."""


class SessionMove(NamedTuple):
    """A session is to move. `faster`: how many times as fast its work would be."""

    key: int
    source: int
    target: int
    faster: float


class WorkerLoads:
    """How much of each worker's time its sessions would use, by principal."""

    def __init__(
        self, workers: Mapping[int, WorkerState], weights: Mapping[Hashable, float], default: float = 1.0
    ) -> None:
        self.workers = workers
        self.weights = weights
        self.default = default
        self.demands: dict[int, dict[Hashable, float]] = {number: {} for number in workers}
        self.weighty: dict[int, float] = dict.fromkeys(workers, 0.0)
        """By worker: the sum over principals of what each would use, one worker at most, times its weight."""

    def add(self, worker: int, principal: Hashable, demand: float) -> None:
        """A session uses a worker, or (with a negative demand) does not any more."""
        demands = self.demands.get(worker)
        if demands is None:
            return
        before = demands.get(principal, 0.0)
        after = demands[principal] = max(0.0, before + demand)
        self.weighty[worker] += self.weight(principal) * (min(1.0, after) - min(1.0, before))

    def weight(self, principal: Hashable) -> float:
        """What a principal weighs."""
        return self.weights.get(principal, self.default)

    def slowness(self, worker: int, session: RunningSession, *, here: bool) -> float:
        """How long a second of a session's work takes on a worker, as in `soonest_end.py`; `here`: the session is among those
        that use it."""
        state, principal = self.workers[worker], session.principal
        all_of_it = self.demands[worker].get(principal, 0.0)
        weight = self.weight(principal)
        own = max(0.0, all_of_it - session.demand) if here else all_of_it
        rest = max(0.0, self.weighty[worker] - weight * min(1.0, all_of_it))
        return (STRAIN if state.strained else 1.0) * (1.0 + rest / weight) * (1.0 + own) / state.pace


class _History:
    """What is remembered of one session."""

    __slots__ = ("left", "looks", "moved_at", "since", "stays", "target")

    def __init__(self) -> None:
        self.since = inf
        """Since when it would be faster elsewhere."""
        self.looks = 0
        self.moved_at = -inf
        self.stays = 0.0
        """How long it stays after its last move."""
        self.left = self.target = -1

    def begin_anew(self) -> None:
        self.since, self.looks = inf, 0


class SessionMoves:
    """Decides which sessions move."""

    def __init__(self) -> None:
        self.histories: dict[int, _History] = {}

    def forget(self, there: Iterable[int]) -> None:
        """Remember no sessions but these."""
        self.histories = {key: self.histories[key] for key in there if key in self.histories}

    def target(self, session: RunningSession, now: float) -> int:
        """The worker to which a session is on its way; -1 if it is on none."""
        history = self.histories.get(session.key)
        if history is None or history.target < 0:
            return -1
        if history.target == session.worker or now - history.moved_at > PENDING_SECONDS:
            history.target = -1
        return history.target

    def look(self, sessions: Sequence[RunningSession], loads: WorkerLoads, now: float) -> list[SessionMove]:
        """The sessions that are to move now, of these, which `loads` count where they are, or to where they are on their way."""
        moves = []
        for session in sessions:
            history = self.histories.get(session.key)
            if self.target(session, now) >= 0 or (history is not None and now < history.moved_at + history.stays):
                continue
            found = _better(session, loads, history, now)
            if found is None:
                if history is not None:
                    history.begin_anew()
                continue
            if history is None:
                history = self.histories[session.key] = _History()
            history.since = min(history.since, now)
            history.looks += 1
            if now - history.since < SUSTAINED_SECONDS or history.looks < LEAST_LOOKS:
                continue
            history.begin_anew()
            history.moved_at, history.left, history.target = now, session.worker, found.target
            history.stays = min(MOST_STAY_SECONDS, max(STAY_SECONDS, 2 * history.stays))
            loads.add(session.worker, session.principal, -session.demand)
            loads.add(found.target, session.principal, session.demand)
            moves.append(found)
        return moves


def _better(session: RunningSession, loads: WorkerLoads, history: _History | None, now: float) -> SessionMove | None:
    """The move that would pay for a session now; None if none would."""
    state = loads.workers.get(session.worker)
    if state is None or session.demand < BUSY_DEMAND:
        return None
    left = history.left if history is not None and now < history.moved_at + RETURN_SECONDS else -1
    others = [
        number
        for number, other in loads.workers.items()
        if other.kind == state.kind
        and number not in (session.worker, left)
        and (session.allowed is None or number in session.allowed)
    ]
    best = min(others, key=lambda number: (loads.slowness(number, session, here=False), number), default=-1)
    if best < 0:
        return None
    here, there = loads.slowness(session.worker, session, here=True), loads.slowness(best, session, here=False)
    saved = min(session.seconds, HORIZON_SECONDS) * session.demand * (1.0 - there / here)
    cost = MOVE_SECONDS + session.nbytes / BYTES_PER_SECOND
    if here < FASTER * there or saved < COST_MARGIN * cost:
        return None
    return SessionMove(session.key, session.worker, best, here / there)
