"""Meshes and placements: along each axis of a mesh, a tensor is sharded, replicated or partial, as in DTensor.

For pipelines GT adds `At`: one position of the axis holds the value, and the others hold nothing.

A `Layout` is one placement per mesh axis. A tensor dimension may be sharded over several mesh axes: the earlier axis splits
it first, and the later one splits each part again (`gt/sharding/partition.py` does the arithmetic). Placements are interned.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gt.errors import ProtocolError

from .collectives import HostSpread
from .interned import Interned


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Shard(metaclass=Interned):
    """Each worker along the axis holds its range of tensor dimension `dim`, sized by `weights` (None: the mesh's)."""

    dim: int
    weights: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"S{self.dim}" if self.weights is None else f"S{self.dim}({','.join(map(str, self.weights))})"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Replicate(metaclass=Interned):
    """Every worker along the axis holds the same whole."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Partial(metaclass=Interned):
    """Every worker along the axis holds a contribution of full extent; `op`, of `PARTIAL_OPS`, makes them the value."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"P({self.op})"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class At(metaclass=Interned):
    """The worker at one position of the axis holds the whole; the others hold nothing, and have no part in making it."""

    position: int

    def __str__(self) -> str:
        return f"@{self.position}"


Placement = Shard | Replicate | Partial | At
Layout = tuple[Placement, ...]

REPLICATE: Final = Replicate()
PINNED_AXIS: Final = "pinned devices"
"""The name of the mesh axis of a session whose config only pins signals to devices: what no signal pins is at its position 0. No
config can give an axis this name."""
TIME_AXIS: Final = "microbatches"
"""The name of a mesh axis in time."""
PARTIAL_OPS: Final = ("sum", "max", "min", "prod")
_WEIGHT: Final = r"(?:0|[1-9][0-9]{0,5})"
_FORM: Final = re.compile(
    rf"R|S(0|[1-9][0-9]?)(?:\(({_WEIGHT}(?:,{_WEIGHT}){{0,4095}})\))?|P\((sum|max|min|prod)\)|@({_WEIGHT})"
)


def format_layout(layout: Layout) -> str:
    """`S0` or, for several mesh axes, `S0|R`."""
    return "|".join(map(str, layout))


def collective_name(before: Layout, after: Layout) -> str:
    """What the field calls the way from one layout to another; empty when no worker needs what another holds.

    Where several mesh axes change in different ways, their names are joined by ` + `.
    """
    names = (_collective(old, new) for old, new in zip(before, after, strict=True))
    return " + ".join(dict.fromkeys(name for name in names if name))


def _collective(old: Placement, new: Placement) -> str:
    if old == new or isinstance(old, Replicate) or isinstance(new, Partial):
        return ""
    if isinstance(old, Partial):
        return "all-reduce" if isinstance(new, Replicate) else "reduce" if _on_one(new) else "reduce-scatter"
    if isinstance(new, Replicate):
        return "broadcast" if _on_one(old) else "all-gather"
    return ("send" if _on_one(new) else "scatter") if _on_one(old) else "gather" if _on_one(new) else "all-to-all"


def _on_one(placement: Placement) -> bool:
    """Whether one worker along the axis holds everything."""
    if isinstance(placement, At):
        return True
    return isinstance(placement, Shard) and placement.weights is not None and sum(map(bool, placement.weights)) == 1


def parse_layout(text: str) -> Layout:
    """The inverse of `format_layout`. Raises `ProtocolError`."""
    return tuple(_parse_placement(part) for part in text.split("|"))


def _parse_placement(text: str) -> Placement:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ProtocolError(f"{text!r} is not a placement")
    dim, weights, op, position = match.groups()
    if position is not None:
        return At(int(position))
    if dim is not None:
        return Shard(int(dim), tuple(map(int, weights.split(","))) if weights else None)
    return Partial(op) if op else REPLICATE


@dataclass(frozen=True, slots=True)
class Mesh:
    """Workers in a grid with named axes. Rank r stands at the row-major coordinates of r and is worker `members[r]`.

    `weights[axis]` are the relative speeds of the positions along an axis, by which shards are sized. `number` is the
    mesh's version: it changes whenever anything here does.

    `hosts` has for each rank the number of its host, and `network` the slowest link between two of them, rounded: bytes/s and
    nanoseconds. Both are empty where all workers are on one host. Workers of one host read each other's memory.
    """

    number: int
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    members: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    hosts: tuple[int, ...] = ()
    network: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if math.prod(self.sizes) != len(self.members) or not self.members:
            wanted = math.prod(self.sizes)
            raise ValueError(f"a mesh of sizes {self.sizes} has {wanted} members, not {len(self.members)}")
        if tuple(map(len, self.weights)) != self.sizes or len(self.axes) != len(self.sizes):
            raise ValueError("a mesh has a name, a size and that many weights for each axis")
        if self.hosts and (len(self.hosts) != len(self.members) or len(self.network) != 2):
            raise ValueError("a mesh on several hosts has a host for each rank, and a link between hosts")

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where `rank` stands on each axis."""
        out = []
        for size in reversed(self.sizes):
            out.append(rank % size)
            rank //= size
        return tuple(reversed(out))

    def rank(self, coordinates: tuple[int, ...]) -> int:
        """The rank at these coordinates."""
        rank = 0
        for size, at in zip(self.sizes, coordinates, strict=True):
            rank = rank * size + at
        return rank

    def spread(self, ranks: Sequence[int]) -> HostSpread | None:
        """How these ranks lie on hosts; None if they are all on one."""
        if not self.hosts:
            return None
        on_host = Counter(map(self.hosts.__getitem__, ranks))
        return HostSpread(len(on_host), max(on_host.values()), *self.network) if len(on_host) > 1 else None

    def group(self, rank: int, axes: Sequence[int]) -> tuple[int, ...]:
        """The ranks that differ from `rank` at most along `axes`, in order."""
        at = self.coordinates(rank)
        along = [range(size) if axis in axes else (at[axis],) for axis, size in enumerate(self.sizes)]
        return tuple(map(self.rank, itertools.product(*along)))

    @property
    def replicated(self) -> Layout:
        return (REPLICATE,) * len(self.sizes)

    def timed(self, microbatches: int) -> Mesh:
        """This mesh with one more axis, in time: rank r of it stands for ranks r·n to r·n + n − 1, one a microbatch.

        What is sharded along that axis is computed part by part, one after the other, by the same worker.
        """
        if microbatches == 1:
            return self
        return Mesh(
            self.number,
            (*self.axes, TIME_AXIS),
            (*self.sizes, microbatches),
            tuple(member for member in self.members for _ in range(microbatches)),
            (*self.weights, (1,) * microbatches),
            tuple(host for host in self.hosts for _ in range(microbatches)),
            self.network,
        )


def uniform_mesh(number: int, axes: dict[str, int], members: tuple[int, ...]) -> Mesh:
    """A mesh of equal workers."""
    return Mesh(number, tuple(axes), tuple(axes.values()), members, tuple((1,) * size for size in axes.values()))
