"""Moves the tensors of a session to another mesh, by plans that are used once (`mesh_migration.py`)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from gt.dispatcher.jobs.job_scheduler import JobScheduler
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.state.config_resolution import SharedComputation
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.message_state import DONE, WAITING_MIGRATION, MessageState
from gt.dispatcher.state.records import ClientRecord, MeshMigration
from gt.dispatcher.state.shared_state import MESH_CREDITS, DispatcherState, releases
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec
from gt.sharding.placement import Mesh, format_layout
from gt.wire import messages as m

from .mesh_migration import LiveTensor, first_few, layout_on, meeting, migration_plans
from .mesh_registry import MeshRegistry

if TYPE_CHECKING:
    from gt.ir.instruction import Plan
    from gt.sharding.config import Config


class TensorMigration:
    """The sessions whose tensors are on their way to other meshes."""

    def __init__(self, service: DispatcherState, jobs: JobScheduler, registry: MeshRegistry) -> None:
        self.service = service
        self.jobs = jobs
        self.registry = registry

    def set_out(
        self, client: ClientRecord, config: Config | None, planner: Planner, old: Mesh, live: list[int]
    ) -> MessageState:
        """Begin to move a session's tensors, those of them that have values, to another mesh."""
        members = meeting(old, planner.mesh)
        both = None
        if members:
            record = self.registry.record_of(client, {"workers": len(members)}, members)
            both = record.mesh = replace(record.mesh, number=next(self.service.mesh_numbers))
            self.registry.join(record)
        client.moving = MeshMigration(config, planner, both, live[::-1])
        return self.move_on(client, client.moving)

    def move_on(self, client: ClientRecord, moving: MeshMigration) -> MessageState:
        """Move the next tensors if there are credits, and have a job move more. Done when all have arrived."""
        old, new, both = client.mesh, moving.planner.mesh, moving.both
        assert old is not None
        records = [self.service.meshes[mesh.number] for mesh in (old, new, both) if mesh is not None]
        if moving.left and all(len(record.pending) < MESH_CREDITS for record in records):
            self._move_some(client, moving, old)
            if moving.left and all(len(record.pending) < MESH_CREDITS for record in records):
                self.jobs.compute(client, SharedComputation(_nothing()))
        if moving.left or any(record.pending for record in records):
            return WAITING_MIGRATION
        leaving = tuple(worker.identity for worker in records[0].workers if worker.number not in new.members)
        if leaving:
            self.service.out.extend(Send(leaving, release) for release in releases(client.number, list(client.table)))
        for record in records:
            if record.mesh is not new:
                self.service.drop_mesh(record)
        client.config, client.planner, client.moving = moving.config, moving.planner, None
        client.displaced = False
        return DONE

    def _move_some(self, client: ClientRecord, moving: MeshMigration, old: Mesh) -> None:
        """Move as many tensors as may be gathered at one time."""
        new, both = moving.planner.mesh, moving.both
        waiting = ((tensor, client.table[tensor]) for tensor in reversed(moving.left))
        live = first_few(LiveTensor(tensor, entry.spec, entry.resident.layout) for tensor, entry in waiting)
        del moving.left[-len(live) :]
        for plan, tensors in migration_plans(live, old, new, both):
            self.carry(client, plan, tensors)
        for each in live if both is not None else ():
            if each.spec.size == 0:  # no piece of it travels, from which those who join could have it
                layout = format_layout(layout_on(new, old, each.layout))
                raw = pack_spec(each.spec)
                order = self.service.place(new)
                self.service.multicast(
                    new, m.Store(order, client.number, each.tensor, raw, new.number, layout, [], b"", b"")
                )
        for each in live:
            entry = client.table[each.tensor]
            resident = replace(entry.resident, layout=layout_on(new, old, each.layout), bound=False)
            client.table[each.tensor] = replace(entry, mesh=new.number, resident=resident, root=None)

    def carry(self, client: ClientRecord, plan: Plan, tensors: list[int]) -> None:
        """Issue a plan for a single use, which moves tensors and leaves them under the same ids."""
        mesh = self.service.meshes[plan.mesh].mesh
        number = next(self.service.plan_numbers)
        self.service.multicast(mesh, m.DefinePlan(number, pack_plan(plan)))
        order = self.service.place(mesh)
        if self.service.recording is not None:
            self.service.recording.carried(client, number, plan, mesh, order)
        self.service.multicast(
            mesh, m.Execute(order, number, client.number, 0, tensors, [], list(range(len(tensors))), [])
        )
        self.service.multicast(mesh, m.DropPlan(number))


def _nothing() -> Generator[None, None, None]:
    """A computation that is over at its first turn."""
    yield from ()
