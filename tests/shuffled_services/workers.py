"""Workers of a simulated service: their cores, and the bulk data that their shells would carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Array

from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import BulkOut, Forgotten, ToDispatcher, ToPeer
from gt.worker.core import WorkerCore as Worker
from gt.worker.execution.done_reports import DoneReports

from .programs import PUBLISHER

if TYPE_CHECKING:
    from .network import Network


class WorkerPeer:
    """A worker's core, and the bulk streams that its shell would carry."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.core = Worker(backend("cpu"), reports=DoneReports(network.random.randint(1, 8)))
        self.granted: set[tuple[int, int]] = set()
        self.offered: dict[tuple[int, int], Array] = {}
        self.switched = False
        network.topics[name] = set()
        network.say(name, m.Hello(m.VERSION, "worker", {"address": name, "bulk": name.encode()}))

    def hear(self, source: str, item: Any) -> None:
        if isinstance(item, m.Goodbye):
            self.network.kill(self.name)
            return
        if isinstance(item, m.Subscribe | m.Unsubscribe):
            self.network.send(self.name, PUBLISHER, (item.ticket, isinstance(item, m.Subscribe)))
            return
        if isinstance(item, m.Switch):
            self.switched = True
            return
        if isinstance(item, tuple) and item[0] == "grant":
            array = self.offered.pop(item[1], None)
            if array is not None:
                self.network.send(self.name, source, ("data", item[1][1], self.core.number, array))
            return
        for send in self.core.handle(item, 0.0):
            if isinstance(send, ToDispatcher):
                self.network.say(self.name, send.message)
            elif isinstance(send, BulkOut):
                self.part(send)
            elif isinstance(send, Forgotten):
                self.offered = {key: array for key, array in self.offered.items() if key[0] != send.client}
            elif isinstance(send, ToPeer):
                self.network.send(self.name, send.address, send.message)
        self.core.check()
        self.granted &= set(self.core.stored.expecting)
        for key, (sender, known, part) in self.core.stored.expecting.items():
            if key not in self.granted:
                self.granted.add(key)
                self.network.send(self.name, sender.decode(), ("wanted", key, known, part))

    def report(self) -> bool:
        """Say what was finished, if it has not been said."""
        said = self.core.reports.take()
        for done in said:
            self.network.say(self.name, done)
        return bool(said)

    def part(self, send: BulkOut) -> None:
        if send.array.size and self.network.random.random() < 0.5:
            self.offered[send.key[1], send.key[2]] = send.array.copy()
            self.network.say(self.name, send.message._replace(bulk=True))
        else:
            self.network.say(self.name, send.message._replace(data=send.array.tobytes()))

    def empty(self) -> None:
        """Nothing of any client is left."""
        core = self.core
        assert core.running is None
        left = (
            core.stored.tensors,
            core.programs.plans,
            core.programs.compiled,
            core.meshes,
            core.moves.arrived,
            core.stored.expecting,
            core.stored.unwanted,
            core.marks.pinned,
            core.marks.restoring,
        )
        assert not any(left), left
        assert not core.queue
        assert not self.offered
