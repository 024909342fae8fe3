"""A session's mesh: the workers that it has, and how its config makes and changes the mesh.

A config takes effect between two plans of its session. A refused config changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from gt.dispatcher.cost.cost_model import host_of
from gt.dispatcher.cost.nvlink_groups import groups_of, side_by_side
from gt.dispatcher.cost.worker_grid import grid_of
from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.dispatcher.session_plans.plan_selection import PlanSelection
from gt.dispatcher.state.config_resolution import ConfigChange, SharedComputation
from gt.dispatcher.state.events import Reload, Remesh, Send
from gt.dispatcher.state.message_state import (
    DONE,
    WAITING_IDLE,
    WAITING_WORKERS,
    MessageState,
)
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord, MeshRecord, TableSurvey
from gt.dispatcher.state.shared_state import DispatcherState, releases
from gt.dispatcher.state.survivors import Survivors
from gt.dispatcher.state.worker_duty import IN_SERVICE, kind_of
from gt.sharding.config_meshes import show_mesh
from gt.sharding.device_names import names_of
from gt.sharding.placement import Mesh
from gt.turns import ITEMS_PER_TURN
from gt.wire import messages as m
from gt.wire.faults import error_of

from .mesh_registry import MAX_TOLD, MeshRegistry
from .mesh_requests import MeshRequests
from .tensor_migration import TensorMigration
from .worker_choice import WorkerChoice

if TYPE_CHECKING:
    from gt.sharding.config import Config


class SessionMeshes:
    """The meshes of all sessions."""

    def __init__(self, service: DispatcherState, plan_selection: PlanSelection) -> None:
        self.service = service
        self.plan_selection = plan_selection
        self.jobs = plan_selection.jobs
        self.workers = WorkerChoice(service)
        self.requests = MeshRequests(service, self.jobs, self.workers)
        self.registry = MeshRegistry(service)
        self.migration = TensorMigration(service, self.jobs, self.registry)

    def planner(self, client: ClientRecord) -> Planner | MessageState:
        """The session's planner, with the mesh that its config asks for on the present workers, or what it waits for."""
        if client.fault is not None:
            raise error_of(*client.fault)
        if client.planner is not None:
            return client.planner
        config = client.config or self.service.config
        found = self._planner(client, config)
        if isinstance(found, MessageState):
            return found
        planner, record = found
        self.registry.join(record)
        client.config, client.planner = config, planner
        return planner

    def _planner(
        self, client: ClientRecord, config: Config | None, to: int = -1
    ) -> tuple[Planner, MeshRecord] | MessageState:
        """A planner for a config on the present workers, or on the one that is named, with a mesh of which they have not been
        told yet; or what it waits for. Everything is looked at anew after a wait: workers may have joined or left, or been given
        to other sessions."""
        present = self.workers.allowed(client)
        if not present:
            raise error_of("WorkerLost", "no worker has joined this service: start one with `gt worker --address …`")
        resolution = None if config is None else self.requests.resolution(client, config)
        axes = self.requests.axes(client, config)
        if isinstance(axes, MessageState):
            return axes
        pinned = [] if config is None else self.requests.pinned(client, config)
        if isinstance(pinned, MessageState):
            return pinned
        size = 1
        for length in axes.values():
            size *= length
        workers = {worker.number: worker.facts for worker in present}
        order: tuple[int, ...] | None = ()
        if pinned:
            numbers = pinned
        elif size == 1 and to in workers:
            numbers = [to]
        elif size == 1:
            numbers = self.workers.in_order(client, present)[:1]
        else:
            busy = self.requests.resolution(client, config).busiest_last(axes) if config is not None else None
            if busy is not None and not busy.over:
                return self.jobs.compute(client, busy)
            order = None if busy is None else busy.result()
            groups = groups_of(workers)
            hosts = {number: host_of(facts) for number, facts in workers.items()}
            joined = side_by_side(sorted(workers), workers, groups)
            numbers = list(grid_of(joined, hosts, groups, tuple(axes.values()), order))
        blocks = 0 if config is None else config.block_count
        record = self.registry.record_of(client, axes, tuple(numbers), blocks, order or ())
        policy = Policy(record.mesh, {})
        if resolution is not None:
            names = [names_of(worker.number, worker.facts) for worker in record.workers]
            if not pinned:
                self.requests.check_pins(client, resolution, names)
            known = resolution.policy(record.mesh, names)
            if not known.over:
                return self.jobs.compute(client, known)
            policy = known.result()
        record.mesh = replace(record.mesh, number=next(self.service.mesh_numbers))
        return Planner(record.mesh, policy.copy(record.mesh), record.speeds), record

    def configure(self, client: ClientRecord, message: m.Configure) -> MessageState:
        """Apply a session's own config, which a job reads."""
        from gt.sharding.config import Config  # heavy, and most services never need it

        change = client.change
        if change is None or change.message is not message:
            own = SharedComputation(Config.from_wire_in_turns(message.config))
            change = client.change = ConfigChange(message, own)
        assert change.own is not None
        if not change.own.over:
            return self.jobs.compute(client, change.own)
        state = self._reconfigure(client, change, change.own.result())
        if state is not DONE:
            return state
        client.own, client.change = change.own.result(), None
        self.take_sharing(client, client.own)
        assert client.mesh is not None
        axes = dict(zip(client.mesh.axes, client.mesh.sizes, strict=True))
        self.service.send(client.identity, m.Answer(message.request, {"mesh": axes}))
        return DONE

    def take_sharing(self, client: ClientRecord, config: Config) -> None:
        """Take what a config of a program says of its class and weight, but for what an operator has ordered."""
        priority = None if "priority" in client.ordered else config.priority
        weight = None if "weight" in client.ordered else config.weight
        if priority is None and weight is None:
            return
        client.priority = client.priority if priority is None else Priority(priority)
        client.weight = client.weight if weight is None else weight
        self.service.pacer.declare(client.number, client.priority, client.weight)

    def reconfigure(self, client: ClientRecord, message: Reload) -> MessageState:
        """Shard a session by the service's present config."""
        if client.change is None or client.change.message is not message:
            client.change = ConfigChange(message)
        state = self._reconfigure(client, client.change, client.own)
        if state is DONE:
            client.change = None
        return state

    def remesh(self, client: ClientRecord, message: Remesh) -> MessageState:
        """Make a session's mesh anew on the workers that are in service now, if it would be another one. Its tensors move."""
        if client.moving is not None:
            return self._remeshed(client, message, self.migration.move_on(client, client.moving))
        client.stays = ""
        if client.planner is None or (client.fault is not None and not client.displaced):
            return DONE  # the next tensor finds the workers that there are then
        if self.service.is_gathering:
            return WAITING_WORKERS
        config, mesh = client.config, client.planner.mesh
        if message.to >= 0 and not self._may_go(client, mesh, message.to):
            return self._stays(client)
        if self.service.in_service and not client.displaced:
            axes = self.requests.axes(client, config)
            if isinstance(axes, MessageState):
                return axes
            stay = all(worker.duty is IN_SERVICE for worker in self.service.meshes[mesh.number].workers)
            same = axes == dict(zip(mesh.axes, mesh.sizes, strict=True))
            if (
                (same and stay) if message.to < 0 else not same
            ):  # it is not moved to where it would have several workers
                return self._stays(client)
        return self._remeshed(client, message, self._shard_by(client, config, message.to))

    def _stays(self, client: ClientRecord) -> MessageState:
        """A session keeps its mesh; what was seen of its tensors, if another one was thought of before, counts no more."""
        client.survey = None
        return DONE

    def _may_go(self, client: ClientRecord, mesh: Mesh, to: int) -> bool:
        """Whether a session on one worker, which may have changed since it was told to go on on another one, can do so now."""
        known = {worker.number: kind_of(worker) for worker in self.workers.allowed(client)}
        here = kind_of(self.service.meshes[mesh.number].workers[0]) if len(mesh.members) == 1 else None
        return not client.displaced and to not in mesh.members and here is not None and known.get(to) == here

    def _remeshed(self, client: ClientRecord, message: Remesh, state: MessageState) -> MessageState:
        """Tell if a session is on another mesh now, and have a mark taken: from one before, what follows would be computed on the
        former mesh."""
        if state is DONE and client.mesh is not None:
            client.recovery.due = client.recovery.resends
            mesh = show_mesh(dict(zip(client.mesh.axes, client.mesh.sizes, strict=True)))
            text = f"client {client.number} has the mesh {mesh} on workers {list(client.mesh.members[:MAX_TOLD])}: {message.why}"
            self.service.log("info", text, "remesh", client.number)
        return state

    def _reconfigure(self, client: ClientRecord, change: ConfigChange, own: Config | None) -> MessageState:
        """Shard a session by another config from here on: its own, over the service's.

        The config takes effect when no plan of the session is in flight. The session's plans are dropped, its parameters can
        be bound anew, and if its mesh changes, its tensors move. Nothing changes before that begins, so a refused config
        leaves the session as it was.
        """
        if client.moving is not None:
            return self.migration.move_on(client, client.moving)
        config = self.requests.over_service(client, change, own)
        return config if isinstance(config, MessageState) else self._shard_by(client, config)

    def _shard_by(self, client: ClientRecord, config: Config | None, to: int = -1) -> MessageState:
        """Shard a session by a config from here on, on the workers that are in service now, or on the one that is named."""
        if self.service.is_gathering:  # with those that are coming the config may fit
            return WAITING_WORKERS
        old = client.mesh
        if old is not None and self.service.meshes[old.number].pending:
            return WAITING_IDLE
        if client.survey is None:
            client.survey = SharedComputation(_survey(client.table))
        if not client.survey.over:
            return self.jobs.compute(client, client.survey)
        survey = client.survey.result()
        if survey.landing:
            client.survey = None
            return WAITING_IDLE
        found = self._planner(client, config, to)
        if isinstance(found, MessageState):
            return found
        planner, record = found
        client.survey = None
        client.fault = None
        if old is not None:
            self.plan_selection.drop_plans(client)
            same = replace(record.mesh, number=old.number) == old
            if not same and survey.live:
                self.registry.join(record)
                return self.migration.set_out(client, config, planner, old, survey.live)
            if same:
                planner = Planner(old, planner.policy, planner.speeds)
            else:
                self.service.drop_mesh(self.service.meshes[old.number])
        if old is None or not same:
            self.registry.join(record)
        client.config, client.planner, client.table = config, planner, survey.unbound
        client.displaced = False
        return DONE

    def displace(self, client: ClientRecord, mesh: Mesh, left: Survivors) -> None:
        """Leave a session with what a lost worker has left of its mesh: tensors that are whole on a part of it, `mesh`, where
        nothing is computed. The workers of that part free its other tensors, and other workers forget the session."""
        assert client.planner is not None
        old = self.service.meshes[client.planner.mesh.number]
        self.plan_selection.drop_plans(client)
        client.survey = None
        record = self.registry.record_of(client, dict(zip(mesh.axes, mesh.sizes, strict=True)), mesh.members)
        record.mesh = mesh
        self.registry.join(record)
        self.service.out.extend(Send(record.identities, release) for release in releases(client.number, left.gone))
        others = tuple(worker.identity for worker in old.workers if worker.number not in mesh.members)
        if others:
            self.service.out.append(Send(others, m.Forget(client.number)))
        for plan in old.plans:
            self.service.multicast(old.mesh, m.DropPlan(plan))
        self.service.drop_mesh(old)
        client.planner = Planner(mesh, Policy(mesh, {}), record.speeds)
        client.displaced = True
        client.left_behind |= set(mesh.members)


def _survey(table: dict[int, Entry]) -> Generator[None, None, TableSurvey]:
    """A look at all tensors of a session whose queue waits for it, so that none comes or goes, in turns."""
    live: list[int] = []
    landing = False
    unbound: dict[int, Entry] = {}
    known: dict[Entry, Entry] = {}
    for at, (tensor, entry) in enumerate(table.items(), 1):
        if not at % ITEMS_PER_TURN:
            yield
        if entry.fault is None:
            live.append(tensor)
            landing = landing or bool(entry.landing)
            if entry not in known:
                known[entry] = replace(entry, resident=replace(entry.resident, bound=False))
            entry = known[entry]
        unbound[tensor] = entry
    return TableSurvey(live, landing, unbound)
