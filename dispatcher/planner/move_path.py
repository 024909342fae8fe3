"""The layouts that a value goes through when it moves: one after the other, each by one collective."""

from __future__ import annotations

from collections.abc import Iterator

from gt.ir.spec import Spec
from gt.sharding.collectives import MIN_TWO_STEP_BYTES
from gt.sharding.placement import REPLICATE, Layout, Partial, Placement, Replicate, Shard


def move_layouts(spec: Spec, before: Layout, after: Layout, timed: bool) -> Iterator[Layout]:
    """The layouts that a value goes through: at the beginning or end those in time, where microbatches are joined or cut."""
    if not timed:
        yield from _path(spec, before, after)
        return
    (*old, then), (*new, now) = before, after
    if then == now:
        if isinstance(then, Shard) and any(_recuts(a, b, then.dim) for a, b in zip(old, new, strict=True)):
            yield (*old, REPLICATE)
            yield from _path(spec, (*old, REPLICATE), (*new, REPLICATE))
            yield after
        else:
            yield from _path(spec, before, after)
    elif isinstance(then, Replicate):
        yield from _path(spec, before, (*new, then))
        yield after
    else:  # joined first, also where it is cut again: a microbatch cannot wait for all others
        yield (*old, REPLICATE)
        yield from _path(spec, (*old, REPLICATE), (*new, REPLICATE))
        if not isinstance(now, Replicate):
            yield after


def _recuts(before: Placement, after: Placement, dim: int) -> bool:
    return before != after and any(isinstance(p, Shard) and p.dim == dim for p in (before, after))


def _path(spec: Spec, before: Layout, after: Layout) -> Iterator[Layout]:
    """For a large value: first changes that need no exchange, then all-reduces by themselves, which have better algorithms
    than a combined exchange (`gt/sharding/collectives.py`), then the rest."""
    if before == after:
        return
    pairs = list(zip(before, after, strict=True))
    if spec.nbytes >= MIN_TWO_STEP_BYTES and any(isinstance(a, Partial) and isinstance(b, Replicate) for a, b in pairs):
        cut = tuple(b if isinstance(a, Replicate) else a for a, b in pairs)
        reduced = tuple(
            b if isinstance(a, Partial) and isinstance(b, Replicate) else c
            for (a, b), c in zip(pairs, cut, strict=True)
        )
        yield from (step for step in (cut, reduced) if step not in (before, after))
    yield after
