"""The worker as a state machine: events in, sends out. It uses no socket, clock, thread or environment variable.

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
from enum import Enum
from typing import Any, Final

import numpy as np

from gt.errors import ProtocolError
from gt.sharding.placement import Mesh
from gt.wire import messages as m
from gt.wire.faults import fault_of
from gt.wire.shared_memory.running_plan import CLIENT, IN_PROGRESS, ORDER, Words
from gt.worker.base.backend import Backend
from gt.worker.base.events import (
    BulkIn,
    Forgotten,
    MarkIn,
    MarkPacked,
    Send,
    SnapshotIn,
    ToDispatcher,
)
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.device.cuda_ipc import CardMemory
from gt.worker.execution.block_runner import BlockRunner
from gt.worker.execution.deferred_checks import DeferredChecks
from gt.worker.execution.device_failure import DeviceFailed, FailureWatch, WatchedDevice
from gt.worker.execution.done_reports import DoneReports
from gt.worker.execution.early_answer import answer_point
from gt.worker.execution.execution import Execution, MeshInfo
from gt.worker.execution.marks import Marks
from gt.worker.execution.moves import MAX_OUTGOING_PIECES, WorkerMoves
from gt.worker.execution.plan_state import SUSPENDED, PlanState
from gt.worker.execution.program_cache import ProgramCache, lines_of
from gt.worker.execution.published_parts import PublishedParts
from gt.worker.execution.tensor_store import ABSENT, Poison, TensorStore, missing_tensor, storable
from gt.worker.kernels.matmul import int8_loops
from gt.worker.memory_limit.limiter import MemoryLimiter, SpillCause
from gt.worker.memory_limit.principal_memory import LiveBytesRun, MemoryCharge
from gt.worker.nccl.communicators import Communicators
from gt.worker.program.compiler import Program
from gt.worker.spill.spill_file import SpilledValue
from gt.worker.telemetry.recorder import COMMUNICATION_TIME, RUNTIME_TIME, Instruments, WorkerRecording
from gt.worker.transfer.compression import Packer
from gt.worker.transfer.link_probe import LinkProbes
from gt.worker.transfer.peers import PeerMemory, Peers

from . import snapshot_messages

log = logging.getLogger(__name__)

LONG_NANOSECONDS: Final = 1_000_000
"""A plan that has taken longer is reported before the next one begins, if a report is due."""
MAX_LAST_TURNS: Final = 10_000
"""After so many turns a plan whose peers are all gone is stuck."""
PEER_TIMEOUT_SECONDS: Final = 300.0
"""Seconds without a piece that a plan waits for before it goes on without, saying whom it waited for."""


class Sender(Enum):
    """Who sends a worker something."""

    DISPATCHER = "dispatcher"
    PEER = "peer"
    """Another worker."""
    SHELL = "shell"
    """This worker's own sockets: what has come in chunks."""


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
                self._resume(self.running, now)
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
        self._record(m.Record(0, 0), now)
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

    # messages in no order with plans

    def _piece(self, piece: m.Piece, now: float) -> None:
        self.moves.hear(piece, self.running, self.finished, now)

    def _heard_peer(self, message: m.Read | m.Probe | m.Echo, now: float) -> None:
        self.peers.hear(message, now)

    def _meet(self, message: m.Meet, now: float) -> None:
        for worker, address in zip(message.workers, message.addresses, strict=True):
            self.peers.know(worker, address, now)

    def _peer_lost(self, message: m.PeerLost, _now: float) -> None:
        self.peers.lose(message.worker, message.text)
        if self.communicators is not None:
            touched = [mesh for mesh, info in self.meshes.items() if message.worker in info.mesh.members]
            self.communicators.lose(touched, message.text)

    def _unique_id(self, message: m.UniqueId, _now: float) -> None:
        if self.communicators is not None and message.mesh in self.meshes:
            rank = self.meshes[message.mesh].rank
            self.communicators.hear(message.mesh, message.ranks, message.generation, message.unique_id, rank)

    def _bulk_in(self, event: BulkIn, _now: float) -> None:
        self.stored.receive_put(event, self.recording)

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

    def _store(self, message: m.Store, now: float) -> None:
        self.began = self.clock()
        info = self.meshes[message.mesh]
        self.stored.put(message, info.mesh, info.rank, self.recording)
        self._done(message.order, info, now, small_put=not message.sender)

    def _release(self, message: m.Release, _now: float) -> None:
        self.stored.release(message.client, message.tensors)
        if message.client not in self.stored.tensors:
            self.marks.marked.forget(message.client)

    def _collect(self, message: m.Collect, _now: float) -> None:
        deferred_checks = (
            self.deferred_checks.of((message.client, message.tensor)) if self.deferred_checks is not None else ()
        )
        self.stored.collect(message, self.number, self.recording, deferred_checks)

    def _forget(self, message: m.Forget, _now: float) -> None:
        self.stored.forget(message.client)
        self.published.forget(message.client)
        self.marks.forget(message.client)
        self.out.append(Forgotten(message.client))

    def _survey(self, message: m.Survey, _now: float) -> None:
        self.out.append(ToDispatcher(m.Holdings(message.request, self.stored.survey(message.most))))

    def _define_plan(self, message: m.DefinePlan, _now: float) -> None:
        self.programs.define(message.plan, bytes(message.body))

    def _drop_plan(self, message: m.DropPlan, _now: float) -> None:
        self.programs.drop(message.plan)

    def _drop_mesh(self, message: m.DropMesh, _now: float) -> None:
        self.meshes.pop(message.mesh, None)
        self.stored.memory.drop_mesh(message.mesh)
        if self.communicators is not None:
            self.communicators.drop(message.mesh)

    def _welcome(self, message: m.Welcome, _now: float) -> None:
        self.number = self.peers.number = message.number
        self.finished = max(self.finished, int(message.facts.get("order", 0)))
        self.moves.forget(self.finished)

    def _record(self, message: m.Record, _now: float) -> None:
        self.recording = None
        if message.level and self.instruments is not None:
            self.recording = WorkerRecording(self.instruments, self.number, message.level, message.rate)
        self.moves.recording = self.recording
        if self.stored.limiter is not None:
            self.stored.limiter.recording = self.recording

    def _ping(self, _message: m.Ping, _now: float) -> None:
        """Do nothing: the shell has noted that the dispatcher lives."""

    def _define_mesh(self, message: m.DefineMesh, now: float) -> None:
        axes, sizes, members, weights, cards, *far = message.body
        cut = tuple(map(tuple, weights))
        mesh = Mesh(message.mesh, tuple(axes), tuple(sizes), tuple(members), cut, *map(tuple, far))
        known = tuple(cards) if self.communicators is not None else ()
        self.meshes[message.mesh] = MeshInfo(mesh, mesh.members.index(self.number), known)
        for worker, address in zip(mesh.members, message.addresses, strict=True):
            self.peers.know(worker, address, now)

    def _charge_memory(self, message: m.ChargeMemory, _now: float) -> None:
        charge = MemoryCharge(message.principal, message.live_bytes, message.weight / 1000, message.mesh)
        self.stored.memory.note(message.client, charge)

    # plans

    @np.errstate(all="ignore")
    def _execute(self, message: m.Execute, now: float) -> None:
        self.began = self.clock()
        words = self.running_words
        words[ORDER], words[CLIENT], words[IN_PROGRESS] = message.order, message.client, 1
        try:
            program = self.programs.program(message.plan, self.meshes, self.recording)
        except Exception as error:
            log.exception("a plan could not be compiled; please report this")
            self._pass_over(message, error, now)
        else:
            self._begin(program, message, now)

    def _begin(self, program: Program, message: m.Execute, now: float) -> None:
        if self.watch is not None:
            self.watch.recent.append(program)
        info = self.meshes[program.plan.mesh]
        store = self.stored.tensors.setdefault(message.client, {})
        limiter = self.stored.limiter
        if limiter is not None:
            limiter.cause = SpillCause(message.client, message.plan, message.order)
        fits = limiter is None or self._admitted(program, message, limiter)
        slots: list[Any] = [None] * program.slots
        running = Execution(
            message.order, message.plan, message.client, message.base, message.inputs, program, info, slots
        )
        count = len(message.inputs)
        for slot, tensor in enumerate(message.inputs):
            value = store.get(tensor)
            if value is None:
                value = missing_tensor(tensor, self.number)
            elif limiter is not None and fits and type(value) is SpilledValue:
                value = store[tensor] = self.stored.take_in((message.client, tensor), value)
            slots[slot] = None if value is ABSENT else value
            if type(value) is Poison:
                running.poisoned = True
        value = None  # what dies in the plan dies then, and may be written to
        if self.stored.coming:
            self.stored.meet(message.client, message.inputs)
        if self.deferred_checks is not None:
            for slot, fault in self.deferred_checks.enter(
                message.client, message.inputs, running.deferred_checks, message.dying
            ).items():
                slots[slot] = store[message.inputs[slot]] = Poison(fault)
                running.poisoned = True
        slots[count : count + len(message.scalars)] = message.scalars
        for position in message.dying:
            store.pop(message.inputs[position], None)
        if message.freed:
            self.stored.free(message.client, message.freed)
        self._limit(running, None if fits else limiter)
        self._note_fetch(running, message)
        if self.recording is not None:
            running.recording = self.recording.begin(running)
        running.enter(PlanState.RUNNING)
        self._run(running, now)

    def _note_fetch(self, running: Execution, message: m.Execute) -> None:
        """Note what is asked for with a plan, and where it stops to answer, if its steps are computed at once."""
        if message.fetch:
            running.asked = _asked(message)
            if self.stops and self.backend.staging is None:
                running.answer = answer_point(running.program, message.fetch[1])

    def _limit(self, running: Execution, limiter: MemoryLimiter | None) -> None:
        """Have a plan run step by step whose client's principal might hold too much; and, with a limiter, one that does not fit
        into memory."""
        memory, tensors = self.stored.memory, self.stored.tensors
        if memory.limited and not memory.admits(running.client, running.program.need, tensors):
            running.live_bytes = LiveBytesRun(memory, running.client, running.program, running.slots, tensors)
        if limiter is not None:
            running.low_memory = self.blocks.low_memory_run(running, limiter)

    def _pass_over(self, message: m.Execute, error: Exception, now: float) -> None:
        """Finish a plan that cannot be compiled: its results are poison. It takes part in no move: its peers learn that by
        their time-out, unless it failed there too."""
        plan = self.programs.plan(message.plan)
        kind, text = fault_of(error)
        fault = (kind, f"{text}\n  in compiling a plan of {lines_of(plan)}")
        store = self.stored.tensors.setdefault(message.client, {})
        self.stored.free(message.client, [*(message.inputs[position] for position in message.dying), *message.freed])
        left = [message.base + offset for offset, _ in plan.survivors]
        left += [message.inputs[position] for position, _ in plan.relocated if message.inputs[position] in store]
        store.update(dict.fromkeys(left, Poison(fault)))
        self.out.append(ToDispatcher(m.Poisoned(message.order, message.client, *fault)))
        self.running_words[IN_PROGRESS] = 0
        self.finished = message.order
        self.moves.forget(message.order)
        if message.fetch:
            self._collect(_asked(message), now)
        self._done(message.order, self.meshes[plan.mesh], now)

    def _admitted(self, program: Program, message: m.Execute, limiter: MemoryLimiter) -> bool:
        """Whether there is room for a plan, if necessary with the memory of CUDA graphs."""
        tensors = self.stored.tensors
        while not limiter.admits(program, message.client, message.inputs, tensors, self.queue):
            if self.graphs is None or not self.graphs.give_up():
                return False
        return True

    def _run(self, running: Execution, now: float) -> None:
        """Run blocks and moves until the plan ends or a move has to wait."""
        program, recording = running.program, running.recording
        while True:
            self.blocks.run(running)
            if running.at:
                if self._answers(running):
                    return
                continue
            if self.deferred_checks is not None and self.deferred_checks.checks:
                self.deferred_checks.gather(program, running.order, running.client, running.deferred_checks)
            if recording is not None and recording.sampling:
                recording.block_ends(running)
            if running.block == len(program.moves):
                self._finish(running, now)
                return
            if recording is not None:
                recording.move_begins()
            if not self.moves.start(running, now) or not self.moves.advance(running, now):
                self._suspend(running)
                if recording is not None:
                    recording.switch(RUNTIME_TIME)
                return
            self.moves.complete(running)

    def _answers(self, running: Execution) -> bool:
        """Answer what was asked with a run, if the value is there: it leaves before the plan goes on. Returns whether it does."""
        assert running.answer is not None, "it has stopped for that"
        assert running.asked is not None, "nobody else has answered"
        value = running.answer.value(running.slots)
        if value is None:
            return False
        self.stored.collect(running.asked, self.number, running.recording, value=value)
        running.asked = None
        running.enter(PlanState.ANSWERING)
        self.running = running
        self.running_words[IN_PROGRESS] = 0
        return True

    def _suspend(self, running: Execution) -> None:
        """Wait for the move that a plan has entered, or for the checks before it can enter one."""
        state = PlanState.WAITING_FOR_MOVE if running.moves else PlanState.WAITING_FOR_CHECK
        if running.state is not state:
            running.enter(state)
        self.running = running
        self.running_words[IN_PROGRESS] = 0

    @np.errstate(all="ignore")
    def _resume(self, running: Execution, now: float) -> None:
        """Continue with the move at which a plan is suspended, and after it; or where it has stopped to answer."""
        self.running_words[IN_PROGRESS] = 1
        if running.state is PlanState.ANSWERING:
            self.running = None
            running.enter(PlanState.RUNNING)
            self._run(running, now)
            return
        if self.recording is not None:
            self.recording.switch(COMMUNICATION_TIME)
        if self.moves.start(running, now) and self.moves.advance(running, now):
            self.running = None
            running.enter(PlanState.RUNNING)
            self.moves.complete(running)
            self._run(running, now)
            return
        self._suspend(running)
        if self.recording is not None:
            self.recording.switch(RUNTIME_TIME)

    def _finish(self, running: Execution, now: float) -> None:
        program, slots = running.program, running.slots
        store = self.stored.tensors.setdefault(running.client, {})
        for offset, slot in program.survivors:
            store[running.base + offset] = running.refuted or storable(slots[slot])
        for position, slot in program.relocated:
            if running.inputs[position] in store:
                store[running.inputs[position]] = storable(slots[slot])
                self.marks.marked.changed(running.client, running.inputs[position])
        if self.deferred_checks is not None:
            self._store_checks(running)
        if program.survivors:
            self.stored.origins.note(running.client, running.base, program.signals, store)
        if running.low_memory is not None:
            running.low_memory.end()
        if running.live_bytes is not None:
            running.live_bytes.end()
        running.enter(PlanState.FINISHED)
        self.running = None
        self.running_words[IN_PROGRESS] = 0
        self.finished = running.order
        self.executed += 1
        if running.recording is not None:
            running.recording.finish(running)
        self.moves.forget(running.order)
        if running.asked is not None:
            self._collect(running.asked, now)
        self._done(running.order, running.info, now)

    # deferred checks

    def _store_checks(self, running: Execution) -> None:
        """Pass the unknown checks of a plan on to what survives it, and poison stored values of which one found an error."""
        assert self.deferred_checks is not None, "there are deferred checks"
        if running.deferred_checks:
            program = running.program
            kept_here = [((running.client, running.base + offset), slot) for offset, slot in program.survivors]
            kept_here += [((running.client, running.inputs[at]), slot) for at, slot in program.relocated]
            self.deferred_checks.leave(program, running.deferred_checks, kept_here)
        for (client, tensor), fault in self.deferred_checks.look().items():
            if tensor in self.stored.tensors.get(client, {}):
                self.stored.tensors[client][tensor] = Poison(fault)

    def _done(self, order: int, info: MeshInfo, now: float, *, small_put: bool = False) -> None:
        self.spent, mesh = self.clock() - self.began, info.mesh
        done = self.reports.finished(order, mesh.number, len(mesh.members), now, self.spent, small_put=small_put)
        self.out += map(ToDispatcher, done)


def _asked(message: m.Execute) -> m.Collect:
    """What is fetched of the results of a plan, as the message that would ask for it behind the plan."""
    request, output = message.fetch
    return m.Collect(request, 0, message.client, message.base + output, False, b"")


UNORDERED: Final[dict[type, tuple[Sender, Callable[[WorkerCore, Any, float], None]]]] = {
    m.Piece: (Sender.PEER, WorkerCore._piece),
    m.Read: (Sender.PEER, WorkerCore._heard_peer),
    m.Probe: (Sender.PEER, WorkerCore._heard_peer),
    m.Echo: (Sender.PEER, WorkerCore._heard_peer),
    m.Meet: (Sender.DISPATCHER, WorkerCore._meet),
    m.PeerLost: (Sender.DISPATCHER, WorkerCore._peer_lost),
    m.UniqueId: (Sender.DISPATCHER, WorkerCore._unique_id),
    BulkIn: (Sender.SHELL, WorkerCore._bulk_in),
    SnapshotIn: (Sender.SHELL, snapshot_messages.snapshot_in),
    MarkIn: (Sender.SHELL, snapshot_messages.mark_in),
    MarkPacked: (Sender.SHELL, snapshot_messages.mark_packed),
    m.CommitSnapshot: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.DiscardParts: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.ReadSnapshots: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.ReadPublished: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.RevokePublished: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
}
"""What is handled when it comes, also while a plan is suspended: who may send it, and what handles it."""

ORDERED: Final[dict[type, tuple[Sender, Callable[[WorkerCore, Any, float], None]]]] = {
    m.Welcome: (Sender.DISPATCHER, WorkerCore._welcome),
    m.Ping: (Sender.DISPATCHER, WorkerCore._ping),
    m.Record: (Sender.DISPATCHER, WorkerCore._record),
    m.DefineMesh: (Sender.DISPATCHER, WorkerCore._define_mesh),
    m.DropMesh: (Sender.DISPATCHER, WorkerCore._drop_mesh),
    m.ChargeMemory: (Sender.DISPATCHER, WorkerCore._charge_memory),
    m.DefinePlan: (Sender.DISPATCHER, WorkerCore._define_plan),
    m.DropPlan: (Sender.DISPATCHER, WorkerCore._drop_plan),
    m.Execute: (Sender.DISPATCHER, WorkerCore._execute),
    m.Store: (Sender.DISPATCHER, WorkerCore._store),
    m.Release: (Sender.DISPATCHER, WorkerCore._release),
    m.Collect: (Sender.DISPATCHER, WorkerCore._collect),
    m.Forget: (Sender.DISPATCHER, WorkerCore._forget),
    m.Survey: (Sender.DISPATCHER, WorkerCore._survey),
    m.WritePart: (Sender.DISPATCHER, snapshot_messages.write_part),
    m.LoadPart: (Sender.DISPATCHER, snapshot_messages.load_part),
    m.ShareMark: (Sender.DISPATCHER, snapshot_messages.share_mark),
    m.TakeMark: (Sender.DISPATCHER, snapshot_messages.take_mark),
    m.DropMark: (Sender.DISPATCHER, snapshot_messages.drop_mark),
    m.RestoreMark: (Sender.DISPATCHER, snapshot_messages.restore_mark),
    m.RestoreParts: (Sender.DISPATCHER, snapshot_messages.restore_parts),
    m.PackParts: (Sender.DISPATCHER, snapshot_messages.pack_parts),
}
"""What is handled in its turn, after all plans that came before it: who may send it, and what handles it."""

SENDERS: Final[dict[type, Sender]] = {kind: sender for kind, (sender, _) in (UNORDERED | ORDERED).items()}
