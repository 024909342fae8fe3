"""What a worker gets of a mark from its peers: tensors of which it sees no file, as a new machine in the place of a lost one, and
of which the same parts lie in folders of other workers.

Each *parcel* is some tensors of one rank of the mark: a worker that sees the file of that rank reads them, and packs them as
bytes in one tensor, as which they move in a plan. So all that is known of moves holds for them. Of parts that several ranks had,
those who have sent least give the next. State and pure functions; `handlers/recovery.py` sends the messages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gt.ir.spec import Spec
from gt.sharding.partition import Box, box, extent, intersect
from gt.sharding.placement import Layout, Mesh
from gt.wire.faults import Fault

from .plan_cache import Entry
from .session_marks import ENTRIES_PER_TURN

PARCEL_BYTES: Final = 64 << 20
"""The most bytes of a parcel; a larger part travels alone."""
MAX_TENSORS_OF_PARCEL: Final = 1024
MAX_PACKED: Final = 2
"""How many parcels for one worker are packed, and have yet to leave, at a time: they take memory."""
MAX_GIVERS: Final = 8
"""Of the ranks that had the same part, so many may give it."""
RANKS_PER_TURN: Final = 64


class Parcel(NamedTuple):
    """Tensors of a rank of the mark, which the worker `source` reads."""

    rank: int
    source: int
    tensors: list[int]


@dataclass(slots=True, eq=False)
class Delivery:
    """What one worker gets. `fault`: why it cannot read it."""

    fault: Fault
    seeking: int = 0
    """How many jobs have yet to find out what it needs."""
    left: deque[Parcel] = field(default_factory=deque)
    """What has not been asked for."""
    asked: dict[int, Parcel] = field(default_factory=dict)
    """What is being packed, by the id of the tensor that it becomes."""
    packed: deque[tuple[int, int, Parcel]] = field(default_factory=deque)
    """What waits for credit to leave: the ids, bytes and parcels."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """What has left: the ids, and the ranks that had it."""

    told: bool = False
    """Whether the worker was told to restore the mark with what has left."""

    @property
    def is_whole(self) -> bool:
        """Whether all that it needs has left."""
        return not (self.seeking or self.left or self.asked or self.packed)


class Needed(NamedTuple):
    """What a worker needs of peers. `gone`: the tensors of which some part is at no peer and in no file in its own folder."""

    parcels: list[Parcel]
    gone: list[int]


class Givers(NamedTuple):
    """Who may send a worker what. `own`: the ranks of the mark whose files are in the worker's folder; `readers`: for each rank a
    worker with another folder, in which its file is, if there is one."""

    own: Set[int]
    readers: Sequence[int | None]


class _Need(NamedTuple):
    """A part that a worker needs: its bytes, and the ranks whose readers may give it."""

    nbytes: int
    ranks: tuple[int, ...]


def givers(folders: Sequence[str], members: Sequence[tuple[int, str]], worker: int, unreadable: Set[int]) -> Givers:
    """Who may send a worker what, where these are the folders of the mark's ranks, and the members of the session's mesh with
    theirs."""
    own = next((folder for number, folder in members if number == worker), "")
    readers: dict[str, list[int]] = {}
    for number, folder in members:
        if folder and folder != own:
            readers.setdefault(folder, []).append(number)
    found = [
        there[rank % len(there)] if (there := readers.get(folder)) and rank not in unreadable else None
        for rank, folder in enumerate(folders)
    ]
    return Givers({rank for rank, folder in enumerate(folders) if folder and folder == own}, found)


def needed_parts(
    entries: Collection[tuple[int, Entry]],
    mark: Mesh,
    mesh: Mesh,
    rank: int,
    layout_of: Callable[[Layout], Layout],
    who: Givers,
) -> Generator[None, None, Needed]:
    """What a rank of a mesh needs of tensors of a mark, found out in turns. What is in its own folder is left out, unless that is
    all, because then some file there is damaged. `layout_of` says how a tensor of the mark lies on the mesh."""
    for sees in (who.own, frozenset[int]()):
        found = yield from _needed_parts(entries, mark, mesh, rank, layout_of, who, sees)
        if found.parcels or found.gone:
            break
    return found


def _needed_parts(
    entries: Collection[tuple[int, Entry]],
    mark: Mesh,
    mesh: Mesh,
    rank: int,
    layout_of: Callable[[Layout], Layout],
    who: Givers,
    sees: Set[int],
) -> Generator[None, None, Needed]:
    """What is needed, but for what is in files of ranks that it `sees`."""
    kinds: dict[tuple[Spec, Layout], list[_Need] | None] = {}
    given = dict.fromkeys(range(len(mark.members)), 0)
    found = Needed([], [])
    current: dict[int, tuple[Parcel, int]] = {}
    for at, (tensor, entry) in enumerate(entries, 1):
        if not at % ENTRIES_PER_TURN:
            yield
        if entry.fault is not None:
            continue
        kind = entry.spec, entry.resident.layout
        if kind not in kinds:
            wanted = box(entry.spec.shape, layout_of(kind[1]), mesh, rank)
            kinds[kind] = yield from _needs(*kind, mark, wanted, who, sees)
        needs = kinds[kind]
        if needs is None:
            found.gone.append(tensor)
        for need in needs or ():
            giver = min(need.ranks, key=given.__getitem__)
            given[giver] += need.nbytes
            parcel, nbytes = current.get(giver, (None, 0))
            if parcel is None or nbytes + need.nbytes > PARCEL_BYTES or len(parcel.tensors) == MAX_TENSORS_OF_PARCEL:
                source = who.readers[giver]
                assert source is not None, "who gives has a reader"
                parcel, nbytes = Parcel(giver, source, []), 0
                found.parcels.append(parcel)
            parcel.tensors.append(tensor)
            current[giver] = parcel, nbytes + need.nbytes
    return found


def _needs(
    spec: Spec, layout: Layout, mark: Mesh, wanted: Box | None, who: Givers, sees: Set[int]
) -> Generator[None, None, list[_Need] | None]:
    """The parts of a tensor that a rank needs of peers to have a box of it; None if some part is nowhere."""
    if wanted is None or not all(extent(wanted)):
        return []
    holders: dict[Box, list[int]] = {}
    for rank in range(len(mark.members)):
        if not (rank + 1) % RANKS_PER_TURN:
            yield
        held = box(spec.shape, layout, mark, rank)
        if held is not None and intersect(held, wanted) is not None:
            holders.setdefault(held, []).append(rank)
    found = []
    for held, ranks in holders.items():
        if any(rank in sees for rank in ranks):
            continue
        able = tuple(rank for rank in ranks if who.readers[rank] is not None)[:MAX_GIVERS]
        if able:
            found.append(_Need(math.prod(extent(held)) * spec.dtype.itemsize, able))
        elif not any(rank in who.own for rank in ranks):
            return None
    return found
