"""The worker as a state machine: events in, sends out. No socket, clock, thread or environment in here.

What the dispatcher says is done in order. A plan runs block by block; at a move it sends its own pieces at once, and when
pieces of others are missing it stops there, remembers where, and goes on when the last of them arrives. Meanwhile only
what is not in order is heard: pieces, lost peers, the time.

A failing instruction puts a `Poison` in place of its result; whatever reads poison becomes poison; a move sends the
poison on in place of data. So a plan always runs to its end, takes part in all its transfers, and holds up nobody.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Final, NamedTuple

import numpy as np

from gt import messages as m
from gt.bulk import GET, Key
from gt.errors import ProtocolError
from gt.instruction import unpack_plan
from gt.messages import Fault, fault_of
from gt.partition import box
from gt.placement import Mesh, parse_layout
from gt.spec import unpack_spec

from .backend import Backend
from .exchange import Move, assemble, pieces
from .program import Program, Step, compile_plan, describe

PEER_TIMEOUT: Final = 600.0
"""Seconds that a plan waits for a peer's piece before it goes on without, saying whom it waited for."""


class ToDispatcher(NamedTuple):
    """A message for the dispatcher."""

    message: m.Message


class ToPeer(NamedTuple):
    """A piece for another worker, by its address."""

    address: str
    message: m.Piece


class BulkOut(NamedTuple):
    """A part of a fetch: `array` may wait for a bulk grant under `key`, or go with `message`, as the shell sees fit."""

    message: m.Part
    key: Key
    receiver: bytes
    array: np.ndarray[Any, Any]


class Forgotten(NamedTuple):
    """A client is forgotten: no part of it goes out any more."""

    client: int


Send = ToDispatcher | ToPeer | BulkOut | Forgotten


class BulkIn(NamedTuple):
    """An event: a bulk put has arrived whole. `array` is the own part, None when there was no memory for it."""

    client: int
    tensor: int
    array: np.ndarray[Any, Any] | None


class Poison(NamedTuple):
    """What stands where a value would be that could not be computed."""

    fault: Fault


class Absent:
    """What is stored of a tensor that this worker has no part in."""

    nbytes: Final = 0


ABSENT: Final = Absent()


@dataclass(slots=True)
class MeshInfo:
    """A mesh that this worker is a member of, and where its other members are."""

    mesh: Mesh
    rank: int
    addresses: tuple[str, ...]


@dataclass(slots=True)
class Running:
    """An execution under way: where it is (`block`), and the sources whose pieces it waits for."""

    order: int
    client: int
    base: int
    inputs: list[int]
    program: Program
    info: MeshInfo
    slots: list[Any]
    block: int = 0
    waiting: set[int] | None = None
    since: float = 0.0
    poisoned: bool = False


class Core:
    """One worker on one device."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.number = -1
        self.meshes: dict[int, MeshInfo] = {}
        self.plans: dict[int, bytes] = {}
        self.programs: dict[int, Program] = {}
        self.stores: dict[int, dict[int, Any]] = {}
        self.queue: deque[Any] = deque()
        self.running: Running | None = None
        self.arrived: dict[tuple[int, int], dict[int, m.Piece]] = {}
        self.finished = 0
        self.lost: dict[int, str] = {}
        self.out: list[Send] = []
        self.expecting: dict[tuple[int, int], tuple[Any, ...]] = {}
        """Bulk puts announced and not landed: (client, tensor) -> (sender, spec, box); read by the shell."""
        self.unwanted: set[tuple[int, int]] = set()
        """Bulk puts that were freed before they landed: their sender is heard to the end, and nothing is kept."""
        self.executed = 0

    def handle(self, event: Any, now: float) -> list[Send]:
        """Act on a message of the dispatcher, a `Piece`, a `BulkIn`, or (None) on the time; what to send, in order."""
        if isinstance(event, m.Piece):
            self._piece(event)
        elif isinstance(event, m.PeerLost):
            self.lost[event.worker] = event.text
        elif isinstance(event, BulkIn):
            self._landed(event)
        elif event is not None:
            self.queue.append(event)
        with np.errstate(all="ignore"):
            if self.running is not None:
                self._resume(self.running, now)
            while self.queue and self.running is None:
                self._act(self.queue.popleft(), now)
        out, self.out = self.out, []
        return out

    def check(self) -> None:
        """The invariants between events."""
        assert self.running is None or self.running.waiting, "a plan stands only where it waits"
        assert self.running is not None or not self.queue, "nothing waits behind nothing"
        assert all(order > self.finished for order, _ in self.arrived), "pieces of finished plans are dropped"
        assert set(self.programs) <= set(self.plans)

    @property
    def held_bytes(self) -> int:
        """Bytes of all stored tensors (arrays that share memory count each)."""
        return sum(v.nbytes for store in self.stores.values() for v in store.values() if not isinstance(v, Poison))

    def _act(self, message: Any, now: float) -> None:
        if isinstance(message, m.Execute):
            self._execute(message, now)
        elif isinstance(message, m.Store):
            self._store(message)
        elif isinstance(message, m.Release):
            self._free(message.client, message.tensors)
        elif isinstance(message, m.Collect):
            self._collect(message)
        elif isinstance(message, m.DefinePlan):
            self.plans[message.plan] = bytes(message.body)
        elif isinstance(message, m.DropPlan):
            self.plans.pop(message.plan, None)
            self.programs.pop(message.plan, None)
        elif isinstance(message, m.DefineMesh):
            axes, sizes, members, weights = message.body
            mesh = Mesh(message.mesh, tuple(axes), tuple(sizes), tuple(members), tuple(map(tuple, weights)))
            self.meshes[message.mesh] = MeshInfo(mesh, mesh.members.index(self.number), tuple(message.addresses))
        elif isinstance(message, m.DropMesh):
            self.meshes.pop(message.mesh, None)
        elif isinstance(message, m.Forget):
            self.stores.pop(message.client, None)
            for key in [key for key in self.expecting if key[0] == message.client]:
                del self.expecting[key]
                self.unwanted.discard(key)
            self.out.append(Forgotten(message.client))
        elif isinstance(message, m.Welcome):
            self.number = message.number
        elif not isinstance(message, m.Ping):
            raise ProtocolError(f"{type(message).__name__} is nothing that a dispatcher says to a worker")

    # tensors in and out

    def _store(self, message: m.Store) -> None:
        info = self.meshes[message.mesh]
        spec = unpack_spec(message.spec)
        part = box(spec.shape, parse_layout(message.layout), info.mesh, info.rank)
        assert part is not None, "a put is cut or whole"
        store = self.stores.setdefault(message.client, {})
        shape = tuple(stop - start for start, stop in part)
        if message.sender and all(shape):
            self.expecting[message.client, message.tensor] = (bytes(message.sender), spec, part)
        else:
            try:
                if message.sender:
                    array = np.empty(shape, spec.dtype.numpy)
                else:
                    whole = np.frombuffer(message.data, spec.dtype.numpy).reshape(spec.shape)
                    array = np.array(whole[tuple(slice(*pair) for pair in part)], order="C")
                store[message.tensor] = self.backend.from_host(array)
            except Exception as error:  # noqa: BLE001 — whatever it raises becomes a fault of what it was to make
                store[message.tensor] = Poison(_put_fault(spec, error))
        self._done(message.order)

    def _landed(self, event: BulkIn) -> None:
        key = event.client, event.tensor
        announced = self.expecting.pop(key, None)
        if announced is None:
            return
        if key in self.unwanted:
            self.unwanted.discard(key)
            return
        _, spec, _ = announced
        value: Any
        try:
            if event.array is None:
                raise MemoryError("out of memory")
            value = self.backend.from_host(event.array)
        except Exception as error:  # noqa: BLE001 — whatever it raises becomes a fault of what it was to make
            value = Poison(_put_fault(spec, error))
        self.stores.setdefault(event.client, {})[event.tensor] = value
        self.out.append(ToDispatcher(m.Landed(event.client, event.tensor)))

    def _free(self, client: int, tensors: list[int]) -> None:
        store = self.stores.get(client, {})
        for tensor in tensors:
            store.pop(tensor, None)
            if self.expecting and (client, tensor) in self.expecting:
                self.unwanted.add((client, tensor))

    def _collect(self, message: m.Collect) -> None:
        value = self.stores.get(message.client, {}).get(message.tensor)
        if value is None:
            value = self._missing(message.tensor)
        array = None
        if not message.silent and not isinstance(value, Poison):
            try:
                array = np.ascontiguousarray(self.backend.to_host(value)).reshape(value.shape)
            except Exception as error:  # noqa: BLE001 — out of memory: an expanded tensor takes none until it is sent
                kind, text = fault_of(error)
                value = Poison((kind, f"{text}\n  in a fetch of tensor {message.tensor}"))
        if isinstance(value, Poison):
            self.out.append(ToDispatcher(m.Part(message.request, list(value.fault), False, b"")))
        elif array is None:
            self.out.append(ToDispatcher(m.Part(message.request, [], False, b"")))
        else:
            key = (GET, message.client, message.reply, self.number)
            self.out.append(BulkOut(m.Part(message.request, [], False, b""), key, bytes(message.receiver), array))

    def _missing(self, tensor: int) -> Poison:
        """What stands for a tensor that should be here and is not: its reader fails, and nobody else."""
        return Poison(("WorkerError", f"tensor {tensor} is not on worker {self.number}"))

    # plans

    def _execute(self, message: m.Execute, now: float) -> None:
        program = self.programs.get(message.plan)
        if program is None:
            plan = unpack_plan(self.plans[message.plan])
            info = self.meshes[plan.mesh]
            program = self.programs[message.plan] = compile_plan(plan, info.mesh, info.rank, self.backend)
        info = self.meshes[program.plan.mesh]
        store = self.stores.setdefault(message.client, {})
        slots: list[Any] = [None] * program.slots
        count = len(message.inputs)
        poisoned = False
        for slot, tensor in enumerate(message.inputs):
            value = store.get(tensor)
            if value is None:
                value = self._missing(tensor)
            slots[slot] = None if value is ABSENT else value
            if type(value) is Poison:
                poisoned = True
        slots[count : count + len(message.scalars)] = message.scalars
        for position in message.dying:
            store.pop(message.inputs[position], None)
        if message.freed:
            self._free(message.client, message.freed)
        running = Running(message.order, message.client, message.base, message.inputs, program, info, slots)
        running.poisoned = poisoned
        self._run(running, now)

    def _run(self, running: Running, now: float) -> None:
        """Run blocks and moves until the plan ends or a move has to wait."""
        program, slots = running.program, running.slots
        while True:
            if running.poisoned:
                self._run_poisoned(running, 0)
            else:
                actions = iter(program.actions[running.block])
                try:
                    for action in actions:
                        action(slots)
                except Exception as error:  # noqa: BLE001 — whatever a kernel raises becomes the fault of its result
                    failed = len(program.actions[running.block]) - length_hint(actions) - 1
                    self._fail(running, program.blocks[running.block][failed], error)
                    self._run_poisoned(running, failed + 1)
            if running.block == len(program.moves):
                self._finish(running)
                return
            self._start(running, program.moves[running.block], now)
            if running.waiting:
                self.running = running
                return
            self._complete(running)

    def _fail(self, running: Running, step: Step, error: Exception) -> None:
        kind, text = fault_of(error)
        fault = (kind, f"{text}\n  in {describe(running.program, step.instruction)}")
        running.slots[step.writes] = Poison(fault)
        running.poisoned = True
        self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))

    def _run_poisoned(self, running: Running, start: int) -> None:
        """The rest of a block when some slot holds poison: whatever reads it becomes poison, everything else is computed."""
        slots = running.slots
        for step in running.program.blocks[running.block][start:]:
            poison = next((slots[r] for r in step.tensors if type(slots[r]) is Poison), None)
            if poison is not None:
                slots[step.writes] = poison
            else:
                try:
                    slots[step.writes] = step.kernel(*[slots[r] for r in step.reads])
                except Exception as error:  # noqa: BLE001 — as above
                    self._fail(running, step, error)
            for dead in step.dead:
                slots[dead] = None

    def _finish(self, running: Running) -> None:
        program, slots = running.program, running.slots
        store = self.stores.setdefault(running.client, {})
        for offset, slot in program.survivors:
            store[running.base + offset] = self._kept(slots[slot])
        for position, slot in program.rehomed:
            if running.inputs[position] in store:
                store[running.inputs[position]] = self._kept(slots[slot])
        self.running = None
        self.finished = running.order
        self.executed += 1
        for key in [key for key in self.arrived if key[0] <= running.order]:
            del self.arrived[key]
        self._done(running.order)

    def _kept(self, value: Any) -> Any:
        """A value as it is stored: an array, and no small view that keeps a much larger one alive."""
        if type(value) is Poison:
            return value
        if value is None:
            return ABSENT
        if isinstance(value, np.generic):
            return np.asarray(value)
        base = value.base
        if base is not None and getattr(base, "nbytes", 0) > 2 * value.nbytes:
            return value.copy()
        return value

    def _done(self, order: int) -> None:
        self.out.append(ToDispatcher(m.Done(order)))

    # moves

    def _start(self, running: Running, move: Move, now: float) -> None:
        """Send this rank's pieces, and note whose are missing."""
        held = running.slots[move.source]
        info = running.info
        for target, piece in self._outgoing(running, move, held):
            fault = list(piece.fault) if isinstance(piece, Poison) else []
            data: Any = b"" if fault else _bytes(piece)
            self.out.append(ToPeer(info.addresses[target], m.Piece(running.order, move.number, info.rank, fault, data)))
        here = self.arrived.get((running.order, move.number), {})
        running.waiting = {t.source for t in move.receives if t.source != info.rank and t.source not in here}
        running.since = now
        self._give_up(running, now)

    def _outgoing(self, running: Running, move: Move, held: Any) -> list[tuple[int, Any]]:
        if type(held) is not Poison:
            try:
                return pieces(move, held, self.backend)
            except Exception as error:  # noqa: BLE001 — out of memory: the others learn why they do not get their part
                kind, text = fault_of(error)
                held = Poison((kind, f"{text}\n  in {describe(running.program, move.instruction)}"))
                self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *held.fault)))
        return [(t.target, held) for t in move.sends]

    def _piece(self, piece: m.Piece) -> None:
        if piece.order <= self.finished:
            return
        self.arrived.setdefault((piece.order, piece.step), {})[piece.source] = piece
        running = self.running
        if running is not None and running.waiting is not None:
            move = running.program.moves[running.block]
            if (piece.order, piece.step) == (running.order, move.number):
                running.waiting.discard(piece.source)

    def _give_up(self, running: Running, now: float) -> None:
        """Stop waiting for ranks that are lost, and for all when it has taken too long: their pieces are faults."""
        assert running.waiting is not None
        move = running.program.moves[running.block]
        for rank in sorted(running.waiting):
            member = running.info.mesh.members[rank]
            fault: list[str] = []
            if member in self.lost:
                fault = ["WorkerLost", self.lost[member]]
            elif now - running.since > PEER_TIMEOUT:
                text = (
                    f"waited {PEER_TIMEOUT:.0f} s for worker {member} in {describe(running.program, move.instruction)}"
                )
                fault = ["WorkerLost", text]
            if fault:
                pending = self.arrived.setdefault((running.order, move.number), {})
                pending[rank] = m.Piece(running.order, move.number, rank, fault, b"")
                running.waiting.discard(rank)

    def _resume(self, running: Running, now: float) -> None:
        self._give_up(running, now)
        if not running.waiting:
            self.running = None
            self._complete(running)
            self._run(running, now)

    def _complete(self, running: Running) -> None:
        """Put together what a move brought; step on to the next block."""
        move = running.program.moves[running.block]
        slots = running.slots
        here = self.arrived.pop((running.order, move.number), {})
        held = slots[move.source]
        fault: Fault | None = held.fault if type(held) is Poison and self._reads_own(move, running) else None
        for transfer in move.receives:
            piece = here.get(transfer.source)
            if piece is not None and piece.fault:
                fault = fault or (piece.fault[0], piece.fault[-1])
        if fault is None:
            try:
                parts = {t.source: self._array(here[t.source], t, move) for t in move.receives if t.source in here}
                slots[move.target] = assemble(move, held, parts, self.backend.xp)
            except Exception as error:  # noqa: BLE001 — out of memory, or a piece of the wrong size
                kind, text = fault_of(error)
                fault = (kind, f"{text}\n  in {describe(running.program, move.instruction)}")
                self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))
        if fault is not None:
            slots[move.target] = Poison(fault)
            running.poisoned = True
        for dead in move.dead:
            slots[dead] = None
        running.waiting = None
        running.block += 1

    def _reads_own(self, move: Move, running: Running) -> bool:
        return any(t.source == running.info.rank for t in move.receives)

    def _array(self, piece: m.Piece, transfer: Any, move: Move) -> Any:
        shape = tuple(stop - start for start, stop in transfer.part)
        return self.backend.from_host(np.frombuffer(piece.data, move.spec.dtype.numpy).reshape(shape))


def _put_fault(spec: Any, error: Exception) -> Fault:
    kind, text = fault_of(error)
    return kind, f"a put of {spec}: {text}"


def _bytes(array: np.ndarray[Any, Any]) -> Any:
    """A contiguous array's memory, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.size else b""


__all__ = ["BulkIn", "BulkOut", "Core", "Forgotten", "Poison", "ToDispatcher", "ToPeer"]
