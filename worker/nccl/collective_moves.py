"""Joint moves: moves as calls of a collective library that all members of a group make together, and the memory of the calls.

A `JointMove` is compiled with its move and follows from shape, layouts, mesh and rank alone, so that all members make the same
calls in the same order. What only moves goes as bytes, so that the library need not know its dtype. It adds up only where it does
as NumPy does; elsewhere contributions are moved, and added here in order of rank. Nothing of any library may be in here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from gt.ir.dtypes import DType
from gt.ir.spec import Spec
from gt.sharding.partition import Box, BoxTransfer, box, exchanging, extent, receives, relative, sends
from gt.sharding.placement import At, Layout, Mesh, Partial

ALL_REDUCE: Final = "all-reduce"
REDUCE_SCATTER: Final = "reduce-scatter"
ALL_GATHER: Final = "all-gather"
BROADCAST: Final = "broadcast"
SEND_RECEIVE: Final = "send and receive"

SUMMABLE_DTYPES: Final = frozenset(
    ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
)
"""The dtypes that a library adds and multiplies."""
ORDERED_DTYPES: Final = frozenset(("int8", "uint8", "int32", "uint32", "int64", "uint64"))
"""The dtypes of which it computes maxima and minima. Not floats: NumPy's maximum of anything and NaN is NaN, NCCL's is not."""
COMPLEX_PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""Complex dtypes, which are summed as twice as many of these."""
BOOL_REDUCTIONS: Final = {"sum": "max", "max": "max", "prod": "min", "min": "min"}
"""The operations by which bools are reduced, as bytes of 0 and 1."""

Index = tuple[Any, ...]


class LibraryReduction(NamedTuple):
    """How a library reduces an array: `factor` elements of a dtype for each of its elements, by an operation."""

    dtype: str
    factor: int
    operation: str


class CollectiveLibrary(Protocol):
    """The calls that a group makes (`NcclCalls`). Each takes arrays that lie row by row, and returns before anything has
    moved."""

    def all_reduce(self, sent: Any, received: Any, reduction: LibraryReduction) -> None: ...
    def reduce_scatter(self, sent: Any, received: Any, reduction: LibraryReduction) -> None: ...
    def reduce(self, sent: Sequence[Any], received: Any, reduction: LibraryReduction) -> None:
        """One array for each place, of any size; `received` gets the own."""

    def all_gather(self, sent: Any, received: Any) -> None: ...
    def broadcast(self, sent: Any, received: Any, root: int) -> None: ...
    def send_receive(self, sent: Sequence[tuple[int, Any]], received: Sequence[tuple[int, Any]]) -> None:
        """To and from places, all at once."""


class JointPortion(NamedTuple):
    """A portion of the result: its place in the result, the members that contribute to it, in the order of adding, and its place
    in what this member holds, if it contributes."""

    at: Index
    sources: tuple[int, ...]
    held: Index | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JointMove:
    """One move of a group. `ranks` are its members in the mesh, in order; a *place* is a position among them, `place` the own.

    `shares` are, for a reduce-scatter, what each place gets of what is held; for an all-gather, what each gives of the
    result. `places` and `given` are for what goes piece by piece.
    """

    ranks: tuple[int, ...]
    place: int
    way: str
    shape: tuple[int, ...]
    dtype: DType
    received: dict[int, int]
    """Bytes that each other rank has for this one."""
    shares: tuple[Index, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    stacked: bool = False
    """Whether shares lie one behind the other in memory that lies row by row."""
    root: int = 0
    given: tuple[tuple[int, Index], ...] = ()
    places: tuple[JointPortion, ...] = ()
    reduction: LibraryReduction | None = None
    operation: str | None = None


def joint(
    whole: Spec, before: Layout, after: Layout, mesh: Mesh, rank: int, times: int, cards: Sequence[int]
) -> JointMove | None:
    """The joint move by which `rank`'s group does a move; None if it does it in pieces. `cards` has for each worker of the
    mesh the number of its
    card, 0 for one that takes no part: a group has a card for each member, or goes another way as a whole.

    `mesh` and `rank` are those of the plan; with microbatches they count each worker `times` times. Between the stages of
    a pipeline nothing is joint: who sends there does not wait for who receives.
    """
    axes = [axis for axis in exchanging(before, after, mesh) if times == 1 or axis < len(mesh.sizes) - 1]
    if any(isinstance(placement, At) for axis in axes for placement in (before[axis], after[axis])):
        return None
    here = mesh.coordinates(rank)
    around = [range(size) if axis in axes else (here[axis],) for axis, size in enumerate(mesh.sizes)]
    group = [mesh.rank(coordinates) for coordinates in itertools.product(*around)]
    members = tuple(each // times for each in group)
    used = {cards[each] for each in members} if cards else {0}
    if len(group) < 2 or 0 in used or len(used) < len(group):
        return None
    gets = [receives(whole.shape, before, after, mesh, each) for each in group]
    if all(transfer.source == transfer.target for some in gets for transfer in some):
        return None
    held = [box(whole.shape, before, mesh, each) for each in group]
    wanted = [box(whole.shape, after, mesh, each) for each in group]
    place, size = group.index(rank), whole.dtype.itemsize
    own = wanted[place]
    if own is None or None in held or None in wanted:
        return None
    operations = {old.op for axis in axes if isinstance(old := before[axis], Partial)}
    operation = operations.pop() if operations else None
    received = {t.source // times: math.prod(extent(t.part)) * size for t in gets[place] if t.source != rank}
    common: dict[str, Any] = {"operation": operation, "reduction": reduction_of(whole.dtype, operation)}
    found = _GroupLayout(rank, place, group, held, wanted, gets)
    way, facts = found.way(reduces=common["reduction"] is not None, operation=operation)
    if way == SEND_RECEIVE:
        facts = found.pieces([t for t in sends(whole.shape, before, after, mesh, rank) if t.target != rank])
    return JointMove(members, place, way, extent(own), whole.dtype, received, **facts, **common)


def reduction_of(dtype: DType, operation: str | None) -> LibraryReduction | None:
    """How a library reduces arrays of a dtype; None where it does not as NumPy does."""
    if operation is None:
        return None
    if dtype.name == "bool":
        return LibraryReduction("uint8", 1, BOOL_REDUCTIONS[operation])
    if dtype.name in COMPLEX_PARTS:
        return LibraryReduction(COMPLEX_PARTS[dtype.name], 2, operation) if operation == "sum" else None
    return (
        LibraryReduction(dtype.name, 1, operation)
        if dtype.name in (SUMMABLE_DTYPES if operation in ("sum", "prod") else ORDERED_DTYPES)
        else None
    )


class _GroupLayout:
    """What all members of a group hold before a move and want after it, by place."""

    def __init__(
        self, rank: int, place: int, group: list[int], held: list[Any], wanted: list[Any], gets: list[list[BoxTransfer]]
    ) -> None:
        self.rank, self.place, self.group = rank, place, group
        self.held: list[Box] = held
        self.wanted: list[Box] = wanted
        self.gets = gets

    def way(self, *, reduces: bool, operation: str | None) -> tuple[str, dict[str, Any]]:
        """The library's own collective, if it is one, and what is to be known for that."""
        count, one = len(self.group), self.wanted[0]
        alike = all(each == one for each in self.wanted)
        if operation is not None:
            contribution = self.held[0]
            everybody = all(each == contribution for each in self.held) and all(
                len(gets) == count or not gets for gets in self.gets
            )
            if not reduces or not everybody:
                return SEND_RECEIVE, {}
            if alike and one == contribution:
                return ALL_REDUCE, {}
            return REDUCE_SCATTER, self.shares(self.wanted, contribution)
        sources = {transfer.source for gets in self.gets for transfer in gets}
        if alike and len(sources) == 1:
            root = self.group.index(sources.pop())
            if self.gets[0][0].part == one:
                return BROADCAST, {"root": root, "shares": (_index(one, self.held[root]),)}
        parts = [transfer.part for transfer in self.gets[0]]
        if alike and parts == self.held and len({extent(part) for part in parts}) == 1:
            return ALL_GATHER, self.shares(parts, one)
        return SEND_RECEIVE, {}

    def shares(self, parts: list[Box], origin: Box) -> dict[str, Any]:
        """Parts, by place, of what lies at `origin`."""
        shapes = tuple(map(extent, parts))
        starts = [(sum(shape[0] for shape in shapes[:at]) if shapes[0] else 0) for at in range(len(parts))]
        stacked = bool(shapes[0]) and all(
            part[0][0] - origin[0][0] == start and part[1:] == origin[1:]
            for part, start in zip(parts, starts, strict=True)
        )
        return {
            "shares": tuple(_index(part, origin) for part in parts),
            "shapes": shapes,
            "stacked": stacked and len(set(shapes)) == 1,
        }

    def pieces(self, given: list[BoxTransfer]) -> dict[str, Any]:
        """Everything piece by piece."""
        mine = self.held[self.place]
        parts: dict[Box, list[int]] = {}
        for transfer in self.gets[self.place]:
            parts.setdefault(transfer.part, []).append(self.group.index(transfer.source))
        places = tuple(
            JointPortion(
                _index(part, self.wanted[self.place]), tuple(sources),
                _index(part, mine) if self.place in sources else None, extent(part),
            )
            for part, sources in parts.items()
        )  # fmt: skip
        return {
            "given": tuple((self.group.index(t.target), _index(t.part, mine)) for t in given),
            "places": places,
        }


def _index(part: Box, origin: Box) -> Index:
    return (*relative(part, origin), ...)


class JointMoveWork:
    """A joint move in progress: its memory, which is allocated before the other members are told that this one is ready.

    `begin` makes the calls, `end` what is left to compute, both without waiting for the device.
    """

    def __init__(self, joint: JointMove, held: Any, xp: Any, reducer: Callable[..., Any]) -> None:
        self.joint = joint
        self._xp = xp
        self._reducer = reducer
        self._held = held
        self.out = xp.empty(joint.shape, joint.dtype.numpy)
        self._sent: Any = None
        self._received: Any = self.out
        self._pieces: dict[tuple[int, int], Any] = {}
        """By portion and place, what comes from there."""
        _PREPARE[joint.way](self)

    def _one(self) -> None:
        self._sent = self._xp.ascontiguousarray(self._held)

    def _all_gather(self) -> None:
        joint = self.joint
        self._one()
        if not joint.stacked:
            self._received = self._xp.empty((len(joint.ranks), *joint.shapes[0]), joint.dtype.numpy)

    def _broadcast(self) -> None:
        self._sent = self.out
        if self.joint.root == self.joint.place:
            self._sent = self._xp.ascontiguousarray(self._held[self.joint.shares[0]])

    def _reduce_scatter(self) -> None:
        joint = self.joint
        if joint.stacked:
            self._one()
        elif len(set(joint.shapes)) == 1:
            self._sent = self._xp.empty((len(joint.ranks), *joint.shapes[0]), joint.dtype.numpy)
            for place, share in enumerate(joint.shares):
                self._sent[place] = self._held[share]
        else:
            self._sent = [self._xp.ascontiguousarray(self._held[share]) for share in joint.shares]

    def _send_receive(self) -> None:
        joint, xp = self.joint, self._xp
        self._sent = [(place, xp.ascontiguousarray(self._held[at])) for place, at in joint.given]
        for number, portion in enumerate(joint.places):
            for source in portion.sources:
                if source != joint.place:
                    self._pieces[number, source] = self._receive_buffer(portion)
        self._received = [(source, array) for (_, source), array in self._pieces.items()]

    def _receive_buffer(self, portion: JointPortion) -> Any:
        """The memory in which a piece is received: its place in the result, if it is all of that and contiguous."""
        place = self.out[portion.at]
        if len(portion.sources) == 1 and place.flags.c_contiguous:
            return place
        return self._xp.empty(portion.shape, self.joint.dtype.numpy)

    def begin(self, library: CollectiveLibrary) -> None:
        """Make the calls, the same ones in the same order on every member."""
        joint, reduction = self.joint, self.joint.reduction
        if joint.way == ALL_GATHER:
            library.all_gather(self._sent, self._received)
        elif joint.way == BROADCAST:
            library.broadcast(self._sent, self.out, joint.root)
        elif joint.way == SEND_RECEIVE:
            library.send_receive(self._sent, self._received)
        else:
            assert reduction is not None, "what a library does not reduce is exchanged"
            if joint.way == ALL_REDUCE:
                library.all_reduce(self._sent, self.out, reduction)
            elif isinstance(self._sent, list):
                library.reduce(self._sent, self.out, reduction)
            else:
                library.reduce_scatter(self._sent, self.out, reduction)

    def end(self) -> Any:
        """The result, once what was received is there for whatever is computed from now on."""
        joint = self.joint
        if joint.way == ALL_GATHER and not joint.stacked:
            for place, share in enumerate(joint.shares):
                self.out[share] = self._received[place]
        for number, portion in enumerate(joint.places):
            self._make(number, portion)
        return self.out

    def _make(self, number: int, portion: JointPortion) -> None:
        place = self.out[portion.at]
        sources = [
            self._held[portion.held] if source == self.joint.place else self._pieces[number, source]
            for source in portion.sources
        ]
        if len(sources) > 1:
            operation = self._reducer(self.joint.operation, self._xp)
            operation(sources[0], sources[1], out=place)
            for source in sources[2:]:
                operation(place, source, out=place)
        elif portion.held is not None or not place.flags.c_contiguous:
            place[...] = sources[0]


_PREPARE: Final[dict[str, Callable[[JointMoveWork], None]]] = {
    ALL_REDUCE: JointMoveWork._one, ALL_GATHER: JointMoveWork._all_gather, BROADCAST: JointMoveWork._broadcast,
    REDUCE_SCATTER: JointMoveWork._reduce_scatter, SEND_RECEIVE: JointMoveWork._send_receive,
}  # fmt: skip
