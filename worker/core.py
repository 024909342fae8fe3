"""The worker as a state machine: events in, sends out. It uses no socket, clock, thread or environment variable.

How a message becomes values, in the order to read the code:

1. `WorkerCore.handle`, below, takes each event. What has no order with plans is acted on at once; all else waits in a queue.
2. `message_table.py` says which messages there are, who may send each, and what acts on it.
3. `plan_run.py` does so with `Execute`: it runs a plan to its end, or to a move that has to wait.
4. `program/compiler.py` compiles a plan at its first run, and `execution/block_runner.py` runs it, block by block.
5. `execution/moves.py` sends and receives what lies between two blocks, `execution/tensor_store.py` keeps what is left.

The worker processes the dispatcher's messages in order. A plan runs block by block. At a move, the worker sends its own
pieces at once; if pieces from peers are missing, the plan is suspended and resumes when the last one arrives. Meanwhile
the core accepts only unordered events: pieces, lost peers, the time.

Data that leaves a GPU, for clients or peers, is copied asynchronously while the core continues. As long as it `asks`, the
shell must call it with the time repeatedly.

A failing instruction puts a `Poison` in place of its result, everything that reads poison becomes poison, and a move sends
the fault in place of data. So a plan always runs to its end, takes part in all its transfers, and blocks nobody.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.shared_memory.running_plan import CLIENT, IN_PROGRESS, ORDER, Words
from gt.worker.base.backend import Backend
from gt.worker.base.events import (
    Send,
)
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.device.cuda_ipc import CardMemory
from gt.worker.execution.block_runner import BlockRunner
from gt.worker.execution.deferred_checks import DeferredChecks
from gt.worker.execution.device_failure import DeviceFailed, FailureWatch, WatchedDevice
from gt.worker.execution.done_reports import DoneReports
from gt.worker.execution.execution import Execution, MeshInfo
from gt.worker.execution.marks import Marks
from gt.worker.execution.moves import MAX_OUTGOING_PIECES, WorkerMoves
from gt.worker.execution.plan_state import SUSPENDED, PlanState
from gt.worker.execution.program_cache import ProgramCache
from gt.worker.execution.published_parts import PublishedParts
from gt.worker.execution.tensor_store import TensorStore
from gt.worker.kernels.matmul import int8_loops
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.nccl.communicators import Communicators
from gt.worker.telemetry.recorder import Instruments, WorkerRecording
from gt.worker.transfer.compression import Packer
from gt.worker.transfer.link_probe import LinkProbes
from gt.worker.transfer.peers import PeerMemory, Peers

from .message_table import ORDERED, UNORDERED
from .plan_run import resume

log = logging.getLogger(__name__)

LONG_NANOSECONDS: Final = 1_000_000
"""A plan that has taken longer is reported before the next one begins, if a report is due."""
MAX_LAST_TURNS: Final = 10_000
"""After so many turns a plan whose peers are all gone is stuck."""
PEER_TIMEOUT_SECONDS: Final = 300.0
"""Seconds without a piece that a plan waits for before it goes on without, saying whom it waited for."""


class WorkerCore:
    """The state machine of one worker on one device.

    `turn` is how many bytes of a move are sent before what has arrived is processed; None is all of them. With `links`, the
    links to workers that cannot read its memory are measured; with a `packer`, pieces for them may be compressed. Finished
    work is reported at once, or by the shell when `reports` say so. With `instruments` it can be watched, with a `limiter` its
    memory is limited, with `communicators` GPUs do moves together by NCCL, with a `card` they lend each other memory.
    In `running_words` it tells which plan it is computing (`RunningPlanMemory`). Programs are made in what `long_lived`
    returns (`worker/device/heap.py`).
    """

    def __init__(
        self,
        backend: Backend,
        memory: PeerMemory | None = None,
        *,
        turn: int | None = None,
        peer_timeout: float = PEER_TIMEOUT_SECONDS,
        links: LinkProbes | None = None,
        packer: Packer | None = None,
        reports: DoneReports | None = None,
        instruments: Instruments | None = None,
        limiter: MemoryLimiter | None = None,
        communicators: Communicators | None = None,
        card: CardMemory | None = None,
        running_words: Words | None = None,
        long_lived: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.backend = backend
        self.running_words = running_words if running_words is not None else [0, 0, 0]
        self.watch = (
            FailureWatch(WatchedDevice(backend.name, backend.failure, backend.sync))
            if backend.failure is not None
            else None
        )
        """Remembers what an asynchronous device may have been computing when it fails."""
        self.deferred_checks: DeferredChecks | None = None
        """The checks of kernels on a GPU whose answers are not known yet."""
        self.instruments = instruments
        self.clock = instruments.clock if instruments is not None and backend.staging is None else int
        """Measures plans and puts on a device that computes them at once."""
        self.began = 0
        """When the plan or put that runs began, on that clock."""
        self.spent = 0
        """The nanoseconds that the last one took."""
        self.stops = False
        """Whether `handle` returns between two messages when there is something to send or to report, so that answers do not
        wait for others' plans, and in a plan that has a value to send. Then the shell calls again while it has `stopped`."""
        self.stopped = False
        self.recording: WorkerRecording | None = None
        """Collects events for watchers, while there are any."""
        self.reports = reports or DoneReports()
        self.peers = Peers(memory, links, packer, card)
        self.communicators = communicators
        self.number = -1
        self.meshes: dict[int, MeshInfo] = {}
        self.queue: deque[Any] = deque()
        self.running: Execution | None = None
        self.finished = 0
        self.out: list[Send] = self.peers.out
        self.stored = TensorStore(backend, limiter, self.queue, self.out)
        self.published = PublishedParts(self.stored)
        self.marks = Marks(self.stored)
        self.graphs = None
        if backend.capture is not None and backend.checks is not None:
            self.graphs = CudaGraphs(backend.capture, backend.checks)
            self.marks.in_graphs = self.graphs.ours
        """The CUDA graphs of its programs, on a GPU."""
        if limiter is not None and self.graphs is not None:
            limiter.shares_with(self.graphs)
        self.programs = ProgramCache(backend, self.graphs, long_lived)
        self.executed = 0
        if backend.checks is not None and backend.flags is not None:
            self.deferred_checks = DeferredChecks(backend.checks, backend.flags, self.out)
        self.blocks = BlockRunner(backend, self.stored, self.graphs, self.watch, self.queue, self.out)
        self.moves = WorkerMoves(
            backend, self.peers, self.stored, self.deferred_checks, communicators, turn, peer_timeout
        )

    @property
    def facts(self) -> dict[str, Any]:
        """For this worker's `Hello`: whether it has loops for int8 (`gt.quantize`), and what joint moves need to know
        (`dispatcher/cost/nccl_cards.py`)."""
        communicators, bus = self.communicators, self.backend.bus
        moves = {} if communicators is None or bus is None else {"bus": bus(), "nccl": communicators.nccl.version}
        return {"int8_loops": int8_loops is not None, **moves}

    def announce(self, message: m.Message) -> bool:
        """Append the dispatcher's next message to the queue, so that it is known before its turn comes at the next `handle`.
        Returns False for a message that must be handled at once, because a suspended plan may wait for it."""
        if type(message) in UNORDERED:
            return False
        self.queue.append(message)
        return True

    def handle(self, event: Any, now: float) -> list[Send]:
        """Handle a message of the dispatcher or a worker, a `BulkIn`, or (None) the time. Returns what to send, in order."""
        if event is not None:
            unordered = UNORDERED.get(type(event))
            if unordered is None:
                self.queue.append(event)
            else:
                unordered[1](self, event, now)
        try:
            self._arrivals()
            if self.running is not None:
                resume(self, self.running, now)
            if event is None and self.fuses and not self.queue:
                self.programs.turn()
            self.stopped = False
            while self.queue and self.running is None and self.stored.ready(self.queue[0]):
                if self.stops and (self.out or self.spent > LONG_NANOSECONDS):
                    self.stopped, self.spent = True, 0
                    break
                self._act(self.queue.popleft(), now)
            if self.running is not None and self.running.state is PlanState.ANSWERING:
                self.stopped = True
        except Exception:
            if self.watch is not None:
                self._look_at_device(self.watch)  # one that has failed raises an error of its own, which says why
            raise
        if self.communicators is not None:
            self.communicators.look(now)
            self.communicators.end()
        if self.peers.read or self.peers.card is not None:
            self.peers.give_back(waits=self.running is not None)
        if self.watch is not None:
            try:
                self._turn()
            finally:
                self._look_at_device(self.watch)
        out = [*self.out]
        self.out.clear()
        return out

    def leave(self, now: float) -> list[Send]:
        """Forget everything of a dispatcher that is gone, but for compiled programs. Returns what to send to peers; what is for
        that dispatcher reaches nobody. If a plan still runs afterwards, this core is of no use any more."""
        self.queue.clear()
        out: list[Send] = []
        for worker in list(self.peers.addresses):  # what waits for one of them ends with that
            out += self.handle(m.PeerLost(worker, "its dispatcher is gone"), now)
        turns = MAX_LAST_TURNS
        while self.running is not None and turns:  # it has more to send
            turns -= 1
            out += self.handle(None, now)
        for client in {*self.stored.clients(), *self.marks.restoring, *self.marks.announced}:
            out += self.handle(m.Forget(client), now)
        for plan in list(self.programs.plans):
            self.programs.drop(plan)
        self.meshes.clear()
        self.stored.memory.leave()
        self.marks.leave()
        self.moves.forget(sys.maxsize)
        self._act(m.Record(0, 0), now)
        self.reports.take()
        self.number = self.peers.number = -1
        return out

    def _look_at_device(self, watch: FailureWatch) -> None:
        """Raise `DeviceFailed` if the device has failed, having told the last plan as the one that is being computed."""
        try:
            watch.look()
        except DeviceFailed:
            words = self.running_words
            if not self.backend.sync:
                words[ORDER] = 0  # it may have been an earlier one
            words[IN_PROGRESS] = words[CLIENT] > 0
            raise

    def check(self) -> None:
        """Assert the invariants between events, in terms of plans' states (`execution/plan_state.py`)."""
        running = self.running
        if running is not None:
            in_flight = running.current_move
            assert running.state in SUSPENDED, f"between events a plan is suspended, not {running.state}"
            if running.state is PlanState.WAITING_FOR_MOVE:
                assert in_flight is not None, "a plan that waits for a move has entered it"
                more = any(each.ready for each in running.moves)  # of a later move, at the end of a turn
                assert more or not in_flight.done, "a plan waits for a move only until that is complete"
            elif running.state is PlanState.ANSWERING:
                assert self.stopped, "a plan goes on when its answer has left"
                assert running.at, "and has actions left"
            else:
                assert in_flight is None, "a plan that waits for a check has entered no move"
                assert running.deferred_checks, "a plan waits only for checks that are unknown"
        else:
            state = self.plan_state
            waits = self.stopped or not self.queue or not self.stored.ready(self.queue[0])
            assert waits, "nothing waits behind nothing"
            assert state in (None, PlanState.QUEUED, PlanState.WAITING_FOR_PUT), f"a plan that is {state} has a record"
        assert not self.running_words[IN_PROGRESS], "between events no plan is being computed"
        assert all(order > self.finished for order, _ in self.moves.arrived), "pieces of finished plans are dropped"
        self.programs.check()

    @property
    def plan_state(self) -> PlanState | None:
        """The state of the first plan that is not finished; None if there is none."""
        if self.running is not None:
            return self.running.state
        if self.queue and isinstance(self.queue[0], m.Execute) and not self.stored.ready(self.queue[0]):
            return PlanState.WAITING_FOR_PUT
        return PlanState.QUEUED if any(isinstance(each, m.Execute) for each in self.queue) else None

    @property
    def busy(self) -> bool:
        """Whether there is more to send at once: the next event should not be waited for."""
        running = self.running
        if (
            running is None
            or running.state is not PlanState.WAITING_FOR_MOVE
            or len(self.moves.pieces) >= MAX_OUTGOING_PIECES
        ):
            return False
        return any(in_flight.ready for in_flight in running.moves) or not running.moves[0].waiting

    @property
    def fuses(self) -> bool:
        """Whether hot programs are to be fused yet: the shell must call with the time while nothing else happens."""
        return bool(self.programs.fusing)

    @property
    def asks(self) -> bool:
        """Whether something is on its way from a GPU, which does not notify the host: the shell must call again soon."""
        staging = self.backend.staging
        if staging is None:
            return False
        unsure = self.running is not None and self.running.state is PlanState.WAITING_FOR_CHECK
        waits = bool(self.stored.answers or self.moves.pieces or self.peers.reading)
        return unsure or waits or staging.fetches.under_way or staging.puts.under_way or bool(self.moves.coming)

    def _arrivals(self) -> None:
        """Continue the copies of puts and pieces to the device."""
        staging = self.backend.staging
        if staging is not None and staging.puts.under_way:
            staging.puts.turn()
        if staging is not None and self.moves.coming:
            self.moves.take_what_came(staging)

    def _turn(self) -> None:
        """Send what has arrived from the device."""
        staging = self.backend.staging
        if staging is None:
            return
        if staging.fetches.under_way:
            staging.fetches.turn()
        if self.stored.answers:
            self.stored.turn(self.recording)
        self.moves.send_what_came(staging)
        staging.streams.let_go()

    # messages in order

    def _act(self, message: Any, now: float) -> None:
        ordered = ORDERED.get(type(message))
        if ordered is None:
            raise ProtocolError(f"{type(message).__name__} is nothing that a dispatcher says to a worker")
        ordered[1](self, message, now)
