"""What the ranks of a mesh hold before a move, which layouts there are to move between, and how all ranks exchange their pieces:
for tests of moves."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import Array
from hypothesis import strategies as st

from gt.ir.instruction import MOVE, Instruction, ref
from gt.ir.spec import Spec
from gt.sharding.partition import box
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, Layout, Mesh, Partial, Placement, Shard, uniform_mesh
from gt.wire.faults import Fault
from gt.worker.transfer.move import Move, MoveInFlight, ReadyPiece, compile_move

REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def contributions(array: Array, layout: Layout, mesh: Mesh, seed: int) -> list[Array]:
    """What each rank holds of `array`: its part, or along partial axes something that only joined is the value."""
    operation = next((p.op for p in layout if isinstance(p, Partial)), None)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(len(mesh.members)):
        at = mesh.coordinates(rank)
        groups.setdefault(tuple(c for c, p in zip(at, layout, strict=True) if not isinstance(p, Partial)), []).append(
            rank
        )
    held: dict[int, Array] = {}
    random = np.random.default_rng(seed)
    for group in groups.values():
        shares = [random.integers(1, 4, array.shape).astype(array.dtype) for _ in group]
        if operation == "sum":
            shares[-1] = array - sum(shares[:-1], np.zeros_like(array))
        elif operation in ("max", "min"):
            shares = [REDUCE["min" if operation == "max" else "max"](array, share) for share in shares]
            shares[0] = array
        elif operation == "prod":
            shares = [array, *[np.ones_like(array) for _ in group[1:]]]
        else:
            shares = [array]
        for rank, share in zip(group, shares, strict=True):
            part = box(array.shape, layout, mesh, rank)
            held[rank] = None if part is None else share[tuple(slice(*pair) for pair in part)]
    return [held[rank] for rank in range(len(mesh.members))]


def placements(ndim: int, operation: str) -> list[Placement]:
    return [REPLICATE, Partial(operation), *[Shard(dim) for dim in range(ndim)], Shard(0, (2, 0, 1))]


@st.composite
def two_axes(draw: st.DrawFn) -> tuple[Array, Layout, Layout, Mesh]:
    """Something to move on a mesh of two axes: the array, from where, to where."""
    sizes = draw(st.sampled_from([(2, 2), (2, 3), (3, 1), (4, 2)]))
    shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    mesh = uniform_mesh(1, dict(zip("ab", sizes, strict=True)), tuple(range(sizes[0] * sizes[1])))
    ends: list[Placement] = [REPLICATE, *[Shard(dim) for dim in range(len(shape))]]
    partial = Partial(draw(st.sampled_from(PARTIAL_OPS)))
    before = tuple(draw(st.sampled_from([*ends, partial])) for _ in sizes)
    after = tuple(draw(st.sampled_from(ends)) for _ in sizes)
    return np.random.default_rng(2).integers(1, 5, tuple(shape)).astype(np.float64), before, after, mesh


def compiled(whole: Spec, before: Layout, after: Layout, mesh: Mesh, rank: int, algorithm: str = "") -> Move:
    """A move from slot 0 to slot 1, as `rank` sees it."""
    instruction = Instruction(MOVE, range(1), (ref(1, 0),), {}, 0)
    return compile_move(instruction, 0, whole, before, after, mesh, rank, 0, 1, (0,), algorithm=algorithm)


def refuse(error: BaseException) -> Any:
    raise error


def exchanged(
    moves: list[Move],
    held: list[Any],
    *,
    faults: dict[int, Fault] | None = None,
    seed: int = 0,
    lend: bool = False,
) -> list[MoveInFlight]:
    """The exchanges of all ranks, run to their end with pieces that overtake each other at will.

    `lend` overwrites every piece as soon as its reader says that it was read, as a sender does that lends memory.
    """
    faults = faults or {}
    random = np.random.default_rng(seed)
    done = [MoveInFlight(move, held[rank], faults.get(rank), np, refuse) for rank, move in enumerate(moves)]
    under_way: list[tuple[int, int, ReadyPiece]] = []
    blocks: list[Array] = []
    while True:
        for rank, in_flight in enumerate(done):
            while in_flight.ready:
                ready = in_flight.ready.popleft()
                if ready.array is not None:
                    ready = ready._replace(array=np.array(ready.array, order="C"))
                under_way += [(rank, target, ready) for target in ready.targets]
            in_flight.make_own()
        if not under_way:
            break
        source, target, ready = under_way.pop(int(random.integers(len(under_way))))
        in_flight = done[target]
        if ready.fault is not None:
            in_flight.fail(source, ready.fault)
        elif in_flight.shape_of(source, ready.number) is not None:
            assert in_flight.shape_of(source, ready.number) == ready.array.shape
            blocks.append(ready.array.copy())
            in_flight.arrive(source, ready.number, blocks[-1], [0, len(blocks) - 1, 0, 0] if lend else [])
        while in_flight.read:
            blocks[in_flight.read.pop()[1]][...] = 77
    assert all(in_flight.done and not in_flight.waiting for in_flight in done), "nobody waits for ever"
    return done
