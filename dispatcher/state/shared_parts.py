"""Which workers write the parts of a mark that several of them hold.

Of those who hold the same part of a tensor, and keep marks in the same folder, one writes it, and all read it there. In another
folder, as on another machine, there is a copy of its own. They write in turns, so that all have as much to do; and a tensor that
was in the mark before keeps its turn, because who has written it need not do so again.
"""

from __future__ import annotations

import itertools
import math
import operator
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
_LAYOUT: Final = operator.attrgetter("resident.layout")
_NBYTES: Final = operator.attrgetter("spec.nbytes")


def share_parts(mark: SessionMark, before: SessionMark | None) -> list[m.ShareMark]:
    """What tells the workers of a mark who writes what several of them hold. Each such tensor is given a turn: that which it had
    in the mark `before`, if it was there."""
    folders = folder_numbers(mark.folders)
    if len({*folders}) == len(mark.mesh.members) or len(mark.table) > MAX_SHARED_TENSORS:
        return []
    table = dict(mark.table.items())
    layouts = [*map(_LAYOUT, table.values())]
    least = {layout: _shared_from(layout, mark.mesh, folders) for layout in {*layouts}}
    large = map(operator.ge, map(_NBYTES, table.values()), map(least.__getitem__, layouts))
    tensors = [tensor for tensor in itertools.compress(table, large) if table[tensor].fault is None]
    if not tensors:
        return []
    mark.turns = _turns(tensors, table, {} if before is None else before.turns)
    found = []
    for some in [tensors[at : at + MAX_IDS] for at in range(0, len(tensors), MAX_IDS)]:
        places: dict[Layout, int] = {}
        entries = map(table.__getitem__, some)
        which = [places.setdefault(layout, len(places)) for layout in map(_LAYOUT, entries)]
        turns = [*map(mark.turns.__getitem__, some)]
        printed = [*map(format_layout, places)]
        found.append(m.ShareMark(mark.number, mark.mesh.number, list(folders), some, turns, which, printed))
    return found


def folder_numbers(folders: Sequence[str]) -> tuple[int, ...]:
    """For each rank the first one with the same folder; itself if its folder is not known."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(folder, rank) if folder else rank for rank, folder in enumerate(folders))


def _shared_from(layout: Layout, mesh: Mesh, folders: tuple[int, ...]) -> float:
    """From how many bytes on a tensor with such a layout is worth a look elsewhere; infinite if no two workers with one folder
    hold the same part."""
    whole = tuple(isinstance(placement, Replicate) for placement in layout)
    if not any(whole) or not _is_held_twice(whole, mesh.sizes, folders):
        return math.inf
    return MIN_BYTES * math.prod(
        size for placement, size in zip(layout, mesh.sizes, strict=True) if isinstance(placement, Shard)
    )


@lru_cache(maxsize=256)
def _is_held_twice(whole: tuple[bool, ...], sizes: tuple[int, ...], folders: tuple[int, ...]) -> bool:
    """Whether several ranks of one folder hold the same part, if it is `whole` along these axes."""
    seen: set[object] = set()
    for coordinates, folder in zip(itertools.product(*map(range, sizes)), folders, strict=True):
        part = [0 if here else at for here, at in zip(whole, coordinates, strict=True)]
        if (key := (folder, *part)) in seen:
            return True
        seen.add(key)
    return False


def _turns(tensors: Sequence[int], table: Mapping[int, Entry], before: Mapping[int, int]) -> dict[int, int]:
    """The turns of tensors: those that they had, and for others the next ones, the largest tensors first."""
    kept = [tensor for tensor in tensors if tensor in before]
    fresh = [tensor for tensor in tensors if tensor not in before]
    nbytes = dict(zip(fresh, map(_NBYTES, map(table.__getitem__, fresh)), strict=True))
    fresh.sort(key=nbytes.__getitem__, reverse=True)
    return dict(zip(kept, map(before.__getitem__, kept), strict=True)) | dict(zip(fresh, itertools.count()))
