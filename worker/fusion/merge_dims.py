"""Merges the dimensions of a chain's space into as few as will do, for strips on a CPU and for generated kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

from .chain_shapes import border_of
from .chains import Chain


class MergedSpace(NamedTuple):
    """A chain's space with neighbouring dimensions merged where all sources allow it. Of the dimensions from `edge` on columns
    have one element; totals of those before. `patterns` say for each source (None: a number) of which dimensions it has all
    elements."""

    shape: tuple[int, ...]
    edge: int
    patterns: tuple[tuple[bool, ...] | None, ...]

    @property
    def column(self) -> tuple[int, ...]:
        return (*self.shape[: self.edge], *(1,) * (len(self.shape) - self.edge))


def merged_space(chain: Chain) -> MergedSpace:
    """The space of a chain in as few dimensions as will do."""
    ndim, shape = len(chain.shape), chain.shape
    border = border_of(ndim, chain.joined)
    fulls: list[list[bool] | None] = []
    for source in chain.sources:
        if isinstance(source.spec, str) or source.spec.size == 1:
            fulls.append(None)
        else:
            padded = (1,) * (ndim - source.spec.ndim) + source.spec.shape
            fulls.append([size == whole for size, whole in zip(padded, shape, strict=True)])
    lead: list[list[int]] = []
    trail: list[list[int]] = []
    for axis in range(ndim):
        groups = lead if axis < border else trail
        if shape[axis] == 1:
            continue
        if groups and all(full is None or full[axis] == full[groups[-1][-1]] for full in fulls):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not lead:
        lead.append([])
    together = [*lead, *trail]
    return MergedSpace(
        tuple(math.prod(shape[axis] for axis in group) for group in together),
        len(lead),
        tuple(None if full is None else tuple(not group or full[group[0]] for group in together) for full in fulls),
    )
