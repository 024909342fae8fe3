"""The marks of which a worker has a part: what it keeps of them, and how a session gets that again.

A worker whose values are in the host's memory keeps references to them: nothing overwrites an array that somebody else has. One
whose memory is limited, or a GPU's, keeps nothing of them, knows which tensors were in the last one (`marked_tensors.py`), and
reads its file again. Part of the worker's core: no file is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gt.daemon.host import available_memory
from gt.errors import WorkerError
from gt.ir.spec import unpack_spec
from gt.sharding.partition import box, holders
from gt.sharding.placement import Mesh, parse_layout
from gt.wire import messages as m
from gt.wire.faults import error_of
from gt.worker.base.events import MarkedPart, MarkIn, MarkPacked, MarkWork
from gt.worker.memory_limit.limiter import SpillCause
from gt.worker.spill.memory_accounting import Origins, SignalsByOffset
from gt.worker.spill.spill_file import SpilledValue

from .deferred_checks import DeferredChecks
from .mark_contents import NOWHERE, device_contents, host_contents, restore_contents
from .marked_tensors import MarkedTensors
from .snapshot_parts import settled_fault
from .tensor_store import Poison, TensorStore


class PinnedMark(NamedTuple):
    """What a worker keeps of a mark: its rank then, the values by tensor, and the signals in which they were made."""

    rank: int
    values: Mapping[int, Any]
    made: Mapping[int, SignalsByOffset]


class Marks:
    """The marks of a worker, by their numbers."""

    def __init__(self, stored: TensorStore) -> None:
        self.stored = stored
        self.pinned: dict[int, PinnedMark] = {}
        self.in_graphs: Collection[int] = ()
        """The addresses of memory to which CUDA graphs write."""
        self.marked = MarkedTensors()
        """What the last marks of clients had, of a worker that keeps no references."""
        self.restoring: dict[int, int] = {}
        """By client: the mark that is being read for it."""
        self.announced: dict[int, dict[int, MarkedPart]] = {}
        """By client: what it is to have of a mark, as long as more of that is to be said."""
        self.packing: set[tuple[int, int]] = set()
        """By client and tensor: what is being packed for peers."""
        self.shared: dict[int, dict[int, int]] = {}
        """By a mark that is to be taken: the tensors that other ranks write in place of this one, and which ranks."""

    def share(self, message: m.ShareMark, mesh: Mesh, rank: int) -> None:
        """Leave tensors of the next mark to other ranks that hold the same, and write those that these leave to this one."""
        groups = [
            [
                each
                for each in holders(parse_layout(layout), mesh, rank)
                if message.folders[each] == message.folders[rank]
            ]
            for layout in message.layouts
        ]
        elsewhere = self.shared.setdefault(message.mark, {})
        for tensor, turn, kind in zip(message.tensors, message.turns, message.which, strict=True):
            writer = groups[kind][turn % len(groups[kind])]
            if writer != rank:
                elsewhere[tensor] = writer

    def take(self, message: m.TakeMark, rank: int, checks: DeferredChecks | None) -> MarkWork:
        """Keep what a client has now, to be written. Raises `MemoryError` and `OSError`."""
        stored, client, elsewhere = self.stored, message.client, self.shared.pop(message.mark, NOWHERE)
        if stored.limiter is not None or stored.backend.staging is not None:
            identify = partial(self.marked.identify, client, message.mesh)
            contents = device_contents(stored, client, checks, elsewhere, identify, self.in_graphs)
            return MarkWork(message, rank, lambda: contents)
        values = dict(stored.tensors.get(client, {}))
        nbytes = sum(getattr(value, "nbytes", 0) for value in values.values())
        if nbytes > available_memory() // 2:  # new values do not take the place of those that are kept
            raise MemoryError(f"a mark of the session may keep {nbytes:,} bytes, and not twice as much memory is free")
        made = dict(stored.origins.made.get(client, {}))
        self.pinned[message.mark] = PinnedMark(rank, values, made)
        origins = Origins()
        origins.made[client] = made
        if stored.backend.torch is not None:
            values = {tensor: self._on_host(value) for tensor, value in values.items()}
        return MarkWork(message, rank, partial(host_contents, values, client, origins, elsewhere))

    def _on_host(self, value: Any) -> Any:
        """An array as one of the host; whatever stands in for one as it is."""
        return self.stored.backend.to_host(value) if hasattr(value, "dtype") else value

    def drop(self, mark: int) -> None:
        """Keep nothing of a mark any more."""
        self.pinned.pop(mark, None)

    def restore(self, message: m.RestoreMark, rank: int) -> MarkWork | m.MarkRestored:
        """Give a client what a mark has for a rank: at once, or when that is read. Mark 0 has nothing."""
        client, pinned = message.client, self.pinned.get(message.mark)
        self.marked.forget(client)
        if message.mark and (pinned is None or pinned.rank != rank):
            self.restoring[client] = message.mark
            return MarkWork(message, rank)
        self.stored.forget(client)
        self.stored.tensors[client] = {} if pinned is None else dict(pinned.values)
        if pinned is not None and pinned.made:
            self.stored.origins.made[client] = dict(pinned.made)
        return m.MarkRestored(message.mark, client, [])

    def restore_parts(
        self, message: m.RestoreParts, mesh: Mesh, rank: int, checks: DeferredChecks | None = None
    ) -> MarkWork | m.MarkRestored | None:
        """Read for a client the parts that this worker is to have of a mark, whoever wrote them; None until all is said. What
        peers have sent of it is here."""
        weights = tuple(map(tuple, message.weights))
        sizes = tuple(map(len, weights))
        marked = Mesh(0, tuple(map(str, range(len(sizes)))), sizes, tuple(range(math.prod(sizes))), weights)
        kinds = []
        for raw, before, after in message.kinds:
            spec, held = unpack_spec(raw), parse_layout(before)
            boxes = [box(spec.shape, held, marked, each) for each in range(len(marked.members))]
            kinds.append(MarkedPart(spec, box(spec.shape, parse_layout(after), mesh, rank), boxes))
        self.marked.forget(message.client)
        parts = self.announced.setdefault(message.client, {})
        parts.update(zip(message.tensors, map(kinds.__getitem__, message.which), strict=True))
        if message.more:
            return None
        parts = self.announced.pop(message.client)
        try:
            packed = [self._packed(message.client, tensor, checks) for tensor in message.packed]
        except Exception as error:  # noqa: BLE001 — a peer's fault, or no memory on the host for it
            return m.MarkRestored(message.mark, message.client, list(self.stored.fault(error)))
        self.stored.free(message.client, message.packed)
        self.restoring[message.client] = message.mark
        return MarkWork(message, rank, parts=parts, sent=[*zip(message.ranks, packed, strict=True)])

    def _packed(self, client: int, tensor: int, checks: DeferredChecks | None) -> np.ndarray[Any, Any]:
        """The bytes that a peer has sent. Raises the fault with which they came, and `MemoryError` and `OSError`."""
        stored = self.stored
        value = stored.tensors.get(client, {}).get(tensor)
        if value is None:
            raise WorkerError("what a peer has packed has not come")
        fault = value.fault if isinstance(value, Poison) else settled_fault(stored, checks, (client, tensor))
        if fault is not None:
            raise error_of(*fault)
        if type(value) is SpilledValue:
            assert stored.limiter is not None, "only what it put out is out"
            stored.limiter.cause = SpillCause(client)
            value = stored.limiter.fetched(value, (client, tensor), stored.tensors, stored.queue)
        array: np.ndarray[Any, Any] = stored.backend.to_host(value)
        return array

    def pack(self, message: m.PackParts) -> MarkWork:
        """Pack tensors of a mark for a peer that sees no file with them, as they are in memory, or else in the file."""
        self.packing.add((message.client, message.packed))
        pinned = self.pinned.get(message.mark)
        if pinned is None or pinned.rank != message.rank:
            return MarkWork(message, message.rank)
        values = {tensor: pinned.values[tensor] for tensor in message.tensors if tensor in pinned.values}
        origins = Origins()
        origins.made[message.client] = dict(pinned.made)
        return MarkWork(message, message.rank, partial(host_contents, values, message.client, origins, kept=False))

    def receive_packed(self, event: MarkPacked) -> m.PartsPacked | None:
        """What was packed for a peer is here until it moves there; None if the client was forgotten meanwhile."""
        message, array, fault = event
        key = message.client, message.packed
        if key not in self.packing:
            return None
        self.packing.discard(key)
        nbytes = 0
        if array is not None:
            try:
                self.stored.tensors.setdefault(message.client, {})[message.packed] = self.stored.received(*key, array)
                nbytes = array.nbytes
            except Exception as error:  # noqa: BLE001 — no memory for it
                fault = self.stored.fault(error)
        return m.PartsPacked(*key, nbytes, list(fault or ()))

    def receive(self, event: MarkIn) -> m.MarkRestored | None:
        """What a mark has for a client was read, or cannot be; None if the client was forgotten meanwhile."""
        mark, client, contents, fault = event
        if self.restoring.get(client) != mark:
            return None
        del self.restoring[client]
        packed = {
            tensor: value for tensor, value in self.stored.tensors.get(client, {}).items() if tensor >= m.FIRST_PACKED
        }
        self.stored.forget(client)
        if packed:  # for peers that have yet to get it
            self.stored.tensors[client] = packed
        if contents is not None:
            try:
                restore_contents(self.stored, client, contents)
            except Exception as error:  # noqa: BLE001 — no memory for it: the session cannot go on here
                self.stored.forget(client)
                kind, text = self.stored.fault(error)
                fault = kind, f"a mark of the session: {text}"
        return m.MarkRestored(mark, client, list(fault or ()))

    def leave(self) -> None:
        """Keep nothing of the marks of a dispatcher that is gone."""
        self.pinned.clear()
        self.shared.clear()
        self.marked.clients.clear()

    def forget(self, client: int) -> None:
        """Drop what is being read for a client that is gone. What marks have is theirs."""
        self.restoring.pop(client, None)
        self.announced.pop(client, None)
        self.packing = {key for key in self.packing if key[0] != client}
        self.marked.forget(client)
