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

from gt.daemon.host import available_memory
from gt.ir.spec import unpack_spec
from gt.sharding.partition import box, holders
from gt.sharding.placement import Mesh, parse_layout
from gt.wire import messages as m
from gt.worker.base.events import MarkedPart, MarkIn, MarkWork
from gt.worker.spill.memory_accounting import Origins, SignalsByOffset

from .deferred_checks import DeferredChecks
from .mark_contents import NOWHERE, device_contents, host_contents, restore_contents
from .marked_tensors import MarkedTensors
from .tensor_store import TensorStore


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
        return MarkWork(message, rank, partial(host_contents, values, client, origins, elsewhere))

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

    def restore_parts(self, message: m.RestoreParts, mesh: Mesh, rank: int) -> MarkWork | None:
        """Read for a client the parts that this worker is to have of a mark, whoever wrote them; None until all is said."""
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
        self.restoring[message.client] = message.mark
        return MarkWork(message, rank, parts=self.announced.pop(message.client))

    def receive(self, event: MarkIn) -> m.MarkRestored | None:
        """What a mark has for a client was read, or cannot be; None if the client was forgotten meanwhile."""
        mark, client, contents, fault = event
        if self.restoring.get(client) != mark:
            return None
        del self.restoring[client]
        self.stored.forget(client)
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
        self.marked.forget(client)
