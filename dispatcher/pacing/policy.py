"""Policies other than fair shares: a rank for each session that waits for its turn.

A policy decides nothing else. How much is in flight, and that a plan for several workers is released to all of them at once,
is the pacer's (`pacer.py`, `turns.py`), whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from .paced_session import PacedSession

Rank = tuple[float, ...]
"""The least rank goes first."""


class PacingPolicy(Protocol):
    """Who is first among the sessions that wait."""

    def ranks(self, waiting: Mapping[int, PacedSession], now: float) -> Callable[[PacedSession], Rank]:
        """A function that ranks those that wait, while they have their turns one after the other. The turn of one may move
        others back, never forward."""
        ...
