"""The worker as a state machine: events in, sends out. No socket, clock, thread or environment in here.

What the dispatcher says is done in order. A plan runs block by block; at a move it sends its own pieces at once, and when
pieces of others are missing it stops there, remembers where, and goes on when the last of them arrives. Meanwhile only
what is not in order is heard: pieces, lost peers, the time.

What leaves a GPU, for clients and for peers, is on its way from there for a time; the core goes on meanwhile, and while
it `asks` it is to be handed the time again and again.

A failing instruction puts a `Poison` in place of its result; whatever reads poison becomes poison; a move sends the
poison on in place of data. So a plan always runs to its end, takes part in all its transfers, and holds up nobody.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import Any, Final, NamedTuple

import numpy as np

from gt import messages as m
from gt.errors import ProtocolError, VerificationError, WorkerLost
from gt.instruction import unpack_plan
from gt.messages import Fault
from gt.placement import Mesh

from .aside import settle
from .backend import Backend
from .card_memory import CardMemory, Lending
from .careful import Careful
from .doubts import Doubt, Doubts
from .events import BulkIn, Forgotten, Send, ToDispatcher
from .exchange import Exchange, Move, Ready
from .failure import Device, Watch
from .graphs import Graphs, Passage
from .hot import HOT, executor, fused
from .keeping import Cause, Keeping
from .links import Links
from .meeting import Meeting
from .nccl import Communicators
from .packing import Packer
from .peers import Head, Memory, Peers
from .program import Program, Step, compile_plan, describe
from .ranges import Marks, named
from .recording import COMMUNICATION, RUNTIME, Instruments, Recording
from .reports import Reports
from .spill import Spilled
from .staging import Parcel
from .stored import ABSENT, Poison, Stored, kept, missing

PEER_TIMEOUT: Final = 300.0
"""Seconds without a piece that a plan waits for before it goes on without, saying whom it waited for."""


AT_ONCE: Final = (m.PeerLost, m.Meet, m.UniqueId)
"""What the dispatcher says that is in no order with plans."""
MOVE_BITS: Final = 24
"""Of the number of a move among all that are done together; plans have fewer."""
PIECES: Final = 32
"""Pieces that may be on their way from a GPU before others begin."""


@dataclass(slots=True)
class MeshInfo:
    """A mesh that this worker is a member of."""

    mesh: Mesh
    rank: int
    cards: tuple[int, ...] = ()
    """For each of its workers the number of a GPU that takes part in joint moves, or 0; empty where this one cannot."""


@dataclass(slots=True)
class Running:
    """An execution under way: where it is (`block`), the move it stands in, and since when nothing came."""

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    program: Program
    info: MeshInfo
    slots: list[Any]
    block: int = 0
    exchange: Exchange | Meeting | None = None
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


class Leaving(NamedTuple):
    """A piece on its way from the device."""

    head: Head
    parcel: Parcel | Lending
    workers: list[int]


class Core:
    """One worker on one device.

    `turn` is how many bytes of a move are sent before what has arrived is looked at again; None is all of them. With
    `links` those to workers that cannot read its memory are measured; with a `packer` pieces for them may be packed. What
    has been finished is said at once, or by the shell when `reports` say so. With `instruments` it can be watched, with
    `keeping` there is a limit to its memory, with `communicators` GPUs do moves together by NCCL, with a
    `card` they lend each other its memory.
    """

    def __init__(
        self,
        backend: Backend,
        memory: Memory | None = None,
        *,
        turn: int | None = None,
        peer_timeout: float = PEER_TIMEOUT,
        links: Links | None = None,
        packer: Packer | None = None,
        reports: Reports | None = None,
        instruments: Instruments | None = None,
        keeping: Keeping | None = None,
        communicators: Communicators | None = None,
        card: CardMemory | None = None,
    ) -> None:
        self.backend = backend
        self.watch = Watch(Device(backend.name, backend.failure, backend.sync)) if backend.failure is not None else None
        """What is known when the device fails, where that computes by itself."""
        self.doubts: Doubts | None = None
        """What kernels on a GPU found out that nobody has looked at."""
        self.instruments = instruments
        self.recording: Recording | None = None
        """What is told to watchers, while there are any."""
        self.reports = reports or Reports()
        self.peers = Peers(memory, links, packer, card)
        self.communicators = communicators
        self.turn = turn
        self.peer_timeout = peer_timeout
        self.number = -1
        self.meshes: dict[int, MeshInfo] = {}
        self.plans: dict[int, bytes] = {}
        self.programs: dict[int, Program] = {}
        self.queue: deque[Any] = deque()
        self.running: Running | None = None
        self.arrived: dict[tuple[int, int], list[m.Piece]] = {}
        """Pieces of moves to come, by order and move."""
        self.pieces: deque[Leaving] = deque()
        """Pieces on their way from a GPU."""
        self.finished = 0
        self.last: tuple[Program, Move] | None = None
        """The last collective that was finished."""
        self.out: list[Send] = self.peers.out
        self.stored = Stored(backend, keeping, self.queue, self.out)
        self.graphs = None if backend.capture is None else Graphs(backend.capture)
        """The CUDA graphs of its programs, on a GPU."""
        if keeping is not None and self.graphs is not None:
            keeping.shares_with(self.graphs)
        self.executed = 0
        if backend.checks is not None and backend.flags is not None:
            self.doubts = Doubts(backend.checks, backend.flags, self.out)

    @property
    def facts(self) -> dict[str, Any]:
        """What the dispatcher is to know of how this worker takes part in joint moves (`dispatcher/cards.py`)."""
        communicators, bus = self.communicators, self.backend.bus
        return {} if communicators is None or bus is None else {"bus": bus(), "nccl": communicators.nccl.version}

    def announce(self, message: m.Message) -> bool:
        """The dispatcher's next message, to be acted on at the next `handle`: what comes is known before what goes before it
        is done. False when it is to be handled at once, for who waits in a plan waits for that."""
        if isinstance(message, AT_ONCE):
            return False
        self.queue.append(message)
        return True

    def handle(self, event: Any, now: float) -> list[Send]:
        """Act on a message of the dispatcher or a worker, a `BulkIn`, or (None) on the time; what to send, in order."""
        if event is not None and not self._hear(event, now):
            self.queue.append(event)
        try:
            with np.errstate(all="ignore"):
                if self.running is not None:
                    self._resume(self.running, now)
                while self.queue and self.running is None:
                    self._act(self.queue.popleft(), now)
        except Exception:
            if self.watch is not None:
                self.watch.look()  # whoever waits for a device that failed is told by an error of its own
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
                self.watch.look()
        out = [*self.out]
        self.out.clear()
        return out

    def _hear(self, event: Any, now: float) -> bool:
        """Act on what is in no order with plans; False for anything else."""
        if isinstance(event, m.Piece):
            self._piece(event, now)
        elif isinstance(event, m.Read | m.Probe | m.Echo):
            self.peers.hear(event, now)
        elif isinstance(event, m.Meet):
            for worker, address in zip(event.workers, event.addresses, strict=True):
                self.peers.know(worker, address, now)
        elif isinstance(event, m.PeerLost):
            self.peers.lose(event.worker, event.text)
            if self.communicators is not None:
                touched = [mesh for mesh, info in self.meshes.items() if event.worker in info.mesh.members]
                self.communicators.lose(touched, event.text)
        elif isinstance(event, m.UniqueId):
            if self.communicators is not None and event.mesh in self.meshes:
                rank = self.meshes[event.mesh].rank
                self.communicators.hear(event.mesh, event.ranks, event.generation, event.unique_id, rank)
        elif isinstance(event, BulkIn):
            self.stored.land(event, self.recording)
        else:
            return False
        return True

    def check(self) -> None:
        """The invariants between events."""
        exchange = self.running.exchange if self.running is not None else None
        waits = exchange is not None and not exchange.done
        unsure = self.running is not None and exchange is None and bool(self.running.doubts)
        assert self.running is None or waits or unsure, "a plan stands only where it waits"
        assert self.running is not None or not self.queue, "nothing waits behind nothing"
        assert all(order > self.finished for order, _ in self.arrived), "pieces of finished plans are dropped"
        assert set(self.programs) <= set(self.plans)

    @property
    def busy(self) -> bool:
        """Whether there is more to send at once: the next event should not be waited for."""
        exchange = self.running.exchange if self.running is not None else None
        if exchange is None or len(self.pieces) >= PIECES:
            return False
        return bool(exchange.ready) or not exchange.waiting

    @property
    def asks(self) -> bool:
        """Whether something is on its way from a GPU, which does not say by itself when it has come: ask it again soon."""
        staging = self.backend.staging
        if staging is None:
            return False
        unsure = self.running is not None and self.running.exchange is None
        waits = bool(self.stored.answers or self.pieces or self.peers.reading)
        return unsure or waits or staging.fetches.under_way

    def _turn(self) -> None:
        """Send what has come from the device meanwhile."""
        staging = self.backend.staging
        if staging is None:
            return
        if staging.fetches.under_way:
            staging.fetches.turn()
        if self.stored.answers:
            self.stored.turn(self.recording)
        if self.pieces:
            staging.pieces_out.turn()
            while self.pieces and not self.pieces[0].parcel.left:
                head, parcel, workers = self.pieces.popleft()
                there = [worker for worker in workers if worker not in self.peers.lost]
                try:
                    if isinstance(parcel, Lending):
                        self.peers.say(head, there, parcel.block)
                        if self.recording is not None:
                            self.recording.piece_sent(there, parcel.block[-1])
                    else:
                        self._send_piece(head, parcel.array, there)
                except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
                    self.peers.say((*head[:4], [*self.stored.fault(error)]), there)
        staging.streams.let_go()

    def _act(self, message: Any, now: float) -> None:
        if isinstance(message, m.Execute):
            self._execute(message, now)
        elif isinstance(message, m.Store):
            info = self.meshes[message.mesh]
            self.stored.put(message, info.mesh, info.rank, self.recording)
            self._done(message.order, info, now)
        elif isinstance(message, m.Release):
            self.stored.free(message.client, message.tensors)
        elif isinstance(message, m.Collect):
            doubts = self.doubts.of((message.client, message.tensor)) if self.doubts is not None else ()
            self.stored.collect(message, self.number, self.recording, doubts)
        elif isinstance(message, m.Forget):
            self.stored.forget(message.client)
            self.out.append(Forgotten(message.client))
        elif isinstance(message, m.Survey):
            self.out.append(ToDispatcher(m.Holdings(message.request, self.stored.survey(message.most))))
        else:
            self._learn(message, now)

    def _learn(self, message: Any, now: float) -> None:
        """Keep in mind what the dispatcher says for later."""
        if isinstance(message, m.DefinePlan):
            self.plans[message.plan] = bytes(message.body)
        elif isinstance(message, m.DropPlan):
            self.plans.pop(message.plan, None)
            self.programs.pop(message.plan, None)
        elif isinstance(message, m.DefineMesh):
            self._define_mesh(message, now)
        elif isinstance(message, m.DropMesh):
            self.meshes.pop(message.mesh, None)
            if self.communicators is not None:
                self.communicators.drop(message.mesh)
        elif isinstance(message, m.Welcome):
            self.number = self.peers.number = message.number
        elif isinstance(message, m.Record):
            self.recording = None
            if message.level and self.instruments is not None:
                self.recording = Recording(self.instruments, self.number, message.level, message.rate)
            if self.stored.keeping is not None:
                self.stored.keeping.recording = self.recording
        elif not isinstance(message, m.Ping):
            raise ProtocolError(f"{type(message).__name__} is nothing that a dispatcher says to a worker")

    def _define_mesh(self, message: m.DefineMesh, now: float) -> None:
        axes, sizes, members, weights, cards = message.body
        mesh = Mesh(message.mesh, tuple(axes), tuple(sizes), tuple(members), tuple(map(tuple, weights)))
        known = tuple(cards) if self.communicators is not None else ()
        self.meshes[message.mesh] = MeshInfo(mesh, mesh.members.index(self.number), known)
        for worker, address in zip(mesh.members, message.addresses, strict=True):
            self.peers.know(worker, address, now)

    # plans

    def _program(self, number: int) -> Program:
        """The program of a plan, which is compiled when it first runs and fused when it is hot."""
        program = self.programs.get(number)
        if program is None:
            if self.recording is not None:
                self.recording.compiled += 1
            plan = unpack_plan(self.plans[number])
            info = self.meshes[plan.mesh]
            program = self.programs[number] = compile_plan(plan, info.mesh, info.rank, self.backend, info.cards)
            program.runs = HOT - 1 if plan.hot or self.backend.crew is None else 0
        if program.runs < HOT:
            program.runs += 1
            if program.runs == HOT:
                program = fused(program, executor(self.backend))
                if self.backend.marks is not None:
                    program = named(program, Marks(*self.backend.marks))
                elif self.graphs is not None:
                    program = self.graphs.program(program)
                self.programs[number] = program
        return program

    def _execute(self, message: m.Execute, now: float) -> None:
        program = self._program(message.plan)
        if self.watch is not None:
            self.watch.recent.append(program)
        info = self.meshes[program.plan.mesh]
        store = self.stored.tensors.setdefault(message.client, {})
        keeping = self.stored.keeping
        if keeping is not None:
            keeping.cause = Cause(message.client, message.plan, message.order)
        fits = keeping is None or self._admitted(program, message, keeping)
        slots: list[Any] = [None] * program.slots
        count = len(message.inputs)
        poisoned = False
        for slot, tensor in enumerate(message.inputs):
            value = store.get(tensor)
            if value is None:
                value = missing(tensor, self.number)
            elif keeping is not None and fits and type(value) is Spilled:
                value = store[tensor] = self.stored.take_in((message.client, tensor), value)
            slots[slot] = None if value is ABSENT else value
            if type(value) is Poison:
                poisoned = True
        value = None  # what dies in the plan dies then, and may be written to
        if self.stored.coming:
            self.stored.meet(message.client, message.inputs)
        doubts: dict[int, list[Doubt]] = {}
        if self.doubts is not None:
            for slot, fault in self.doubts.enter(message.client, message.inputs, doubts, message.dying).items():
                slots[slot] = store[message.inputs[slot]] = Poison(fault)
                poisoned = True
        slots[count : count + len(message.scalars)] = message.scalars
        for position in message.dying:
            store.pop(message.inputs[position], None)
        if message.freed:
            self.stored.free(message.client, message.freed)
        running = Running(
            message.order, message.plan, message.client, message.base, message.inputs, program, info, slots
        )
        running.poisoned = poisoned
        running.doubts = doubts
        if keeping is not None and not fits:
            running.careful = self._careful(running, keeping)
        if self.recording is not None:
            running.recording = self.recording.begin(running)
        self._run(running, now)

    def _admitted(self, program: Program, message: m.Execute, keeping: Keeping) -> bool:
        """Whether there is room for a plan, perhaps with what graphs had."""
        tensors = self.stored.tensors
        while not keeping.admits(program, message.client, message.inputs, tensors, self.queue):
            if self.graphs is None or not self.graphs.give_up():
                return False
        return True

    def _run(self, running: Running, now: float) -> None:
        """Run blocks and moves until the plan ends or a move has to wait."""
        program, slots, recording = running.program, running.slots, running.recording
        while True:
            if running.poisoned or running.careful is not None:
                self._run_steps(running, 0)
            else:
                actions = iter(program.actions[running.block])
                try:
                    if recording is not None and recording.sampling:
                        recording.timed(actions, slots)
                    if self.backend.sync:
                        for action in actions:
                            action(slots)
                            self.backend.synchronize()
                    for action in actions:
                        action(slots)
                except Exception as error:  # noqa: BLE001 — whatever a kernel raises becomes the fault of its result
                    failed = len(program.actions[running.block]) - length_hint(actions) - 1
                    self._recover(running, failed, error)
            if self.doubts is not None and self.doubts.checks:
                self.doubts.gather(program, running.order, running.client, running.doubts)
            if recording is not None and recording.sampling:
                recording.block_ends(running)
            if running.block == len(program.moves):
                self._finish(running, now)
                return
            if recording is not None:
                recording.move_begins()
            if not self._start(running, now) or not self._advance(running, now):
                self.running = running
                if recording is not None:
                    recording.switch(RUNTIME)
                return
            self._complete(running)

    def _recover(self, running: Running, failed: int, error: Exception) -> None:
        """An action of a block failed: the rest of it step by step, so that of a chain the one that fails is found."""
        settle(running.slots, partial(self._fail, running))
        program = running.program
        at, steps = program.starts[running.block][failed], program.blocks[running.block]
        action = program.actions[running.block][failed]
        if isinstance(action, Passage):
            action, done = action.failing()
            at += done
        once_more = isinstance(error, MemoryError) and self._goes_on_carefully(running, at)
        if not once_more and at < len(steps) and steps[at].action is action:
            self._fail(running, steps[at], error)
            at += 1
        self._run_steps(running, at)

    def _goes_on_carefully(self, running: Running, at: int) -> bool:
        """Memory failed at a step, as its kernel uses more than its result. Whether it can go on from there carefully: there is
        somewhere to put values, and the step's operands are untouched."""
        keeping, slots, blocks = self.stored.keeping, running.slots, running.program.blocks
        if (
            keeping is None
            or at == len(blocks[running.block])
            or any(slots[slot] is None for slot in blocks[running.block][at].tensors)
        ):
            return False
        if self.graphs is not None:
            self.graphs.give_up()
        position = sum(map(len, blocks[: running.block])) + running.block + at
        running.careful = self._careful(running, keeping, position)
        return True

    def _careful(self, running: Running, keeping: Keeping, at: int = 0) -> Careful:
        program, tensors = running.program, self.stored.tensors
        lasting = {slot: (running.client, running.base + offset) for offset, slot in program.survivors}
        return Careful(keeping, program, running.slots, tensors, self.queue, lasting, at)

    def _fail(self, running: Running, step: Step, error: Exception) -> None:
        kind, text = self.stored.fault(error, running.order, running.program, running.slots)
        described = describe(running.program, step.instruction)
        if self.watch is not None:
            self.watch.blame(described)
        fault = (kind, f"{text}\n  in {described}")
        running.slots[step.writes] = Poison(fault)
        running.poisoned = True
        if isinstance(error, VerificationError):
            running.refuted = running.refuted or Poison(fault)
        self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))

    def _run_steps(self, running: Running, start: int) -> None:
        """The rest of a block, step by step: where memory is short, or some slot holds poison: whatever reads it becomes
        poison, everything else is computed."""
        slots, careful = running.slots, running.careful
        for step in running.program.blocks[running.block][start:]:
            poison = next((slots[r] for r in step.sources if type(slots[r]) is Poison), None)
            if poison is not None:
                slots[step.writes] = poison
            else:
                try:
                    slots[step.writes] = _computed(step, slots, careful)
                    if self.backend.sync:
                        self.backend.synchronize()
                except Exception as error:  # noqa: BLE001 — as above
                    self._fail(running, step, error)
            for dead in step.dead:
                slots[dead] = None
            if careful is not None:
                careful.done(step.writes, step.dead)

    def _finish(self, running: Running, now: float) -> None:
        program, slots = running.program, running.slots
        store = self.stored.tensors.setdefault(running.client, {})
        for offset, slot in program.survivors:
            store[running.base + offset] = running.refuted or kept(slots[slot])
        for position, slot in program.rehomed:
            if running.inputs[position] in store:
                store[running.inputs[position]] = kept(slots[slot])
        if self.doubts is not None:
            self._leave_doubts(running)
        if program.survivors:
            self.stored.origins.note(running.client, running.base, program.signals, store)
        if running.careful is not None:
            running.careful.end()
        self.running = None
        self.finished = running.order
        self.executed += 1
        if running.recording is not None:
            running.recording.finish(running)
        for key in [key for key in self.arrived if key[0] <= running.order]:
            for piece in self.arrived.pop(key):
                self.peers.was_read(piece.block)
        self._done(running.order, running.info, now)

    # doubts

    def _settle_running(self, running: Running, move: Move) -> bool:
        """Have what a move is to send sound or poison, for others are to see it; whether that is known yet. What the same group
        does next anyway comes after what it has not finished."""
        doubts = self.doubts
        assert doubts is not None, "who has doubts keeps them"
        group = None
        if move.joint is not None and self.communicators is not None:
            group = self.communicators.group(running.info.mesh.number, move.joint.ranks, move.joint.place)
        faults = doubts.wrong(running.program, running.doubts, move.source, group)
        if faults is None:
            return False
        for slot, fault in faults.items():
            if running.slots[slot] is not None:
                running.slots[slot] = Poison(fault)
                running.poisoned = True
        return True

    def _leave_doubts(self, running: Running) -> None:
        """What survives a plan has doubts; stored values whose doubts have proved true by now are poison."""
        assert self.doubts is not None, "who has doubts keeps them"
        if running.doubts:
            program = running.program
            kept_here = [((running.client, running.base + offset), slot) for offset, slot in program.survivors]
            kept_here += [((running.client, running.inputs[at]), slot) for at, slot in program.rehomed]
            self.doubts.leave(program, running.doubts, kept_here)
        for (client, tensor), fault in self.doubts.look().items():
            if tensor in self.stored.tensors.get(client, {}):
                self.stored.tensors[client][tensor] = Poison(fault)

    def _done(self, order: int, info: MeshInfo, now: float) -> None:
        self.out += map(ToDispatcher, self.reports.finished(order, info.mesh.number, len(info.mesh.members), now))

    # moves

    def _start(self, running: Running, now: float) -> bool:
        """Enter the move that comes next, taking in what has come already; whether that may be yet."""
        move = running.program.moves[running.block]
        if running.doubts and not self._settle_running(running, move):
            return False
        unready = None
        if running.careful is not None:
            try:
                running.careful.make_room((move.source,), move.nbytes, move.instruction)
            except Exception as error:  # noqa: BLE001 — no memory, or no disk
                unready = self._broken(running, move, error)
        held = running.slots[move.source]
        fault = held.fault if type(held) is Poison else unready

        def explain(error: BaseException) -> Fault:
            return self._broken(running, move, error)

        xp = self.backend.xp
        if move.joint is None:
            running.exchange = Exchange(move, held, fault, xp, explain)
        else:
            communicators = self.communicators
            assert communicators is not None, "without them nothing is joint"
            group = communicators.group(running.info.mesh.number, move.joint.ranks, move.joint.place)
            what = partial(self._together, running.program, move, running.info)
            running.exchange = Meeting(
                move,
                held,
                fault,
                xp,
                explain,
                group,
                running.order << MOVE_BITS | move.number,
                self._say,
                communicators.wake,
                what,
            )
        running.since = now
        self._take_arrived(running, running.exchange.step)
        return True

    def _say(self, message: m.Message) -> None:
        self.out.append(ToDispatcher(message))

    def _take_arrived(self, running: Running, step: int) -> None:
        """Take in what has come already."""
        for piece in self.arrived.pop((running.order, step), ()):
            self._take(running, piece)

    def _advance(self, running: Running, now: float) -> bool:
        """Send what is ready, as far as this turn goes, and look who is still to be waited for; whether the move is over."""
        spent = 0
        while True:
            exchange = running.exchange
            assert exchange is not None
            self._give_up(running, exchange, now)
            while exchange.ready:
                if (self.turn is not None and spent >= self.turn) or len(self.pieces) >= PIECES:
                    running.since = now
                    return False
                spent += self._send(running, exchange, exchange.ready.popleft())
                if not exchange.ready:
                    exchange.make_own()
            if self.out and isinstance(exchange, Meeting):
                return False  # before calls are made that wait for others, these hear what was said
            following = exchange.go_on()
            if following is None and not exchange.ready:
                return exchange.done
            if following is not None:
                running.exchange, running.since = following, now
                self._take_arrived(running, following.step)

    def _send(self, running: Running, exchange: Exchange | Meeting, ready: Ready) -> int:
        """One piece to all who need it: those on this machine read one copy of it in shared memory. Its bytes."""
        info, move, fault = running.info, exchange.move, ready.fault
        workers = [worker for t in ready.targets if (worker := info.mesh.members[t]) not in self.peers.lost]
        head = (running.order, exchange.step, ready.number, info.rank, list(fault or ()))
        try:
            if ready.array is None:
                self.peers.say(head, workers)
                return 0
            if workers:
                self._leave(head, ready.array, workers)
        except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
            exchange.send_no_more(self._broken(running, move, error))
            return 0
        return int(ready.array.nbytes)

    def _leave(self, head: Head, array: Any, workers: list[int]) -> None:
        """Have a piece on its way: from a GPU it is lent on the card to those who have mapped that, and to others by the host."""
        lent = self.peers.lend_on_card(array, workers)
        if lent is not None:
            near = [worker for worker in workers if self.peers.on_my_card(worker)]
            self.pieces.append(Leaving(head, lent, near))
            workers = [worker for worker in workers if worker not in near]
        staging = self.backend.staging
        if not workers:
            return
        if staging is None:
            self._send_piece(head, self.backend.to_host(array), workers)
        else:
            self.pieces.append(Leaving(head, staging.pieces_out.send(array), workers))

    def _send_piece(self, head: Head, array: np.ndarray[Any, Any], workers: list[int]) -> None:
        self.peers.send(head, array, workers)
        if self.recording is not None:
            self.recording.piece_sent(workers, array.nbytes)

    def _piece(self, piece: m.Piece, now: float) -> None:
        """A piece of the move that this worker stands in, of one to come, or of one that it has given up."""
        running = self.running
        if piece.order <= self.finished:
            self.peers.was_read(piece.block)
            return
        piece = self.peers.look(piece)
        step = running.exchange.step if running is not None and running.exchange is not None else None
        if running is not None and step is not None and (piece.order, piece.step) == (running.order, step):
            running.since = now
            self._take(running, piece)
        else:
            self.arrived.setdefault((piece.order, piece.step), []).append(piece)

    def _take(self, running: Running, piece: m.Piece) -> None:
        """Hand a piece to the move that waits for it."""
        exchange = running.exchange
        assert exchange is not None
        source = piece.source
        if piece.fault:
            exchange.fail(source, (piece.fault[0], piece.fault[-1]))
            return
        if isinstance(exchange, Meeting):
            exchange.hear(source, piece.part)
            return
        shape = exchange.shape_of(source, piece.part)
        if shape is None:
            self.peers.was_read(piece.block)
            return
        try:
            dtype = exchange.move.spec.dtype
            array = self.peers.on_card(piece, shape, dtype.numpy)
            if array is None:
                data = self.peers.bytes_of(piece, math.prod(shape) * dtype.itemsize)
                there = np.frombuffer(data, dtype.numpy).reshape(shape)
                staging = self.backend.staging
                array = self.backend.from_host(there) if staging is None else staging.pieces_in.bring_now(there)
            exchange.arrive(source, piece.part, array, piece.block)
            if self.recording is not None:
                self.recording.piece_received(array.nbytes)
        except Exception as error:  # noqa: BLE001 — a piece of the wrong size, or memory that is not there
            self.peers.was_read(piece.block)
            exchange.fail(source, self._broken(running, exchange.move, error))
        while exchange.read:
            self.peers.was_read(exchange.read.pop())

    def _give_up(self, running: Running, exchange: Exchange | Meeting, now: float) -> None:
        """Stop waiting for ranks that are lost, and for all when nothing has come for too long: their pieces are faults."""
        if not exchange.waiting:
            return
        members = running.info.mesh.members
        missing = sorted({source for source, _ in exchange.waiting})
        if now - running.since > self.peer_timeout:
            text = self._overdue(running, exchange, [members[rank] for rank in missing])
            for rank in missing:
                exchange.fail(rank, ("WorkerLost", text))
        elif self.peers.lost:
            for rank in missing:
                if members[rank] in self.peers.lost:
                    exchange.fail(rank, ("WorkerLost", self.peers.lost[members[rank]]))

    def _overdue(self, running: Running, exchange: Exchange | Meeting, workers: list[int]) -> str:
        """Whom a plan waited for in vain, in which collective, for how much, and what was well before."""
        move = exchange.move
        who = f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"
        nbytes, whole = move.expected(exchange.waiting), move.expected(move.awaited)
        last = f"the last that was finished is {_named(*self.last)}" if self.last else "none was finished before"
        return (
            f"waited {self.peer_timeout:g} s for {who} in the {move.collective} in which {nbytes:,} of {whole:,} bytes "
            f"did not come: {describe(running.program, move.instruction)}; {last}. If the peers are only slow, "
            "set GT_PEER_TIMEOUT to more seconds where the workers are started"
        )

    def _together(self, program: Program, move: Move, info: MeshInfo) -> str:
        """What a move waits for that NCCL does not finish."""
        assert move.joint is not None, "it was joint"
        others = [info.mesh.members[rank] for rank in move.joint.ranks if rank != info.rank]
        who = f"worker{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        last = f"the last that was finished is {_named(*self.last)}" if self.last else "none was finished before"
        return (
            f"NCCL to finish the {move.collective} with {who}, {sum(move.joint.received.values()):,} bytes: "
            f"{describe(program, move.instruction)}; {last}"
        )

    def _resume(self, running: Running, now: float) -> None:
        if self.recording is not None:
            self.recording.switch(COMMUNICATION)
        if (running.exchange is not None or self._start(running, now)) and self._advance(running, now):
            self.running = None
            self._complete(running)
            self._run(running, now)
        elif self.recording is not None:
            self.recording.switch(RUNTIME)

    def _complete(self, running: Running) -> None:
        """Leave a move with what it brought; step on to the next block."""
        exchange, slots = running.exchange, running.slots
        assert exchange is not None
        move = exchange.move
        fault = exchange.fault
        if fault is None:
            try:
                slots[move.target] = exchange.result()
                if isinstance(exchange, Meeting):
                    self._unfinished(running, exchange)
                self.last = (running.program, move)
            except Exception as error:  # noqa: BLE001 — out of memory
                fault = self._broken(running, move, error)
        if fault is not None:
            slots[move.target] = Poison(fault)
            running.poisoned = True
        for dead in move.dead:
            slots[dead] = None
        if running.careful is not None:
            running.careful.done(move.target, move.dead)
        running.exchange = None
        running.block += 1
        if self.recording is not None:
            self.recording.move_ends(running, move)

    def _unfinished(self, running: Running, meeting: Meeting) -> None:
        """Calls were made: whether they come to their end is a doubt of the result; without doubts it is waited for."""
        finish, move = meeting.finish, meeting.move
        assert finish is not None, "calls were made"

        def explain() -> Fault:
            return self._broken(running, move, WorkerLost(finish.reason))

        if self.doubts is not None:
            self.doubts.expect(finish, explain, move.target, running.doubts)
        elif finish.all()[0]:
            raise WorkerLost(finish.reason)

    def _broken(self, running: Running, move: Move, error: BaseException) -> Fault:
        """An error in a move, as it is reported and passed on."""
        kind, text = self.stored.fault(error, running.order, running.program, running.slots)
        fault = (kind, f"{text}\n  in {describe(running.program, move.instruction)}")
        self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))
        return fault


def _computed(step: Step, slots: list[Any], careful: Careful | None) -> Any:
    """The result of a step. Where memory is short, its operands are there first, and everything else goes if the kernel itself
    needs the room."""
    if careful is None:
        return step.kernel(*[slots[r] for r in step.reads])
    careful.make_ready(step)
    try:
        return step.kernel(*[slots[r] for r in step.reads])
    except MemoryError:
        if not careful.alone(step):
            raise
    return step.kernel(*[slots[r] for r in step.reads])


def _named(program: Program, move: Move) -> str:
    """A collective, as a time-out names the last one that was well."""
    return f"the {move.collective or 'move'} of {move.spec} at {program.plan.tags[move.instruction.tag].site}"
