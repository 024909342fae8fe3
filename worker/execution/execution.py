"""The state of a plan in progress on one worker: its position, its values, and the moves that it has begun."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gt.sharding.placement import Mesh
from gt.wire.messages import Collect
from gt.worker.memory_limit.low_memory_run import LowMemoryRun
from gt.worker.memory_limit.principal_memory import LiveBytesRun
from gt.worker.program.compiler import Program
from gt.worker.telemetry.recorder import WorkerRecording
from gt.worker.transfer.move import MoveInFlight
from gt.worker.transfer.rendezvous import Rendezvous

from .deferred_checks import DeferredCheck
from .early_answer import AnswerPoint
from .plan_state import TRANSITIONS, PlanState
from .tensor_store import Poison


@dataclass(slots=True)
class MeshInfo:
    """A mesh to which this worker belongs."""

    mesh: Mesh
    rank: int
    cards: tuple[int, ...] = ()
    """For each member, the number of its GPU if it takes part in joint moves, or 0; empty if this worker takes no part."""


@dataclass(slots=True)
class Execution:
    """A plan in progress: its state, the current `block`, the moves that have begun, and the time of the last arrival."""

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    program: Program
    info: MeshInfo
    slots: list[Any]
    state: PlanState = PlanState.LOADING
    """Where it stands; changed by `enter` alone."""
    block: int = 0
    moves: deque[MoveInFlight | Rendezvous] = field(default_factory=deque)
    """The moves in progress, in the plan's order: the one that it waits in, and those after it that have begun."""
    since: float = 0.0
    poisoned: bool = False
    refuted: Poison | None = None
    """The poison that replaces all its results when a check has found a mistake."""
    deferred_checks: dict[int, list[DeferredCheck]] = field(default_factory=dict)
    """For slots, the checks of their operands on the GPU that are not known yet."""
    low_memory: LowMemoryRun | None = None
    """How it runs if it does not fit into memory together with the stored tensors."""
    live_bytes: LiveBytesRun | None = None
    """How it runs if its client's principal may not hold all that it makes."""
    asked: Collect | None = None
    """What is fetched of its results, until that is answered."""
    answer: AnswerPoint | None = None
    """Where that is answered, if it can be before the end."""
    at: int = 0
    """The action of the block with which it goes on after that; 0 if it has not stopped in a block."""
    recording: WorkerRecording | None = None
    """The recorder of its events; in a flood, only some runs are recorded individually."""

    def enter(self, state: PlanState) -> None:
        """Move to another state, to which the table must lead."""
        assert state in TRANSITIONS[self.state], f"a plan that is {self.state} does not become {state}"
        self.state = state

    @property
    def current_move(self) -> MoveInFlight | Rendezvous | None:
        """The move in which it waits."""
        return self.moves[0] if self.moves else None
