"""A look at all tensors of a session, in turns: how many bytes they have, which are the largest and where those come from.

What changes meanwhile may be seen or not: a tensor that is made after the look began is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from heapq import nlargest
from itertools import chain
from typing import Any, Final, NamedTuple

from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord, MeshRecord
from gt.ir.spec import Spec
from gt.sharding.partition import copies
from gt.sharding.placement import Layout, Mesh, format_layout

from .births import Births, LivingBirths

MAX_TENSOR_ROWS: Final = 30
"""Tensors of one client that are told of."""
TENSORS_PER_TURN: Final = 512
"""How many tensors are looked at in one turn, each of which takes up to a microsecond."""
LONG_PLAN: Final = 1024
"""The instructions of a plan that is searched in a turn of its own."""


class TensorLook(NamedTuple):
    """What a session has."""

    nbytes: int
    """Over all workers; memory at which several tensors look counts once."""
    rows: list[list[Any]]
    """Its largest tensors, as `telemetry.Tensors` says them; of those that are equally large, the latest."""


def look(
    client: ClientRecord, meshes: Mapping[int, MeshRecord], births: Births, now: int
) -> Generator[None, None, TensorLook]:
    """Looks at all tensors that a session has now, in turns. Of the births only those are kept that have made one of them. The
    session may get another table meanwhile, so that nobody holds the one before."""
    left = list(client.table)
    living = yield from births.begin()
    largest = _LargestTensors(meshes)
    while left:
        few = left[-TENSORS_PER_TURN:]
        del left[-TENSORS_PER_TURN:]
        largest.add(few, client.table)
        living.note(few)
        if left:
            yield
    rows = yield from _rows(largest.found, client, living, now)
    yield from births.keep(living)
    return TensorLook(largest.nbytes, rows)


class _LargestTensors:
    """The largest of the tensors that have been looked at, and the bytes of all of them."""

    def __init__(self, meshes: Mapping[int, MeshRecord]) -> None:
        self.meshes = meshes
        self.nbytes = 0
        self.roots: set[Any] = set()
        """Memory at which several tensors look, as far as it has been counted."""
        self.found: list[tuple[int, int, Entry]] = []
        """Bytes, number and entry of the largest, these first."""

    def add(self, few: list[int], table: Mapping[int, Entry]) -> None:
        """Look at some tensors, as far as they are still there."""
        counts = Counter(map(table.get, few))
        least = self.found[-1][0] if len(self.found) == MAX_TENSOR_ROWS else 0
        large: dict[Entry, int] = {}
        for entry, count in counts.items():
            if entry is None:
                continue
            record = self.meshes.get(entry.mesh)
            nbytes = (
                0
                if record is None or entry.fault is not None
                else _held(entry.spec, entry.resident.layout, record.mesh)
            )
            if entry.root is None:
                self.nbytes += count * nbytes
            elif entry.root not in self.roots and record is not None:
                self.roots.add(entry.root)
                self.nbytes += _held(entry.root.spec, entry.root.layout, record.mesh)
            if nbytes >= least:
                large[entry] = nbytes
        if large:
            fresh = ((large[entry], number, entry) for number in few if (entry := table.get(number)) in large)
            self.found = nlargest(MAX_TENSOR_ROWS, chain(self.found, fresh))


def _held(spec: Spec, layout: Layout, mesh: Mesh) -> int:
    """Bytes over all workers."""
    return spec.nbytes * copies(layout, mesh)


def _rows(
    largest: list[tuple[int, int, Entry]], client: ClientRecord, living: LivingBirths, now: int
) -> Generator[None, None, list[list[Any]]]:
    """What is said of these tensors, as far as they are still there, found out in turns."""
    rows: list[list[Any]] = []
    for nbytes, number, entry in largest:
        if living.length_of(number) > LONG_PLAN:
            yield
        if number not in client.table:
            continue
        place = living.place(number, now)
        rows.append([number, str(entry.spec), format_layout(entry.resident.layout), nbytes, *place])
    return rows
