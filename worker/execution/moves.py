"""A worker's part in moves: entering one, sending and receiving pieces, giving up on missing peers, and leaving it.

The core says when to act; this module says what a plan that waits in a move does. Pieces of later moves wait here, and so do
pieces on their way to or from a GPU. No socket, clock or thread is used here.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from gt.errors import WorkerLost
from gt.wire import messages as m
from gt.wire.faults import Fault
from gt.worker.base.backend import Backend
from gt.worker.base.events import ToDispatcher
from gt.worker.device.async_copies import DeviceToHostCopy, HostToDeviceCopy, Staging
from gt.worker.device.cuda_ipc import GpuLoan
from gt.worker.nccl.communicators import Communicators
from gt.worker.program.compiler import Program, describe
from gt.worker.telemetry.recorder import WorkerRecording
from gt.worker.transfer.move import Move, MoveInFlight, ReadyPiece
from gt.worker.transfer.peers import Peers, PieceHeader
from gt.worker.transfer.rendezvous import Rendezvous

from .deferred_checks import DeferredChecks
from .execution import Execution, MeshInfo
from .tensor_store import Poison, TensorStore

MOVE_BITS: Final = 24
"""A joint move is numbered by its plan's order and, in this many bits, its number in the plan."""
MAX_OUTGOING_PIECES: Final = 32
"""How many pieces may be on their way from a GPU before further ones begin."""


class OutgoingPiece(NamedTuple):
    """A piece on its way from the device to the workers that need it."""

    head: PieceHeader
    outgoing: DeviceToHostCopy | GpuLoan
    workers: list[int]


class IncomingPiece(NamedTuple):
    """A piece that waits for room in pinned memory on its way to the device."""

    in_flight: MoveInFlight
    source: int
    part: int
    array: Any
    incoming: HostToDeviceCopy
    block: list[int]


class WorkerMoves:
    """The moves of one worker. After `turn` bytes of one were sent, arrivals are processed (None: all is sent first).
    `patience` is the number of seconds without any piece after which peers are given up."""

    def __init__(
        self,
        backend: Backend,
        peers: Peers,
        stored: TensorStore,
        deferred_checks: DeferredChecks | None,
        communicators: Communicators | None,
        turn: int | None,
        patience: float,
    ) -> None:
        self.backend = backend
        self.peers = peers
        self.stored = stored
        self.deferred_checks = deferred_checks
        self.communicators = communicators
        self.turn = turn
        self.patience = patience
        self.out = peers.out
        self.recording: WorkerRecording | None = None
        """The recorder of events for watchers, if there are any."""
        self.arrived: dict[tuple[int, int], list[m.Piece]] = {}
        """Pieces of later moves, by order and move."""
        self.pieces: deque[OutgoingPiece] = deque()
        """Pieces on their way from a GPU."""
        self.coming: deque[IncomingPiece] = deque()
        """Pieces on their way to a GPU whose copies have not all been started."""
        self.last: tuple[Program, Move] | None = None
        """The last collective that was completed."""

    # from the beginning of a move to its end

    def start(self, running: Execution, now: float) -> bool:
        """Enter the next move, and begin those after it that can begin now. Returns whether it was entered."""
        program, at = running.program, running.block
        last = at + 1 if running.low_memory is not None else program.begun[at]
        while at + len(running.moves) < last:
            move = program.moves[at + len(running.moves)]
            if running.deferred_checks and not self._settled(running, move):
                break
            running.since = now
            self._begin(running, move)
        return bool(running.moves)

    def _begin(self, running: Execution, move: Move) -> None:
        """Enter a move, with the pieces that have already come."""
        unready = None
        if running.low_memory is not None:
            try:
                running.low_memory.make_room((move.source,), move.nbytes, move.instruction)
            except Exception as error:  # noqa: BLE001 — no memory, or no disk
                unready = self._broken(running, move, error)
        held = running.slots[move.source]
        fault = held.fault if type(held) is Poison else unready

        def explain(error: BaseException) -> Fault:
            return self._broken(running, move, error)

        xp = self.backend.xp
        in_flight: MoveInFlight | Rendezvous
        if move.joint is None:
            in_flight = MoveInFlight(move, held, fault, xp, explain)
        else:
            communicators = self.communicators
            assert communicators is not None, "without them nothing is joint"
            group = communicators.group(running.info.mesh.number, move.joint.ranks, move.joint.place)
            what = partial(self._together, running.program, move, running.info)
            in_flight = Rendezvous(
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
        running.moves.append(in_flight)
        self._take_arrived(running, in_flight)

    def _say(self, message: m.Message) -> None:
        self.out.append(ToDispatcher(message))

    def _take_arrived(self, running: Execution, in_flight: MoveInFlight | Rendezvous) -> None:
        """Take the pieces that have already come."""
        for piece in self.arrived.pop((running.order, in_flight.step), ()):
            self._take(running, in_flight, piece)

    def advance(self, running: Execution, now: float) -> bool:
        """Send what is ready, as far as this turn allows, and check which peers are missing. Returns whether the move is
        complete."""
        spent = 0
        while True:
            for in_flight in running.moves:
                self._give_up(running, in_flight, now)
                while in_flight.ready:
                    if (self.turn is not None and spent >= self.turn) or len(self.pieces) >= MAX_OUTGOING_PIECES:
                        running.since = now
                        return False
                    spent += self._send(running, in_flight, in_flight.ready.popleft())
                    if not in_flight.ready:
                        in_flight.make_own()
            first = running.moves[0]
            if self.out and isinstance(first, Rendezvous):
                return False  # before calls are made that wait for others, these hear what was said
            following = first.go_on()
            if following is None and not first.ready:
                return first.done
            if following is not None:
                running.moves[0], running.since = following, now
                self._take_arrived(running, following)

    def _send(self, running: Execution, in_flight: MoveInFlight | Rendezvous, ready: ReadyPiece) -> int:
        """Send a piece to all ranks that need it; those on this machine read one copy in shared memory. Returns its bytes."""
        info, move, fault = running.info, in_flight.move, ready.fault
        workers = [worker for t in ready.targets if (worker := info.mesh.members[t]) not in self.peers.lost]
        head = (running.order, in_flight.step, ready.number, info.rank, list(fault or ()))
        try:
            if ready.array is None:
                self.peers.say(head, workers)
                return 0
            if workers:
                self._leave(head, ready.array, workers)
                in_flight.sent += ready.array.nbytes * len(workers)
        except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
            in_flight.send_no_more(self._broken(running, move, error))
            return 0
        return int(ready.array.nbytes)

    def _leave(self, head: PieceHeader, array: Any, workers: list[int]) -> None:
        """Start sending a piece from a GPU: it is lent on the card to workers that have mapped the card's memory, and goes
        through the host to others."""
        lent = self.peers.lend_on_card(array, workers)
        if lent is not None:
            near = [worker for worker in workers if self.peers.on_my_card(worker)]
            self.pieces.append(OutgoingPiece(head, lent, near))
            workers = [worker for worker in workers if worker not in near]
        staging = self.backend.staging
        if not workers:
            return
        if staging is None:
            self._send_piece(head, self.backend.to_host(array), workers)
        else:
            self.pieces.append(OutgoingPiece(head, staging.pieces_out.send(array), workers))

    def send_what_came(self, staging: Staging) -> None:
        """Send the pieces that have arrived from the device, in their order."""
        if not self.pieces:
            return
        staging.pieces_out.turn()
        while self.pieces and not self.pieces[0].outgoing.left:
            head, outgoing, workers = self.pieces.popleft()
            there = [worker for worker in workers if worker not in self.peers.lost]
            try:
                if isinstance(outgoing, GpuLoan):
                    self.peers.say(head, there, outgoing.block)
                    if self.recording is not None:
                        self.recording.piece_sent(there, outgoing.block[-1])
                else:
                    self._send_piece(head, outgoing.array, there)
            except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
                self.peers.say((*head[:4], [*self.stored.fault(error)]), there)

    def forget(self, finished: int) -> None:
        """Drop waiting pieces of plans up to this order, which have ended."""
        for key in [key for key in self.arrived if key[0] <= finished]:
            for piece in self.arrived.pop(key):
                self.peers.was_read(piece.block)

    def _send_piece(self, head: PieceHeader, array: np.ndarray[Any, Any], workers: list[int]) -> None:
        self.peers.send(head, array, workers)
        if self.recording is not None:
            self.recording.piece_sent(workers, array.nbytes)

    def hear(self, piece: m.Piece, running: Execution | None, finished: int, now: float) -> None:
        """Take a piece of the move in which the plan stands, of a later one, or of one that was given up (a plan up to
        `finished`)."""
        if piece.order <= finished:
            self.peers.was_read(piece.block)
            return
        piece = self.peers.look(piece)
        if running is not None and piece.order == running.order:
            for in_flight in running.moves:
                if in_flight.step == piece.step:
                    running.since = now
                    self._take(running, in_flight, piece)
                    return
        self.arrived.setdefault((piece.order, piece.step), []).append(piece)

    def _take(self, running: Execution, in_flight: MoveInFlight | Rendezvous, piece: m.Piece) -> None:
        """Give a piece to the move that waits for it."""
        source = piece.source
        if piece.fault:
            in_flight.fail(source, (piece.fault[0], piece.fault[-1]))
            return
        if isinstance(in_flight, Rendezvous):
            in_flight.hear(source, piece.part)
            return
        shape = in_flight.shape_of(source, piece.part)
        if shape is None:
            self.peers.was_read(piece.block)
            return
        try:
            dtype = in_flight.move.spec.dtype
            array = self.peers.on_card(piece, shape, dtype.numpy)
            if array is None:
                data = self.peers.bytes_of(piece, math.prod(shape) * dtype.itemsize)
                there = np.frombuffer(data, dtype.numpy).reshape(shape)
                staging = self.backend.staging
                if staging is None:
                    array = self.backend.from_host(there)
                else:
                    array, incoming = staging.pieces_in.bring(there)
                    if incoming is not None:
                        self.coming.append(IncomingPiece(in_flight, source, piece.part, array, incoming, piece.block))
                        self.take_what_came(staging)
                        return
            in_flight.arrive(source, piece.part, array, piece.block)
            in_flight.received += array.nbytes
        except Exception as error:  # noqa: BLE001 — a piece of the wrong size, or memory that is not there
            self.peers.was_read(piece.block)
            in_flight.fail(source, self._broken(running, in_flight.move, error))
        while in_flight.read:
            self.peers.was_read(in_flight.read.pop())

    def take_what_came(self, staging: Staging) -> None:
        """Deliver, in their order, the pieces whose copies to the device have all been started."""
        staging.pieces_in.turn()
        while self.coming and (event := self.coming[0].incoming.event) is not None:
            in_flight, source, part, array, _, block = self.coming.popleft()
            if in_flight.shape_of(source, part) is None:  # it was given up meanwhile
                self.peers.was_read(block)
                continue
            staging.streams.compute.wait_event(event)
            in_flight.arrive(source, part, array, block)
            in_flight.received += array.nbytes
            while in_flight.read:
                self.peers.was_read(in_flight.read.pop())

    def _give_up(self, running: Execution, in_flight: MoveInFlight | Rendezvous, now: float) -> None:
        """Stop waiting for lost ranks, and for all ranks if nothing has come for too long: their pieces become faults."""
        if not in_flight.waiting:
            return
        members = running.info.mesh.members
        missing = sorted({source for source, _ in in_flight.waiting})
        if now - running.since > self.patience:
            text = self._overdue(running, in_flight, [members[rank] for rank in missing])
            for rank in missing:
                in_flight.fail(rank, ("WorkerLost", text))
        elif self.peers.lost:
            for rank in missing:
                if members[rank] in self.peers.lost:
                    in_flight.fail(rank, ("WorkerLost", self.peers.lost[members[rank]]))

    def _overdue(self, running: Execution, in_flight: MoveInFlight | Rendezvous, workers: list[int]) -> str:
        """The error of a time-out: the missing ranks, the collective, how much they owe, and the last collective that worked."""
        move = in_flight.move
        who = f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"
        nbytes, whole = move.expected(in_flight.waiting), move.expected(move.awaited)
        last = f"the last that was finished is {_named(*self.last)}" if self.last else "none was finished before"
        return (
            f"waited {self.patience:g} s for {who} in the {move.collective} in which {nbytes:,} of {whole:,} bytes "
            f"did not come: {describe(running.program, move.instruction)}; {last}. If the peers are only slow, "
            "set GT_PEER_TIMEOUT to more seconds where the workers are started"
        )

    def _together(self, program: Program, move: Move, info: MeshInfo) -> str:
        """What a joint move waits for besides NCCL."""
        assert move.joint is not None, "it was joint"
        others = [info.mesh.members[rank] for rank in move.joint.ranks if rank != info.rank]
        who = f"worker{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        last = f"the last that was finished is {_named(*self.last)}" if self.last else "none was finished before"
        return (
            f"NCCL to finish the {move.collective} with {who}, {sum(move.joint.received.values()):,} bytes: "
            f"{describe(program, move.instruction)}; {last}"
        )

    def complete(self, running: Execution) -> None:
        """Leave a move with its result, and go on to the next block."""
        in_flight, slots = running.moves.popleft(), running.slots
        move = in_flight.move
        fault = in_flight.fault
        if fault is None:
            try:
                slots[move.target] = in_flight.result()
                if isinstance(in_flight, Rendezvous):
                    self._unfinished(running, in_flight)
                self.last = (running.program, move)
            except Exception as error:  # noqa: BLE001 — out of memory
                fault = self._broken(running, move, error)
        if fault is not None:
            slots[move.target] = Poison(fault)
            running.poisoned = True
        for dead in move.dead:
            slots[dead] = None
        if running.low_memory is not None:
            running.low_memory.done(move.target, move.dead)
        running.block += 1
        if self.recording is not None:
            self.recording.move_ends(running, move, in_flight.sent, in_flight.received)

    def _unfinished(self, running: Execution, rendezvous: Rendezvous) -> None:
        """Add a deferred check of the result of a joint move: that its calls complete. Without deferred checks, wait for that."""
        finish, move = rendezvous.finish, rendezvous.move
        assert finish is not None, "calls were made"

        def explain(_: int) -> Fault:
            return self._broken(running, move, WorkerLost(finish.reason))

        if self.deferred_checks is not None:
            self.deferred_checks.expect(finish, explain, move.target, running.deferred_checks)
        elif finish.all()[0]:
            raise WorkerLost(finish.reason)

    def _broken(self, running: Execution, move: Move, error: BaseException) -> Fault:
        """An error in a move, as it is reported and passed on."""
        kind, text = self.stored.fault(error, running.order, running.program, running.slots)
        fault = (kind, f"{text}\n  in {describe(running.program, move.instruction)}")
        self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))
        return fault

    # deferred checks

    def _settled(self, running: Execution, move: Move) -> bool:
        """Make sure that what a move sends is known to be sound, or poison, because others will see it. Returns whether that
        is known yet. Later calls of the same group follow its unfinished ones anyway."""
        deferred_checks = self.deferred_checks
        assert deferred_checks is not None, "there are deferred checks"
        group = None
        if move.joint is not None and self.communicators is not None:
            group = self.communicators.group(running.info.mesh.number, move.joint.ranks, move.joint.place)
        faults = deferred_checks.wrong(running.program, running.deferred_checks, move.source, group)
        if faults is None:
            return False
        for slot, fault in faults.items():
            if running.slots[slot] is not None:
                running.slots[slot] = Poison(fault)
                running.poisoned = True
        return True


def _named(program: Program, move: Move) -> str:
    """A collective as a time-out names the last one that worked."""
    return f"the {move.collective or 'move'} of {move.spec} at {program.plan.tags[move.instruction.tag].site}"
