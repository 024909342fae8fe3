"""How a mesh is recorded, with the speeds of its workers and links, and made known to its members."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gt.dispatcher.cost.cost_model import measured_mesh
from gt.dispatcher.cost.hosts import links_of
from gt.dispatcher.cost.nccl_cards import cards_of
from gt.dispatcher.cost.nvlink_groups import groups_of
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.records import ClientRecord, MeshRecord, WorkerRecord
from gt.dispatcher.state.session_marks import FrozenShape
from gt.dispatcher.state.shared_state import DispatcherState
from gt.dispatcher.state.worker_duty import kind_of
from gt.errors import ProtocolError
from gt.wire import messages as m

MAX_TOLD: Final = 16
"""The most workers that a line of the log names."""


class MeshRegistry:
    """The meshes that there are, and those that are about to be."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service

    def record_of(
        self,
        client: ClientRecord,
        axes: dict[str, int],
        numbers: tuple[int, ...],
        blocks: int = 0,
        order: tuple[int, ...] = (),
    ) -> MeshRecord:
        """A mesh of these workers without a number yet. `blocks` is the number of a deterministic session, `order` that of the
        axes by which the workers stand in it (empty: as they are named)."""
        by_number = {worker.number: worker for worker in self.service.workers.values()}
        members = [by_number[number] for number in numbers]
        groups = groups_of({number: worker.facts for number, worker in by_number.items()})
        facts = [{**worker.facts, "group": groups.get(worker.number, "")} for worker in members]
        links = links_of(
            {number: worker.facts for number, worker in by_number.items()},
            {number: worker.links for number, worker in by_number.items()},
        )
        mesh, speeds = measured_mesh(0, axes, numbers, facts, blocks, links)
        if client.recovery.resends:  # what is computed again has the same bits only on shards of the same sizes
            shapes, key = client.recovery.shapes, (mesh.axes, mesh.sizes, blocks, order)
            if key not in shapes:
                shapes[key] = FrozenShape(mesh.weights, speeds, mesh.hosts, mesh.network)
                self.service.unsaved.append(client)
            shape = shapes[key]
            mesh = replace(mesh, weights=shape.weights, hosts=shape.hosts, network=shape.network)
            speeds = shape.speeds
        identities = tuple(worker.identity for worker in members)
        cards = () if blocks else cards_of([worker.facts for worker in members])
        return MeshRecord(client.number, mesh, speeds, members, identities, cards)

    def join(self, record: MeshRecord) -> None:
        """Tell the members of a mesh about it."""
        mesh = record.mesh
        self.service.add_mesh(record)
        if mesh.hosts:
            bandwidth, latency = mesh.network
            lie = [
                f"{axis} over {link.hosts}" if link.hosts > 1 else f"{axis} within one"
                for axis, link in zip(mesh.axes, record.speeds.links, strict=True)
            ]
            text = (
                f"client {record.client}: workers {list(mesh.members[:MAX_TOLD])} on hosts {list(mesh.hosts[:MAX_TOLD])} "
                f"({', '.join(lie)}); the slowest link between two of these has {bandwidth / 1e6:.0f} MB/s and "
                f"{latency / 1e3:.0f} µs"
            )
            self.service.log("info", text, client=record.client)
        kind = kind_of(record.workers[0]) if len(record.workers) == 1 else None
        self.service.by_number[record.client].recovery.alone_on = kind
        body = [
            list(mesh.axes),
            list(mesh.sizes),
            list(mesh.members),
            [list(w) for w in mesh.weights],
            list(record.cards),
            *([list(mesh.hosts), list(mesh.network)] if mesh.hosts else ()),
        ]
        self.service.multicast(mesh, m.DefineMesh(mesh.number, body, [worker.address for worker in record.workers]))
        if self.service.is_charged(record):
            self.service.multicast(mesh, self.service.charge(record))

    def introduce(self, worker: WorkerRecord, message: m.UniqueId) -> None:
        """Pass the id by which the members of a group find each other on to them. Raises `ProtocolError`."""
        record = self.service.meshes.get(message.mesh)
        if record is None:
            return  # it was dropped meanwhile
        members = record.mesh.members
        if any(rank >= len(members) for rank in message.ranks) or not message.ranks:
            raise ProtocolError(f"mesh {message.mesh} has no ranks {message.ranks}")
        group = [members[rank] for rank in message.ranks]
        if group[0] != worker.number:
            raise ProtocolError(
                f"worker {worker.number} is not the first of ranks {message.ranks} of mesh {message.mesh}"
            )
        there = self.service.workers
        to = tuple(other.identity for other in record.workers if other.number in group and other.identity in there)
        self.service.out.append(Send(to, message))
