"""A policy that was learned: a small network scores the sessions that wait, and the highest score goes first.

It was trained in the simulator (`dispatcher/pacing_simulator/training.py`, which says how, and for what reward); its weights are
in `learned_weights.json`. What it gives beside others is in `docs/multi-user.md`.

Whoever has waited for `PATIENCE_SECONDS` goes before all others, and of those whoever has waited longest. So nothing starves,
whatever the network says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import asinh, inf, log
from pathlib import Path
from typing import Any, Final

import numpy as np

from .cells import Lane
from .paced_session import PacedSession
from .policy import PacingPolicy, Rank
from .priority import BATCH, INTERACTIVE
from .shares import Share

PATIENCE_SECONDS: Final = 1.0
"""After so many seconds a session goes before those that have waited less."""
HIDDEN: Final = 8
"""The units of the hidden layer."""
SERVICE_POLICIES: Final = ("fair", "learned")
"""The policies that a service offers, the default first."""
FEATURES: Final = (
    "wait", "last plan", "lead of the principal", "lead of the program", "interactive", "batch", "idle", "workers",
    "in flight there", "sessions that wait there", "burst",
)  # fmt: skip
"""What the network knows of a session (`features`)."""
PARAMETERS: Final = len(FEATURES) * (HIDDEN + 1) + 2 * HIDDEN
WEIGHTS_PATH: Final = Path(__file__).with_name("learned_weights.json")

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def features(session: PacedSession, now: float, floors: dict[Share, float]) -> list[float]:
    """The numbers of a session that waits, each of them mostly between -3 and 3."""
    lane, kind = session.waits, session.kind
    assert lane is not None, "a session that waits has a plan for a mesh"
    principal, program, _ = leads(lane, floors)
    return [
        log(1.0 + 100.0 * (now - session.since)),
        log(1e-3 + session.last * 1e-7),
        asinh(principal * 2e-8),
        asinh(program * 2e-8),
        float(kind is INTERACTIVE),
        float(kind is BATCH),
        float(session.was_idle),
        log(sum(cell.size for cell in lane.cells)),
        max(cell.nanoseconds for cell in lane.cells) * 1e-7,
        log(max(cell.waiting for cell in lane.cells)),
        asinh(session.behaviour.burst * 2e-8),
    ]


class Network:
    """Features to a score: a linear part beside a hidden layer of tanh. `parameters` holds all weights, one after the other."""

    def __init__(self, parameters: Sequence[float]) -> None:
        every = np.asarray(parameters, np.float64)
        if every.shape != (PARAMETERS,) or not np.isfinite(every).all():
            raise ValueError(f"a network has {PARAMETERS} finite parameters")
        count = len(FEATURES)
        self.linear, hidden, self.bias, self.out = np.split(every, np.cumsum([count, count * HIDDEN, HIDDEN]))
        self.hidden = hidden.reshape(count, HIDDEN)

    def __call__(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """The scores of sessions with these features."""
        known: Numbers = np.asarray(rows, np.float64)
        scores: Numbers = known @ self.linear + np.tanh(known @ self.hidden + self.bias) @ self.out
        return [float(each) for each in scores]


def learned_network() -> Network:
    """The network that comes with GT."""
    return Network(json.loads(WEIGHTS_PATH.read_text("utf-8"))["parameters"])


class LearnedPolicy:
    """Whoever a network gives the highest score."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """Those who have waited long first, and then by score. All are scored at once, and a session anew after its turn."""
        floors = dict[Share, float]()
        scores = self.network([features(each, now, floors) for each in waiting.values()]) if waiting else []
        known = {number: (waiting[number].spent, score) for number, score in zip(waiting, scores, strict=True)}

        def rank(session: PacedSession) -> Rank:
            if now - session.since >= PATIENCE_SECONDS:
                return False, session.since, session.number
            spent, score = known[session.number]
            if spent != session.spent:
                score = self.network([features(session, now, floors)])[0]
                known[session.number] = session.spent, score
            return True, -score, session.number

        return rank


def service_policy(name: str) -> PacingPolicy | None:
    """One of `SERVICE_POLICIES`. None: fair shares."""
    return LearnedPolicy(learned_network()) if name == "learned" else None


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
