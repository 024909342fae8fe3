"""The dispatcher's records of clients, workers, meshes and fetches: plain data that only the core's parts change."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.bounds import MAX_TENSORS
from gt.dispatcher.cost.cost_model import LinkProfile, Speeds
from gt.dispatcher.pacing.priority import AUTO, Priority
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.usage.ledger import SessionAccount
from gt.ir.instruction import Segment
from gt.ir.spec import Spec
from gt.sharding.placement import Mesh
from gt.wire.faults import Fault
from gt.wire.messages import Run
from gt.wire.principals import OWN_PROCESS, Principal, ProgramIdentity

from .config_resolution import ConfigChange, ConfigResolution, SharedComputation
from .gpu_health import GpuHealth
from .message_state import DONE, MessageState
from .plan_cache import CachedPlan, Entry, PlanCache, UnderwayRun
from .session_marks import SessionRecovery
from .worker_duty import IN_SERVICE, WorkerDuty

if TYPE_CHECKING:
    from .events import Loss
    from .survivors import Survivors

MOST_IN_FLIGHT: Final = 32
"""The most plans and puts of one mesh in flight."""


class ReducedSegment(NamedTuple):
    """The number of a segment without the values that are too large for a mesh, or whose op a worker of it lacks."""

    mesh: int
    number: int


class PickedPlan(NamedTuple):
    """The plan for a run, and whether it is known which of its instructions are checked."""

    run: Run
    cached: CachedPlan
    checked: bool


@dataclass(slots=True)
class MeshMigration:
    """A session on its way to another mesh: the new planner, a mesh of all workers of both meshes (if some are new), and the
    tensors that are still on the old mesh."""

    config: Any
    planner: Planner
    both: Mesh | None
    left: list[int]


class TableSurvey(NamedTuple):
    """What a change of config asks of a session's tensor table: the tensors with values, whether one of them has yet to arrive,
    and the table in which no parameter is bound."""

    live: list[int]
    landing: bool
    unbound: dict[int, Entry]


@dataclass(slots=True, eq=False)
class ClientRecord:
    """One session. `queue` holds the messages that were received and are not over, in order."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    bulk: bytes
    program: ProgramIdentity
    """The program to which it belongs; the sessions of a program share its turns (`dispatcher/jobs/job_scheduler.py`)."""
    principal: Principal = OWN_PROCESS.principal
    """Who runs it."""
    short_of_memory: int = 0
    """The order of its last plan for which there was too little memory."""
    priority: Priority = AUTO
    """What it says of how urgent its work is, or an operator."""
    weight: float = 1.0
    """What it says that its program weighs among those of its principal, or an operator."""
    ordered: frozenset[str] = frozenset()
    """Which of them an operator has ordered ('priority', 'weight'), so that what the program says of them counts no more."""
    paused: bool = False
    """Whether an operator has paused it: nothing that it asks for begins."""
    heard: float = 0.0
    found: tuple[Any, Any] | None = None
    """The result of a job for the message at the head of the queue, with a key that identifies it."""
    own: Any = None
    """The config that the client sent, which overrides the service's."""
    config: Any = None
    """The merged config of both, once a mesh was made from it."""
    resolution: ConfigResolution | None = None
    """What that one asks for, if it is not the service's."""
    survey: SharedComputation[TableSurvey] | None = None
    """A look at all its tensors, for such a message."""
    change: ConfigChange | None = None
    """What was read for the message at the head of the queue, if it changes the config."""
    planner: Planner | None = None
    moving: MeshMigration | None = None
    displaced: bool = False
    """Whether its tensors are on what a lost worker has left of its mesh, where nothing is computed: it makes its mesh anew."""
    undecided: list[Loss] = field(default_factory=list)
    """The workers that it has lost, the first one first, while it waits for its turn to go back or to lose tensors. They are the
    first messages of its queue, in the other order. Nothing is done for it meanwhile."""
    loss: SharedComputation[Survivors] | None = None
    """What is left of its tensors, while that is found out after the loss of a worker."""
    left_behind: set[int] = field(default_factory=set)
    """Workers that it may have left before a put had arrived there, which nobody waits for any more."""
    stays: str = ""
    """Why it could not make its mesh anew when it was told to, the last time."""
    verify: float = 0.0
    """The share of instructions that are recomputed, gathered, and compared."""
    tf32: bool = False
    """Whether GPUs may round the operands of float32 products to TF32."""
    inherited: tuple[Segment, tuple[Entry, ...], dict[int, Entry]] | None = None
    """Of the last run of which some input had no value: the segment, the inputs, and the survivors without a value, by number."""
    picked: PickedPlan | None = None
    """The plan of the run at the head of the queue, if that waits for more than a plan."""
    underway: UnderwayRun | None = None
    """The run at the head of the queue, if some parts of its plan are issued."""
    runs: int = 0
    """The number of runs since `verify` was set; it decides which runs check."""
    warned: set[tuple[str, float]] = field(default_factory=set)
    """Signals, with deadlines, of which the program was warned."""
    fault: Fault | None = None
    cancelled: bool = False
    """Whether its work was cancelled without the client knowing yet: all its messages up to its next fetch are dropped."""
    dropping: int = 0
    """How many messages, the first ones of the queue, were in it when its work was cancelled."""
    segments: dict[int, Segment | Fault] = field(default_factory=dict)
    """The definitions; a fault in place of one that is malformed as a whole."""
    refused: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """Of the definitions with refused instructions, by output number: the entries of the survivors that depend on them, with
    their errors. `segments` has the rest of the definition."""
    reduced: dict[int, ReducedSegment] = field(default_factory=dict)
    """Of the definitions with a value that is too large for a mesh: what is run on that mesh."""
    table: dict[int, Entry] = field(default_factory=dict)
    landing: set[int] = field(default_factory=set)
    """Those of its tensors, put or from a snapshot, that have yet to arrive at a worker."""
    queue: deque[Any] = field(default_factory=deque)
    waiting_bytes: int = 0
    """About how many bytes the messages in the queue take, but for one that came when it was empty (`first`)."""
    first: Any = None
    head: MessageState = DONE
    """The state of the message at the head of the queue, or how the last one ended (`message_state.py`)."""
    plans: PlanCache = field(default_factory=PlanCache)
    roomy: int = 0
    """The number of tensors up to which known plans run without a check of memory."""
    asked_bytes: int = 0
    """The bytes of the values that it has fetched and that workers have yet to send."""
    unread_bytes: int = 0
    """The bytes that were sent to it and that it has not acknowledged, as of its last message, and what it was sent since."""
    arrived: int = 0
    credited: int = 0
    answered: bool = False
    """Whether it was sent a value since its last credits: it goes on without more."""
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    """(position in the client's stream of runs and puts, order) of everything that workers may not have finished."""
    gpipe: Counter[str] = field(default_factory=Counter)
    """How many runs had to use gpipe in place of 1f1b, by reason."""
    made: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    """Why plans were made: the segment was `new` (or its plans had been dropped), or its inputs had other `placements`."""
    improved: int = 0
    hits: int = 0
    account: SessionAccount = field(default_factory=SessionAccount)
    """What it has used. It passes from one incarnation of the session to the next."""
    recovery: SessionRecovery = field(default_factory=SessionRecovery)
    """What is kept so that the session can go back after a loss."""

    @property
    def mesh(self) -> Mesh | None:
        """The session's mesh; None until its first tensor."""
        return self.planner.mesh if self.planner else None

    def is_full(self, more: int) -> bool:
        """Whether so many more tensors are too many for one session."""
        return len(self.table) + more > MAX_TENSORS


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker."""

    identity: bytes
    number: int
    facts: dict[str, Any]
    address: str
    bulk: bytes
    heard: float = 0.0
    principal: Principal = OWN_PROCESS.principal
    """Who runs it."""
    health: GpuHealth = field(default_factory=GpuHealth)
    """The health of its GPU."""
    slowed: float = 1.0
    """How many times as long plans take there as at best, if its host slows it down (`dispatcher/pacing/slowdown.py`)."""
    links: dict[int, LinkProfile] = field(default_factory=dict)
    """The links that it has measured, by the number of the worker at the other end."""
    fresh: deque[tuple[int, int]] = field(default_factory=deque)
    """(order, instructions) of the issued plans that it has yet to compile, also those of sessions that have ended."""
    to_compile: int = 0
    """The sum of these instructions."""
    duty: WorkerDuty = IN_SERVICE
    released: bool = False
    """Whether it was told to end, because it was drained and nothing is left on it."""


@dataclass(slots=True)
class FetchRecord:
    """A fetch in progress: which workers have yet to answer."""

    client: int
    request: int
    spec: Spec
    parts: int
    waiting: set[int]
    boxes: dict[int, list[list[int]]]
    """The box that each sending worker holds; all other workers only report that their copy has a value."""
    silent: int
    """How many of those others have yet to report."""
    nbytes: int
    """The most bytes that the dispatcher passes on for it."""
    principal: str
    """Whose it is."""
    failed: bool = False


@dataclass(slots=True)
class MeshRecord:
    """A mesh that `client` uses: `workers` are its living members, `identities` their connections, `plans` those they know. (One
    that is lost is among them until its session's turn has come; until then the mesh is not used.)

    Issuing costs the same on any number of workers. So does, on average, a worker's report that it is done: the progress of
    all is only examined when the last of them has finished the oldest order in flight.
    """

    client: int
    mesh: Mesh
    speeds: Speeds
    workers: list[WorkerRecord]
    identities: tuple[bytes, ...]
    cards: tuple[int, ...] = ()
    """The numbers of the members' GPUs, in order of rank (`dispatcher/cost/nccl_cards.py`)."""
    fault: Fault | None = None
    plans: set[int] = field(default_factory=set)
    sources: dict[Any, tuple[tuple[bytes, ...], tuple[bytes, ...], dict[int, Any]]] = field(default_factory=dict)
    """A cache: which workers answer a fetch, by spec and layout."""
    pending: deque[int] = field(default_factory=deque)
    """The orders that some member has not finished."""
    done: dict[int, int] = field(default_factory=dict)
    """By worker, the last order that it has finished on this mesh."""
    lagging: int = 0
    """How many members have not finished the first of `pending`."""
    changes: deque[tuple[int, list[int]]] = field(default_factory=lambda: deque(maxlen=MOST_IN_FLIGHT))
    """The last runs on it, among them all in flight: the order, and the tensors that it makes or moves."""

    def __post_init__(self) -> None:
        self.done = dict.fromkeys(self.mesh.members, 0)

    def without(self, worker: WorkerRecord) -> None:
        """Note that a worker is gone, which may have been a member."""
        if worker in self.workers:
            self.workers.remove(worker)
            self.identities = tuple(other.identity for other in self.workers)

    def issued(self, order: int) -> None:
        """Note that `order` was sent to all members."""
        if not self.pending:
            self.lagging = len(self.done)
        self.pending.append(order)

    def finished(self, worker: int, order: int) -> list[int]:
        """Note that a member has finished everything up to `order`. Returns the orders that all members have finished with
        that."""
        before = self.done.get(worker)
        if before is None or not self.pending or order <= before:
            return []
        self.done[worker] = order
        if not before < self.pending[0] <= order:
            return []
        self.lagging -= 1
        if self.lagging:
            return []
        upto, finished = min(self.done.values()), []
        while self.pending and self.pending[0] <= upto:
            finished.append(self.pending.popleft())
        if self.pending:
            self.lagging = sum(last < self.pending[0] for last in self.done.values())
        return finished
