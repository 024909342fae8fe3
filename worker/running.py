"""A plan under way on one worker: where it is, what it holds, and which moves it has begun. State alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gt.placement import Mesh

from .careful import Careful
from .doubts import Doubt
from .exchange import Exchange
from .meeting import Meeting
from .program import Program
from .recording import Recording
from .stored import Poison


@dataclass(slots=True)
class MeshInfo:
    """A mesh that this worker is a member of."""

    mesh: Mesh
    rank: int
    cards: tuple[int, ...] = ()
    """For each of its workers the number of a GPU that takes part in joint moves, or 0; empty where this one cannot."""


@dataclass(slots=True)
class Running:
    """An execution under way: where it is (`block`), the moves that it has begun, and since when nothing came."""

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    program: Program
    info: MeshInfo
    slots: list[Any]
    block: int = 0
    moves: deque[Exchange | Meeting] = field(default_factory=deque)
    """Moves under way, in the order of the plan: the next, in which it stands, and those behind that were begun with it."""
    since: float = 0.0
    poisoned: bool = False
    refuted: Poison | None = None
    """What stands for all that comes out of it, when a check found a mistake."""
    doubts: dict[int, list[Doubt]] = field(default_factory=dict)
    """Of slots, what a GPU has not yet said of their operands."""
    careful: Careful | None = None
    """How it runs when it and what is stored do not fit into memory together."""
    recording: Recording | None = None
    """What is told of it; of a flood some runs go for all."""

    @property
    def exchange(self) -> Exchange | Meeting | None:
        """The move that it stands in."""
        return self.moves[0] if self.moves else None
