"""Which workers write the parts of a mark that several of them hold.

Of those who hold the same part of a tensor, and keep marks in the same folder, one writes it, and all read it there. In another
folder, as on another machine, there is a copy of its own. They write in turns, so that all have as much to do; and a tensor that
was in the mark before keeps its turn, because who has written it need not do so again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from gt.bounds import MAX_IDS
from gt.sharding.placement import Layout, Mesh, Replicate, Shard, format_layout
from gt.wire import messages as m

from .plan_cache import Entry
from .session_marks import SessionMark

MAX_SHARED_TENSORS: Final = 1 << 12
"""Sessions with more tensors have all of theirs written by all who hold them: to look at each takes too long for one event."""
MIN_BYTES: Final = 1 << 12
"""Parts of fewer bytes are written by all who hold them: reading them elsewhere would take as long."""


def share_parts(mark: SessionMark, before: SessionMark | None) -> list[m.ShareMark]:
    """What tells the workers of a mark who writes what several of them hold. Each such tensor is given a turn: that which it had
    in the mark `before`, if it was there."""
    folders = folder_numbers(mark.folders)
    if len({*folders}) == len(mark.mesh.members) or len(mark.table) > MAX_SHARED_TENSORS:
        return []
    chosen = {entry for entry in {*mark.table.values()} if _is_shared(entry, mark.mesh, folders)}
    if not chosen:
        return []
    tensors = [tensor for tensor, entry in mark.table.items() if entry in chosen]
    mark.turns = _turns(tensors, mark.table, {} if before is None else before.turns)
    found = []
    for some in [tensors[at : at + MAX_IDS] for at in range(0, len(tensors), MAX_IDS)]:
        layouts: dict[Layout, int] = {}
        which = [layouts.setdefault(mark.table[tensor].resident.layout, len(layouts)) for tensor in some]
        turns = [mark.turns[tensor] for tensor in some]
        printed = [*map(format_layout, layouts)]
        found.append(m.ShareMark(mark.number, mark.mesh.number, list(folders), some, turns, which, printed))
    return found


def folder_numbers(folders: Sequence[str]) -> tuple[int, ...]:
    """For each rank the first one with the same folder; itself if its folder is not known."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(folder, rank) if folder else rank for rank, folder in enumerate(folders))


def _is_shared(entry: Entry, mesh: Mesh, folders: tuple[int, ...]) -> bool:
    """Whether several workers with one folder hold the same part of such a tensor, and it is worth a look elsewhere."""
    layout = entry.resident.layout
    if entry.fault is not None or not any(isinstance(placement, Replicate) for placement in layout):
        return False
    cuts = math.prod(size for placement, size in zip(layout, mesh.sizes, strict=True) if isinstance(placement, Shard))
    return entry.spec.nbytes >= cuts * MIN_BYTES and _is_held_twice(layout, mesh.sizes, folders)


@lru_cache(maxsize=256)
def _is_held_twice(layout: Layout, sizes: tuple[int, ...], folders: tuple[int, ...]) -> bool:
    """Whether several ranks of one folder hold the same part."""
    seen: set[object] = set()
    for coordinates, folder in zip(itertools.product(*map(range, sizes)), folders, strict=True):
        part = [
            0 if isinstance(placement, Replicate) else at for placement, at in zip(layout, coordinates, strict=True)
        ]
        if (key := (folder, *part)) in seen:
            return True
        seen.add(key)
    return False


def _turns(tensors: Sequence[int], table: Mapping[int, Entry], before: Mapping[int, int]) -> dict[int, int]:
    """The turns of tensors: those that they had, and for others the next ones, the largest tensors first."""
    fresh = sorted(
        (tensor for tensor in tensors if tensor not in before), key=lambda tensor: -table[tensor].spec.nbytes
    )
    found = {tensor: before[tensor] for tensor in tensors if tensor in before}
    return found | {tensor: turn for turn, tensor in enumerate(fresh)}
