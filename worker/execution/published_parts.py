"""The parts of published tensors that a worker keeps in memory: readers on this worker share its arrays, with no copy or file.

Files have everything, too, so this may be gone at any time: whoever finds nothing here reads them, and gets the same bits, in the
same order in memory. What lies in its client's memory is left out. A worker whose memory is limited, or a GPU's, keeps nothing:
what is held there stands in the way of eviction and of CUDA graphs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.spec import Spec, unpack_spec
from gt.sharding.partition import Box, box
from gt.sharding.placement import Mesh, parse_layout
from gt.wire import messages as m
from gt.wire.shared_memory.lending import lent_place

from .tensor_store import TensorStore

HOLDER_MESH: Final = -1
"""The mesh of what is kept, in its charge: it goes with no client's mesh."""


class KeptParts(NamedTuple):
    """What is kept of one version: who may read it, and by the place of each tensor its dtype and shape, and which part is here.
    The arrays are in the store, as if they were a client's."""

    readers: frozenset[str]
    boxes: dict[int, tuple[Spec, Box]]


class PublishedParts:
    """What a worker keeps of all versions, by the number in whose place it does."""

    def __init__(self, stored: TensorStore) -> None:
        self.stored = stored
        self.kept: dict[int, KeptParts] = {}

    def keep(self, message: m.WritePart, mesh: Mesh, rank: int) -> None:
        """Keep the parts of a version that is being written. What does not lie in memory in the order in which a file has it is
        left out: a reader's sums could have other bits."""
        stored = self.stored
        if not message.holder or stored.limiter is not None or stored.backend.streams is not None:
            return
        kinds = [(unpack_spec(spec), parse_layout(layout)) for spec, layout in message.kinds]
        parts = [box(spec.shape, layout, mesh, rank) for spec, layout in kinds]
        store = stored.tensors.get(message.client, {})
        kept = self.kept.setdefault(message.holder, KeptParts(frozenset(message.readers), {}))
        held = stored.tensors.setdefault(message.holder, {})
        stored.memory.note(message.holder, stored.memory.of(message.client)._replace(mesh=HOLDER_MESH))
        for tensor, position, kind in zip(message.tensors, message.positions, message.which, strict=True):
            value, part = store.get(tensor), parts[kind]
            if type(value) is np.ndarray and value.flags.c_contiguous and part is not None and not _is_lent(value):
                held[position] = value
                kept.boxes[position] = kinds[kind][0], part

    def give(self, message: m.LoadPart, part: Box) -> bool:
        """Give a reader the array that is kept, if that is just what it asks for and may read."""
        kept = self.kept.get(message.holder)
        if kept is None or kept.readers.isdisjoint(message.readers):
            return False
        if kept.boxes.get(message.position) != (unpack_spec(message.spec), part):
            return False
        array, memory = self.stored.tensors[message.holder][message.position], self.stored.memory
        if memory.limited and not memory.admits(message.client, array.nbytes, self.stored.tensors):
            return False  # the error comes when it is read
        self.stored.share_load(message.client, message.tensor, array)
        return True

    def forget(self, holder: int) -> None:
        """Keep a version no more."""
        self.kept.pop(holder, None)


def _is_lent(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array lies in the memory of its client, which may write to it once its session is over."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return lent_place(array) is not None
