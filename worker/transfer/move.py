"""One move as seen by one worker: what it sends, what it waits for, and how pieces form the value in its new layout.

A `Move` is compiled once; it depends only on shape, layouts, mesh and rank (`move_schedule.py`). A `MoveInFlight` is a move in
progress. No message, socket or clock may be in here: the core decides when pieces leave and arrive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gt.errors import ProtocolError
from gt.ir.dtypes import bfloat16
from gt.ir.instruction import Instruction
from gt.ir.spec import Spec
from gt.sharding.block_grid import middle
from gt.sharding.collectives import PAIRWISE_ALGORITHMS, all_reduce_algorithm
from gt.sharding.partition import Box, BoxTransfer, box, extent, receives, relative, sends
from gt.sharding.placement import Layout, Mesh, Partial, Replicate, collective_name
from gt.wire.faults import Fault
from gt.worker.nccl.collective_moves import JointMove, joint

from .move_schedule import ALL_REDUCE, ScheduledPortion, by_host, hierarchical, redistribution

Index = tuple[Any, ...]
"""Slices into an array, and an ellipsis, so that what they pick is an array even without dimensions."""


class OutgoingPart(NamedTuple):
    """A part of this rank's value that it sends to others; `at` is its place in the value."""

    number: int
    at: Index
    targets: tuple[int, ...]


class Portion(NamedTuple):
    """One box of the result, with the ranks whose contributions it is made of: `at` is its place in the result, `held` in the
    value before the move.

    `sources` are in the order of adding; `foreign` of them are other ranks. Once made, it goes to `targets` as piece `number`.
    """

    at: Index
    held: Index | None
    shape: tuple[int, ...]
    sources: tuple[int, ...]
    foreign: int
    number: int
    targets: tuple[int, ...]


@dataclass(slots=True)
class Move:
    """One redistribution, from this rank's side. `number` is its name among the moves of the plan, the same on all ranks.

    `awaited` says to which portion piece (source rank, number) belongs; `targets` are all ranks that ever get a piece.
    `paired`: contributions are added as a binary tree over ranks (`gt/sharding/block_grid.py`), not one after the other.
    """

    number: int
    source: int
    target: int
    dead: tuple[int, ...]
    rank: int
    held: Box | None
    wanted: Box | None
    sendings: tuple[OutgoingPart, ...]
    portions: tuple[Portion, ...]
    awaited: dict[tuple[int, int], int]
    targets: tuple[int, ...]
    reduce: str | None
    paired: bool
    spec: Spec
    collective: str
    instruction: Instruction
    joint: JointMove | None = None
    """The calls of NCCL that do it, if its group has a GPU for each member; then only a word of each member is awaited."""
    apart: Move | None = None
    """The same in pieces, if it is joint."""

    @property
    def local(self) -> bool:
        """Whether this rank needs nobody, and nobody needs it."""
        return not self.targets and not self.awaited

    @property
    def nbytes(self) -> int:
        """The bytes of what this rank has afterwards."""
        return 0 if self.wanted is None else math.prod(extent(self.wanted)) * self.spec.dtype.itemsize

    def expected(self, keys: Any) -> int:
        """Bytes of some of the awaited pieces, or that those have for this rank of whom a word is awaited."""
        if self.joint is not None:
            return sum(self.joint.received.get(source, 0) for source, _ in keys)
        size = self.spec.dtype.itemsize
        return sum(math.prod(self.portions[self.awaited[key]].shape) * size for key in keys)


def compile_move(
    instruction: Instruction,
    number: int,
    whole: Spec,
    before: Layout,
    after: Layout,
    mesh: Mesh,
    rank: int,
    source: int,
    target: int,
    dead: tuple[int, ...],
    times: int = 1,
    algorithm: str = "",
    paired: bool = False,
    cards: Sequence[int] = (),
) -> Move:
    """The move number `number` of a value of spec `whole` from slot `source` into slot `target`, as `rank` takes part in it.

    `mesh` and `rank` are those of the plan; with microbatches they count each worker `times` times, one after the other,
    and one microbatch's pieces all belong to that microbatch. `algorithm` is for an all-reduce; empty: the best one. `cards`
    are those of the workers (`worker/nccl/collective_moves.py`): a move whose group has a card for each member is joint.
    """
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    operations = {old.op for old, new in changed if isinstance(old, Partial) and not isinstance(new, Partial)}
    assert len(operations) <= 1, "the planner reduces by one operation at a time"
    held = box(whole.shape, before, mesh, rank)
    wanted = box(whole.shape, after, mesh, rank)
    gives = [_of_worker(t, times) for t in sends(whole.shape, before, after, mesh, rank)]
    gets = [_of_worker(t, times) for t in receives(whole.shape, before, after, mesh, rank)]
    here = rank // times
    size = whole.dtype.itemsize
    schedule = None
    if len(gets) > 1 and all(isinstance(old, Partial) and isinstance(new, Replicate) for old, new in changed):
        assert held is not None, "whoever takes part in an all-reduce has a contribution"
        group = tuple(t.source for t in gets)
        hosts = mesh.hosts[::times]
        spread = mesh.spread([each * times for each in group])
        chosen = all_reduce_algorithm(math.prod(extent(held)) * size, len(group), spread, algorithm)
        if paired and chosen not in PAIRWISE_ALGORITHMS:
            chosen = "two-step"  # the others add in an order of their own
        if chosen == "hierarchical":
            schedule = hierarchical(held, size, by_host(group, hosts), here)
        elif chosen in ALL_REDUCE:
            schedule = ALL_REDUCE[chosen](held, size, group, here)
    if schedule is None:
        schedule = redistribution(gives, gets, here, size)
    sendings = tuple(OutgoingPart(sent.number, _index(sent.part, held), sent.targets) for sent in schedule.sent)
    portions = tuple(_portion(made, here, held, wanted) for made in schedule.made)
    ranks = {rank for sent in schedule.sent for rank in sent.targets}
    ranks.update(rank for made in schedule.made for rank in made.targets)
    apart = Move(
        number,
        source,
        target,
        dead,
        here,
        held,
        wanted,
        sendings,
        portions,
        schedule.awaited,
        tuple(sorted(ranks)),
        operations.pop() if operations else None,
        paired,
        whole,
        collective_name(before, after),
        instruction,
    )
    together = joint(whole, before, after, mesh, rank, times, cards) if cards and not paired else None
    if together is None:
        return apart
    others = tuple(each for each in together.ranks if each != here)
    return replace(
        apart, sendings=(), portions=(), awaited={(each, 0): 0 for each in others}, targets=others, joint=together,
        apart=apart,
    )  # fmt: skip


def _portion(made: ScheduledPortion, rank: int, held: Box | None, wanted: Box | None) -> Portion:
    return Portion(
        _index(made.part, wanted),
        _index(made.part, held) if rank in made.sources else None,
        extent(made.part),
        tuple(made.sources),
        sum(source != rank for source in made.sources),
        made.number,
        made.targets,
    )


def _index(part: Box, origin: Box | None) -> Index:
    assert origin is not None, "nothing is cut from a value that is not here"
    return (*relative(part, origin), ...)


def _of_worker(transfer: BoxTransfer, times: int) -> BoxTransfer:
    """A transfer between ranks of a plan as one between workers."""
    if times == 1:
        return transfer
    assert transfer.source % times == transfer.target % times, "microbatches are joined before their cut changes"
    return BoxTransfer(transfer.source // times, transfer.target // times, transfer.part)


def local_result(move: Move, held: Any, xp: Any) -> Any:
    """The result of a move in which this rank needs nobody."""
    if move.wanted is None:
        return None
    if not move.portions:
        return xp.empty(extent(move.wanted), move.spec.dtype.numpy)
    (only,) = move.portions
    part = held[only.held]
    return part if part.nbytes == held.nbytes else part.copy()


class ReadyPiece(NamedTuple):
    """A piece that can be sent to these ranks: part of an array of the backend (None: it only says that its sender is there),
    or a fault in its place."""

    number: int
    targets: tuple[int, ...]
    array: Any
    fault: Fault | None


class ReceivedPiece(NamedTuple):
    """A piece that has come, and the block that it lies in when it is lent."""

    array: Any
    block: list[int]


def first_fault(faults: Mapping[int, Fault], rank: int) -> Fault | None:
    """The fault that is reported, of those of members by rank: this rank's own before another's. None if there are none."""
    if not faults:
        return None
    return faults[rank] if rank in faults else faults[min(faults)]


class MoveInFlight:
    """A move in progress. Pieces come in any order; what they complete is made at once, and is `ready` to be sent on.

    A rank that has a fault in place of its contribution tells everybody it would have sent to, once; whoever lacks
    something for a portion passes the reason on in the same way, so a move always ends.
    """

    __slots__ = (
        "_explain", "_got", "_missing", "_own", "_spoilt", "_told", "_xp",
        "faults", "held", "left", "move", "out", "read", "ready", "received", "sent", "step", "waiting",
    )  # fmt: skip
    finish = None
    """What it makes is computed like anything else."""

    def __init__(
        self, move: Move, held: Any, fault: Fault | None, xp: Any, explain: Callable[[BaseException], Fault]
    ) -> None:
        self.move = move
        self.step = move.number
        """What pieces say that they belong to."""
        self.held = held
        self.out: Any = None
        self.waiting = dict(move.awaited)
        """Pieces that have not come, and the portions that they belong to."""
        self.ready: deque[ReadyPiece] = deque()
        self.faults: dict[int, Fault] = {}
        """Why something could not be made, by the rank that it came from."""
        self.left = len(move.portions)
        self._xp = xp
        self._explain = explain
        self._missing = [portion.foreign for portion in move.portions]
        self.read: list[list[int]] = []
        """Blocks that were read."""
        self.sent = self.received = 0
        """Bytes of pieces, to all who got them and of all that were taken."""
        self._own = [index for index, portion in enumerate(move.portions) if not portion.foreign]
        self._got: list[dict[int, ReceivedPiece]] = [{} for _ in move.portions]
        self._spoilt: set[int] = set()
        self._told = False
        if fault is not None:
            self._tell(fault)
            for index, portion in enumerate(move.portions):
                if portion.held is not None:
                    self._spoilt.add(index)
                    self.faults[move.rank] = fault
        else:
            for sending in move.sendings:
                self.ready.append(ReadyPiece(sending.number, sending.targets, held[sending.at], None))
        if not self.ready:
            self.make_own()

    @property
    def done(self) -> bool:
        """Whether nothing is left to make or to send."""
        return not self.left and not self.ready

    @property
    def fault(self) -> Fault | None:
        """Why the value could not be made, if it could not: this rank's own reason before another's."""
        return first_fault(self.faults, self.move.rank)

    def go_on(self) -> None:
        """Nothing takes its place."""

    def make_own(self) -> None:
        """Make the portions for which nobody else is needed: when others have got what they need, so that none waits."""
        own, self._own = self._own, []
        for index in own:
            self._make(index)

    def arrive(self, source: int, number: int, array: Any, block: list[int]) -> None:
        """A piece that is waited for has come; `block` is where it lies when it is lent."""
        index = self.waiting.pop((source, number))
        self._got[index][source] = ReceivedPiece(array, block)
        self._count(index)

    def send_no_more(self, fault: Fault) -> None:
        """This rank cannot send what it has: the others learn why. What it makes for itself is not touched by that."""
        self.ready.clear()
        self._told = False
        self._tell(fault)

    def fail(self, source: int, fault: Fault) -> None:
        """Nothing more comes from `source`."""
        self.faults.setdefault(source, fault)
        for key in [key for key in self.waiting if key[0] == source]:
            index = self.waiting.pop(key)
            self._spoilt.add(index)
            self._count(index)

    def shape_of(self, source: int, number: int) -> tuple[int, ...] | None:
        """The shape of a piece; None when nobody waits for it."""
        index = self.waiting.get((source, number))
        return None if index is None else self.move.portions[index].shape

    def result(self) -> Any:
        """The value in its new layout, when there is no fault; None when this rank has no part in it."""
        if self.out is None and self.move.wanted is not None:
            self.out = self._xp.empty(extent(self.move.wanted), self.move.spec.dtype.numpy)
        return self.out

    def _count(self, index: int) -> None:
        self._missing[index] -= 1
        if not self._missing[index]:
            self._make(index)

    def _make(self, index: int) -> None:
        """Make a portion: all its contributions are here, or will never be."""
        portion = self.move.portions[index]
        got, self._got[index] = self._got[index], {}
        if index not in self._spoilt:
            try:
                made = self._reduced(portion, got)
                if portion.targets and not self._told:
                    self.ready.append(ReadyPiece(portion.number, portion.targets, made, None))
            except Exception as error:  # noqa: BLE001 — out of memory, or a piece that does not fit
                self.faults[self.move.rank] = self._explain(error)
                self._spoilt.add(index)
        fault = self.fault
        if index in self._spoilt and portion.targets and fault is not None:
            self._tell(fault)
        self.left -= 1
        self.read += [contribution.block for contribution in got.values() if contribution.block]

    def _reduced(self, portion: Portion, got: dict[int, ReceivedPiece]) -> Any:
        sources = [
            self.held[portion.held] if source == self.move.rank else got[source].array for source in portion.sources
        ]
        if len(self.move.portions) == len(sources) == 1 and portion.held is None and not got[portion.sources[0]].block:
            self.out = sources[0]
            return self.out
        if self.out is None:
            wanted = self.move.wanted
            assert wanted is not None, "a portion is part of something that is wanted"
            self.out = self._xp.empty(extent(wanted), self.move.spec.dtype.numpy)
        place = self.out[portion.at]
        if len(sources) == 1:
            place[...] = sources[0]
            return place
        if self.move.reduce is None:
            raise ProtocolError(f"{self.move.instruction.op}: two sources for one part")
        operation = reducer(self.move.reduce, self._xp)
        if self.move.paired:
            _paired(operation, sources, place)
            return place
        operation(sources[0], sources[1], out=place)
        for source in sources[2:]:
            operation(place, source, out=place)
        return place

    def _tell(self, fault: Fault) -> None:
        """Everybody who still expects something of this rank learns why it does not come."""
        if not self._told and self.move.targets:
            self.ready.append(ReadyPiece(0, self.move.targets, None, fault))
        self._told = True


def _paired(operation: Callable[..., Any], sources: list[Any], out: Any) -> Any:
    """Two or more contributions as the tree over ranks joins them, in `out` (None: a new array)."""
    if len(sources) == 1:
        return sources[0]
    half = middle(len(sources))
    left = _paired(operation, sources[:half], out)
    return operation(left, _paired(operation, sources[half:], None), out=out)


def reducer(operation: str, xp: Any) -> Callable[..., Any]:
    """The ufunc of a partial placement's operation. CuPy's know no bfloat16: there it is float32's, rounded as NumPy's are."""
    found: Callable[..., Any] = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[operation]
    return found if xp is np else partial(_halves_too, found, xp)


def _halves_too(operation: Callable[..., Any], xp: Any, a: Any, b: Any, out: Any = None) -> Any:
    if a.dtype != bfloat16.numpy:
        return operation(a, b, out=out)
    made = operation(a.astype(xp.float32), b.astype(xp.float32)).astype(a.dtype)
    if out is None:
        return made
    out[...] = made
    return out
