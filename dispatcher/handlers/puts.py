"""Puts: checked, placed by the session's rules and announced to the workers, which receive large data directly from the
client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.message_state import DONE, WAITING_CREDIT, WAITING_MARK, WAITING_WORKERS, MessageState
from gt.dispatcher.state.plan_cache import Entry
from gt.errors import ProtocolError
from gt.ir.signal_path import check_path
from gt.ir.spec import Spec, unpack_spec
from gt.sharding.partition import box, extent
from gt.sharding.placement import format_layout
from gt.wire import messages as m
from gt.wire.faults import Fault

from .new_tensors import check_new, fail_new

if TYPE_CHECKING:
    from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
    from gt.dispatcher.state.records import ClientRecord, WorkerRecord
    from gt.dispatcher.state.shared_state import DispatcherState


class PutHandler:
    """The puts of all clients."""

    def __init__(self, service: DispatcherState, meshes: SessionMeshes) -> None:
        self.service = service
        self.meshes = meshes

    def put(self, client: ClientRecord, message: m.Put) -> MessageState:
        """Place a tensor that a client puts. Raises `GTError`."""
        service = self.service
        if client.recovery.due and client.landing:
            return WAITING_MARK
        if not service.ready(client):
            return WAITING_WORKERS
        spec = unpack_spec(message.spec)
        path = check_path(message.signal)
        _check(client, message, spec)
        planner = self.meshes.planner(client)
        if isinstance(planner, MessageState):
            return planner
        mesh = planner.mesh
        if not service.has_credit(mesh):
            return WAITING_CREDIT
        resident = ResidentPlacement(planner.policy.put_layout(path, spec))
        sender = client.bulk if message.bulk else b""
        service.ledger.put(client.account, spec.nbytes)
        order = service.place_for(client, mesh)
        service.multicast(
            mesh,
            m.Store(
                order, client.number, message.tensor, message.spec, mesh.number, format_layout(resident.layout),
                message.signal, sender, message.data,
            ),
        )  # fmt: skip
        landing = set()
        if message.bulk:
            parts = []
            numbers = {worker.number: worker for worker in service.workers.values()}
            for rank, member in enumerate(mesh.members):
                part = box(spec.shape, resident.layout, mesh, rank)
                if part is not None and all(extent(part)):
                    landing.add(member)
                    parts.append([member, numbers[member].bulk, [list(pair) for pair in part]])
            service.send(client.identity, m.Cut(message.tensor, parts))
        client.table[message.tensor] = Entry(spec, mesh.number, resident, landing=frozenset(landing))
        if landing:
            client.landing.add(message.tensor)
        service.counters.puts += 1
        if service.recording is not None:
            service.recording.put(client, message)
        return DONE

    def landed(self, worker: WorkerRecord, message: m.Landed) -> ClientRecord | None:
        """A worker has received its part of a put. Returns the client, if the tensor still exists."""
        client = self.service.by_number.get(message.client)
        entry = client.table.get(message.tensor) if client else None
        if client is None or entry is None:
            return None
        left = entry.landing - {worker.number}
        client.table[message.tensor] = replace(entry, landing=left)
        if not left:
            client.landing.discard(message.tensor)
        return client

    def fail(self, client: ClientRecord, message: m.Put, fault: Fault) -> None:
        """Give a put a fault instead of a value; its client need not send the bytes."""
        fail_new(self.service, client, message.tensor, message.spec, fault)
        if message.bulk:
            self.service.send(client.identity, m.Cut(message.tensor, []))
        self.service.credit(client)


def _check(client: ClientRecord, message: m.Put, spec: Spec) -> None:
    check_new(client, message.tensor)
    if message.bulk and not client.bulk:
        raise ProtocolError("a put goes by the bulk socket only from a client that said which is its own")
    if not message.bulk and len(message.data) != spec.nbytes:
        raise ProtocolError(f"{spec} takes {spec.nbytes} bytes, not {len(message.data)}")
