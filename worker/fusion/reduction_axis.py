"""Reduction axes: which steps of a block belong in column reductions, and which in chains that reduce rows. Pure logic.

The others may be in either; no chain can be both. What only sums over first dimensions read is computed where they are, as the
product that is summed to the gradient of a layer norm's weight: so it is never stored. What a sum over rows depends on, or what
depends on one, stays together with that, and sums over first dimensions read it as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gt.ir.ops import OPS
from gt.worker.base.kernel_call import KernelCall

from .chain_shapes import ELEMENTWISE_FAMILIES, FusableStep, OperandViews, Shape, space_of


def reduction_axes(
    steps: Sequence[FusableStep],
    made: dict[int, int],
    wanted: set[int],
    able: Callable[[KernelCall], bool],
    views: OperandViews,
) -> list[int]:
    """For each step 1 if it is for a chain with columns, minus the number of joined dimensions if for a column reduction, else
    0."""
    spaces: list[tuple[Shape, int] | None] = []
    for step in steps:
        fits = step.call is not None and able(step.call)
        spaces.append(space_of(step.call, loose=True) if fits and step.call is not None else None)
    reduced = _reduced_columns(steps, made, wanted, spaces)
    if any(space is not None and space[1] > 0 for space in spaces):
        _reduced_rows(reduced, spaces, views)
    return reduced


def _reduced_columns(
    steps: Sequence[FusableStep], made: dict[int, int], wanted: set[int], spaces: Sequence[tuple[Shape, int] | None]
) -> list[int]:
    """Sums over first dimensions, and what nobody but they read, directly or not."""
    reduced = [0] * len(steps)
    if not any(space is not None and space[1] < 0 for space in spaces):
        return reduced
    readers: dict[int, list[int]] = {}
    for at, step in enumerate(steps):
        for slot in step.reads:
            if slot in made:
                readers.setdefault(made[slot], []).append(at)
    for at in range(len(steps) - 1, -1, -1):
        space, step = spaces[at], steps[at]
        if space is None or step.call is None:
            continue
        if space[1] < 0:
            reduced[at] = space[1]
        elif OPS[step.call.op].family in ELEMENTWISE_FAMILIES and step.writes not in wanted and at in readers:
            found = {reduced[reader] for reader in readers[at]}
            together = all(_same_space(space[0], spaces[reader], step, steps[reader]) for reader in readers[at])
            if together and len(found) == 1 and max(found) < 0:
                reduced[at] = found.pop()
    return reduced


def _same_space(shape: Shape, space: tuple[Shape, int] | None, one: FusableStep, two: FusableStep) -> bool:
    """Whether a step that works on a space works on this shape, in the same scope as another."""
    return space is not None and space[0] == shape and one.scope == two.scope


def _reduced_rows(reduced: list[int], spaces: Sequence[tuple[Shape, int] | None], views: OperandViews) -> None:
    """What has to do with a sum over rows, by values of one shape that are for no column reduction."""
    parent = list(range(len(reduced)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for at, space in enumerate(spaces):
        if space is None or reduced[at]:
            continue
        for other in views.behind(at):
            known = spaces[other]
            if known is not None and known[0] == space[0] and not reduced[other]:
                parent[root(at)] = root(other)
    rows = {root(at) for at, space in enumerate(spaces) if space is not None and space[1] > 0}
    for at, space in enumerate(spaces):
        if space is not None and not reduced[at] and root(at) in rows:
            reduced[at] = 1
