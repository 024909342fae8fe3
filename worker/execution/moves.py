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
from gt.wire.messages import Fault
from gt.worker.base.backend import Backend
from gt.worker.base.events import ToDispatcher
from gt.worker.device.async_copies import Landing, Parcel, Staging
from gt.worker.device.cuda_ipc import Lending
from gt.worker.nccl.communicators import Communicators
from gt.worker.program.compiler import Program, describe
from gt.worker.telemetry.recorder import Recording
from gt.worker.transfer.move import Exchange, Move, Ready
from gt.worker.transfer.peers import Head, Peers
from gt.worker.transfer.rendezvous import Meeting

from .deferred_checks import Doubts
from .execution import MeshInfo, Running
from .tensor_store import Poison, Stored

MOVE_BITS: Final = 24
"""A joint move is numbered by its plan's order and, in this many bits, its number in the plan."""
PIECES: Final = 32
"""How many pieces may be on their way from a GPU before further ones begin."""


class Leaving(NamedTuple):
    """A piece on its way from the device."""

    head: Head
    parcel: Parcel | Lending
    workers: list[int]


class Coming(NamedTuple):
    """A piece that waits for room in pinned memory on its way to the device."""

    exchange: Exchange
    source: int
    part: int
    array: Any
    landing: Landing
    block: list[int]


class Moving:
    """The moves of one worker. After `turn` bytes of one were sent, arrivals are processed (None: all is sent first).
    `patience` is the number of seconds without any piece after which peers are given up."""

    def __init__(
        self,
        backend: Backend,
        peers: Peers,
        stored: Stored,
        doubts: Doubts | None,
        communicators: Communicators | None,
        turn: int | None,
        patience: float,
    ) -> None:
        self.backend = backend
        self.peers = peers
        self.stored = stored
        self.doubts = doubts
        self.communicators = communicators
        self.turn = turn
        self.patience = patience
        self.out = peers.out
        self.recording: Recording | None = None
        """The recorder of events for watchers, if there are any."""
        self.arrived: dict[tuple[int, int], list[m.Piece]] = {}
        """Pieces of later moves, by order and move."""
        self.pieces: deque[Leaving] = deque()
        """Pieces on their way from a GPU."""
        self.coming: deque[Coming] = deque()
        """Pieces on their way to a GPU whose copies have not all been started."""
        self.last: tuple[Program, Move] | None = None
        """The last collective that was completed."""

    # the course of a move

    def start(self, running: Running, now: float) -> bool:
        """Enter the next move, and begin those after it that can begin now. Returns whether it was entered."""
        program, at = running.program, running.block
        last = at + 1 if running.careful is not None else program.begun[at]
        while at + len(running.moves) < last:
            move = program.moves[at + len(running.moves)]
            if running.doubts and not self._settled(running, move):
                break
            running.since = now
            self._begin(running, move)
        return bool(running.moves)

    def _begin(self, running: Running, move: Move) -> None:
        """Enter a move, with the pieces that have already come."""
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
        exchange: Exchange | Meeting
        if move.joint is None:
            exchange = Exchange(move, held, fault, xp, explain)
        else:
            communicators = self.communicators
            assert communicators is not None, "without them nothing is joint"
            group = communicators.group(running.info.mesh.number, move.joint.ranks, move.joint.place)
            what = partial(self._together, running.program, move, running.info)
            exchange = Meeting(
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
        running.moves.append(exchange)
        self._take_arrived(running, exchange)

    def _say(self, message: m.Message) -> None:
        self.out.append(ToDispatcher(message))

    def _take_arrived(self, running: Running, exchange: Exchange | Meeting) -> None:
        """Take the pieces that have already come."""
        for piece in self.arrived.pop((running.order, exchange.step), ()):
            self._take(running, exchange, piece)

    def advance(self, running: Running, now: float) -> bool:
        """Send what is ready, as far as this turn allows, and check which peers are missing. Returns whether the move is
        complete."""
        spent = 0
        while True:
            for exchange in running.moves:
                self._give_up(running, exchange, now)
                while exchange.ready:
                    if (self.turn is not None and spent >= self.turn) or len(self.pieces) >= PIECES:
                        running.since = now
                        return False
                    spent += self._send(running, exchange, exchange.ready.popleft())
                    if not exchange.ready:
                        exchange.make_own()
            first = running.moves[0]
            if self.out and isinstance(first, Meeting):
                return False  # before calls are made that wait for others, these hear what was said
            following = first.go_on()
            if following is None and not first.ready:
                return first.done
            if following is not None:
                running.moves[0], running.since = following, now
                self._take_arrived(running, following)

    def _send(self, running: Running, exchange: Exchange | Meeting, ready: Ready) -> int:
        """Send a piece to all ranks that need it; those on this machine read one copy in shared memory. Returns its bytes."""
        info, move, fault = running.info, exchange.move, ready.fault
        workers = [worker for t in ready.targets if (worker := info.mesh.members[t]) not in self.peers.lost]
        head = (running.order, exchange.step, ready.number, info.rank, list(fault or ()))
        try:
            if ready.array is None:
                self.peers.say(head, workers)
                return 0
            if workers:
                self._leave(head, ready.array, workers)
                exchange.sent += ready.array.nbytes * len(workers)
        except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
            exchange.send_no_more(self._broken(running, move, error))
            return 0
        return int(ready.array.nbytes)

    def _leave(self, head: Head, array: Any, workers: list[int]) -> None:
        """Start sending a piece from a GPU: it is lent on the card to workers that have mapped the card's memory, and goes
        through the host to others."""
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

    def send_what_came(self, staging: Staging) -> None:
        """Send the pieces that have arrived from the device, in their order."""
        if not self.pieces:
            return
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

    def forget(self, finished: int) -> None:
        """Drop waiting pieces of plans up to this order, which have ended."""
        for key in [key for key in self.arrived if key[0] <= finished]:
            for piece in self.arrived.pop(key):
                self.peers.was_read(piece.block)

    def _send_piece(self, head: Head, array: np.ndarray[Any, Any], workers: list[int]) -> None:
        self.peers.send(head, array, workers)
        if self.recording is not None:
            self.recording.piece_sent(workers, array.nbytes)

    def hear(self, piece: m.Piece, running: Running | None, finished: int, now: float) -> None:
        """Take a piece of the move in which the plan stands, of a later one, or of one that was given up (a plan up to
        `finished`)."""
        if piece.order <= finished:
            self.peers.was_read(piece.block)
            return
        piece = self.peers.look(piece)
        if running is not None and piece.order == running.order:
            for exchange in running.moves:
                if exchange.step == piece.step:
                    running.since = now
                    self._take(running, exchange, piece)
                    return
        self.arrived.setdefault((piece.order, piece.step), []).append(piece)

    def _take(self, running: Running, exchange: Exchange | Meeting, piece: m.Piece) -> None:
        """Give a piece to the move that waits for it."""
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
                if staging is None:
                    array = self.backend.from_host(there)
                else:
                    array, landing = staging.pieces_in.bring(there)
                    if landing is not None:
                        self.coming.append(Coming(exchange, source, piece.part, array, landing, piece.block))
                        self.take_what_came(staging)
                        return
            exchange.arrive(source, piece.part, array, piece.block)
            exchange.received += array.nbytes
        except Exception as error:  # noqa: BLE001 — a piece of the wrong size, or memory that is not there
            self.peers.was_read(piece.block)
            exchange.fail(source, self._broken(running, exchange.move, error))
        while exchange.read:
            self.peers.was_read(exchange.read.pop())

    def take_what_came(self, staging: Staging) -> None:
        """Deliver, in their order, the pieces whose copies to the device have all been started."""
        staging.pieces_in.turn()
        while self.coming and (event := self.coming[0].landing.event) is not None:
            exchange, source, part, array, _, block = self.coming.popleft()
            if exchange.shape_of(source, part) is None:  # it was given up meanwhile
                self.peers.was_read(block)
                continue
            staging.streams.compute.wait_event(event)
            exchange.arrive(source, part, array, block)
            exchange.received += array.nbytes
            while exchange.read:
                self.peers.was_read(exchange.read.pop())

    def _give_up(self, running: Running, exchange: Exchange | Meeting, now: float) -> None:
        """Stop waiting for lost ranks, and for all ranks if nothing has come for too long: their pieces become faults."""
        if not exchange.waiting:
            return
        members = running.info.mesh.members
        missing = sorted({source for source, _ in exchange.waiting})
        if now - running.since > self.patience:
            text = self._overdue(running, exchange, [members[rank] for rank in missing])
            for rank in missing:
                exchange.fail(rank, ("WorkerLost", text))
        elif self.peers.lost:
            for rank in missing:
                if members[rank] in self.peers.lost:
                    exchange.fail(rank, ("WorkerLost", self.peers.lost[members[rank]]))

    def _overdue(self, running: Running, exchange: Exchange | Meeting, workers: list[int]) -> str:
        """The error of a time-out: the missing ranks, the collective, how much they owe, and the last collective that worked."""
        move = exchange.move
        who = f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, workers))}"
        nbytes, whole = move.expected(exchange.waiting), move.expected(move.awaited)
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

    def complete(self, running: Running) -> None:
        """Leave a move with its result, and go on to the next block."""
        exchange, slots = running.moves.popleft(), running.slots
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
        running.block += 1
        if self.recording is not None:
            self.recording.move_ends(running, move, exchange.sent, exchange.received)

    def _unfinished(self, running: Running, meeting: Meeting) -> None:
        """Whether the calls of a joint move complete is a doubt of its result; without doubts they are waited for."""
        finish, move = meeting.finish, meeting.move
        assert finish is not None, "calls were made"

        def explain(_: int) -> Fault:
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

    # doubts

    def _settled(self, running: Running, move: Move) -> bool:
        """Make sure that what a move sends is known to be sound, or poison, because others will see it. Returns whether that
        is known yet. Later calls of the same group follow its unfinished ones anyway."""
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


def _named(program: Program, move: Move) -> str:
    """A collective as a time-out names the last one that worked."""
    return f"the {move.collective or 'move'} of {move.spec} at {program.plan.tags[move.instruction.tag].site}"
