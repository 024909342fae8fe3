"""One move, from one worker's side: what it sends, what it waits for, and how the pieces become the value in its new layout.

Everything here follows from shape, layouts, mesh and rank. No message, socket or clock may be in here: when pieces leave
and arrive is the core's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gt.instruction import Instruction
from gt.partition import Box, Transfer, box, extent, receives, relative, sends
from gt.placement import Layout, Mesh, Partial
from gt.spec import Spec

from .backend import Backend


@dataclass(slots=True)
class Move:
    """One redistribution, from this rank's side. `number` is its place among the plan's instructions."""

    number: int
    source: int
    target: int
    dead: tuple[int, ...]
    held: Box | None
    wanted: Box | None
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]
    reduce: str | None
    shape: tuple[int, ...]
    spec: Spec
    instruction: Instruction


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
) -> Move:
    """The move number `number` of a value of spec `whole` from slot `source` into slot `target`, as `rank` takes part in it.

    `mesh` and `rank` are those of the plan; with microbatches they count each worker `times` times, one after the other,
    and one microbatch's pieces all belong to that microbatch.
    """
    operations = {
        old.op
        for old, new in zip(before, after, strict=True)
        if isinstance(old, Partial) and not isinstance(new, Partial)
    }
    assert len(operations) <= 1, "the planner reduces by one operation at a time"
    wanted = box(whole.shape, after, mesh, rank)
    return Move(
        number,
        source,
        target,
        dead,
        box(whole.shape, before, mesh, rank),
        wanted,
        tuple(_of_worker(t, times) for t in sends(whole.shape, before, after, mesh, rank) if t.target != rank),
        tuple(_of_worker(t, times) for t in receives(whole.shape, before, after, mesh, rank)),
        operations.pop() if operations else None,
        extent(wanted or ()),
        whole,
        instruction,
    )


def _of_worker(transfer: Transfer, times: int) -> Transfer:
    """A transfer between ranks of a plan as one between workers."""
    if times == 1:
        return transfer
    assert transfer.source % times == transfer.target % times, "microbatches are joined before their cut changes"
    return Transfer(transfer.source // times, transfer.target // times, transfer.part)


def pieces(move: Move, held: Any, backend: Backend) -> list[tuple[int, Any]]:
    """(target rank, contiguous array of NumPy) for each transfer that this rank sends."""
    contiguous, to_host = backend.xp.ascontiguousarray, backend.to_host
    box = move.held
    if box is None:
        return []
    return [(t.target, to_host(contiguous(held[relative(t.part, box)]))) for t in move.sends]


def assemble(move: Move, held: Any, arrived: dict[int, Any], xp: Any) -> Any:
    """The moved value's local part, from the own part and the pieces by source rank.

    Contributions to the same part are reduced in order of rank, so that every replica adds in the same order.
    """
    own = move.instruction
    if move.wanted is None:
        return None
    if len(move.receives) == 1 and move.receives[0].part == move.wanted:
        (only,) = move.receives
        if only.source != only.target:
            return arrived[only.source]
        part = held[relative(only.part, move.held or ())]
        return part if part.nbytes == held.nbytes else part.copy()
    out = xp.empty(move.shape, move.spec.dtype.numpy)
    filled: set[Box] = set()
    for transfer in move.receives:
        if transfer.source == transfer.target:
            piece = held[relative(transfer.part, move.held or ())]
        else:
            piece = arrived[transfer.source]
        at = relative(transfer.part, move.wanted)
        if transfer.part not in filled:
            filled.add(transfer.part)
            out[at] = piece
        else:
            assert move.reduce is not None, f"{own.op}: two sources for one part"
            out[at] = reducer(move.reduce, xp)(out[at], piece)
    return out


def reducer(operation: str, xp: Any) -> Callable[..., Any]:
    """The ufunc of a partial placement's operation."""
    found: Callable[..., Any] = {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[operation]
    return found
