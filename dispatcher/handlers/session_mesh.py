"""A session's mesh: the workers that it has, and how its config makes and changes the mesh.

A config takes effect between two plans of its session. A refused config changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gt.dispatcher.cost.cost_model import devices_of, host_of, measured_mesh, paces
from gt.dispatcher.cost.hosts import links_of
from gt.dispatcher.cost.nccl_cards import cards_of
from gt.dispatcher.cost.nvlink_groups import groups_of, side_by_side
from gt.dispatcher.cost.pinned_workers import pinned_workers
from gt.dispatcher.cost.worker_grid import grid_of
from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.pacing.soonest_end import WorkerOffer, soonest
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import Policy
from gt.dispatcher.state.config_resolution import ConfigChange, ConfigResolution, SharedComputation
from gt.dispatcher.state.events import Reload, Remesh, Send
from gt.dispatcher.state.message_state import (
    DONE,
    WAITING_CONFIG,
    WAITING_IDLE,
    WAITING_MIGRATION,
    WAITING_WORKERS,
    MessageState,
)
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord, MeshMigration, MeshRecord, TableSurvey, WorkerRecord
from gt.dispatcher.state.session_marks import FrozenShape
from gt.dispatcher.state.shared_state import MESH_CREDITS, DispatcherState, releases
from gt.dispatcher.state.survivors import Survivors
from gt.dispatcher.state.worker_duty import IN_SERVICE, kind_of
from gt.errors import ConfigError, ProtocolError
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec
from gt.sharding.config_meshes import show_mesh
from gt.sharding.device_names import KINDS, names_of, show_devices
from gt.sharding.placement import PINNED_AXIS, Mesh, format_layout
from gt.snapshot_files.snapshot_names import published_by
from gt.turns import ITEMS_PER_TURN
from gt.wire import messages as m
from gt.wire.faults import error_of

from .job_scheduler import JOB_NAMES, Job
from .mesh_migration import LiveTensor, first_few, layout_on, meeting, migration_plans
from .plan_selection import PlanSelection

if TYPE_CHECKING:
    from gt.ir.instruction import Plan
    from gt.sharding.config import Config


READ_SECONDS: Final = 0.25
"""What it counts for if a worker has to read what another one keeps in memory: it decides only where a session begins."""
MAX_TOLD: Final = 16
"""The most workers that a line of the log names."""


class SessionMeshes:
    """The meshes of all sessions."""

    def __init__(self, service: DispatcherState, plan_selection: PlanSelection) -> None:
        self.service = service
        self.plan_selection = plan_selection
        self.resolution: ConfigResolution | None = None
        """What the service's config asks for."""

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
        self.join(record)
        client.config, client.planner = config, planner
        return planner

    def _planner(
        self, client: ClientRecord, config: Config | None, to: int = -1
    ) -> tuple[Planner, MeshRecord] | MessageState:
        """A planner for a config on the present workers, or on the one that is named, with a mesh of which they have not been
        told yet; or what it waits for. Everything is looked at anew after a wait: workers may have joined or left, or been given
        to other sessions."""
        present = self.allowed(client)
        if not present:
            raise error_of("WorkerLost", "no worker has joined this service: start one with `gt worker --address …`")
        resolution = None if config is None else self._resolution(client, config)
        axes = self._axes(client, config)
        if isinstance(axes, MessageState):
            return axes
        pinned = [] if config is None else self._pinned(client, config)
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
            numbers = self._in_order(client, present)[:1]
        else:
            busy = self._resolution(client, config).busiest_last(axes) if config is not None else None
            if busy is not None and not busy.over:
                return self.wait(client, busy)
            order = None if busy is None else busy.result()
            groups = groups_of(workers)
            hosts = {number: host_of(facts) for number, facts in workers.items()}
            joined = side_by_side(sorted(workers), workers, groups)
            numbers = list(grid_of(joined, hosts, groups, tuple(axes.values()), order))
        blocks = 0 if config is None else config.block_count
        record = self._record(client, axes, tuple(numbers), blocks, order or ())
        policy = Policy(record.mesh, {})
        if resolution is not None:
            names = [names_of(worker.number, worker.facts) for worker in record.workers]
            if not pinned:
                self._check_pins(client, resolution, names)
            known = resolution.policy(record.mesh, names)
            if not known.over:
                return self.wait(client, known)
            policy = known.result()
        record.mesh = replace(record.mesh, number=next(self.service.mesh_numbers))
        return Planner(record.mesh, policy.copy(record.mesh), record.speeds), record

    def _in_order(self, client: ClientRecord, present: list[WorkerRecord]) -> list[int]:
        """Workers in the order in which a session takes them: those that it has, and then those on which its work ends first."""
        here = client.mesh.members if client.mesh else ()
        offers = self._offers(client, present)
        best = soonest(self.service.pacer, client.program.principal, client.number, offers, self.service.now)
        return list(dict.fromkeys([*(number for number in here if number in offers), *best]))

    def _pinned(self, client: ClientRecord, config: Config) -> list[int] | MessageState:
        """The workers of a session whose config only pins signals to devices, the one for all else first; none for another
        config. Raises `ConfigError` for a device that no worker has, but for one of which the session may know that whoever had
        it is gone."""
        pins = self._resolution(client, config).pins()
        if not pins.over:
            return self.wait(client, pins)
        devices, alone = pins.result()
        if not devices or not alone:
            return []
        present = self.allowed(client)
        names = {worker.number: names_of(worker.number, worker.facts) for worker in present}
        found, missing = pinned_workers(devices, names, self._in_order(client, present))
        missing = [device for device in missing if not _may_lack(client, device, names)]
        if missing:
            granted = "" if len(present) == len(self.service.in_service) else f", and {self._granted(client)}"
            text = f"no worker that the session may use is {missing[0]}{granted}"
            raise ConfigError(f"{devices[missing[0]]}: {text}; allowed: {show_devices(names.values(), MAX_TOLD)}")
        return found

    def _check_pins(self, client: ClientRecord, resolution: ConfigResolution, names: list[tuple[str, ...]]) -> None:
        """Raise `ConfigError` for a device that no worker of the mesh has which a config asks for besides, and for the first
        time."""
        for device, where in resolution.pins().result().devices.items():
            absent = (device not in KINDS or len(names) == 1) and not any(device in each for each in names)
            if absent and not _may_lack(client, device, [each.number for each in self.allowed(client)]):
                text = f"no worker of the session's mesh is {device}; allowed: {show_devices(names, MAX_TOLD)}"
                raise ConfigError(f"{where}: {text}")

    def _offers(self, client: ClientRecord, present: list[WorkerRecord]) -> dict[int, WorkerOffer]:
        """What workers offer to a session that takes one of them: their speeds, and whether they keep what it subscribes to."""
        first = client.queue[0] if client.queue else None
        held = None
        if isinstance(first, m.Restore) and first.published:
            held = self.service.held.get((published_by(str(first.published[0])), first.name, first.parts))
        offers = {}
        pace = paces(devices_of([worker.facts for worker in present]))
        for worker, speed in zip(present, pace, strict=True):
            seconds = READ_SECONDS if held is not None and worker.identity not in held.workers else 0.0
            offers[worker.number] = WorkerOffer(speed / worker.slowed, seconds, worker.health.is_strained)
        return offers

    def _axes(self, client: ClientRecord, config: Config | None) -> dict[str, int] | MessageState:
        """The axes that a config asks for on the workers in service, or what the session waits for."""
        if config is None:
            return {"workers": 1}
        pinned = self._pinned(client, config)
        if isinstance(pinned, MessageState):
            return pinned
        if pinned:
            return {PINNED_AXIS: len(pinned)} if len(pinned) > 1 else {"workers": 1}
        present = len(self.allowed(client))
        shape = self._resolution(client, config).axes(present)
        if not shape.over:
            return self.wait(client, shape)
        try:
            return shape.result()
        except ConfigError as error:
            if present == len(self.service.in_service):
                raise
            raise ConfigError(f"{error} (of {len(self.service.in_service)} here, {self._granted(client)})") from None

    def _granted(self, client: ClientRecord) -> str:
        name = client.program.principal
        return f"{name} may use {self.service.limits.of(name).workers} with all its sessions"

    def allowed(self, client: ClientRecord) -> list[WorkerRecord]:
        """The workers in service that a session may use: if its principal is granted fewer, those that the principal uses, and
        as many others as it may use besides, the least used ones."""
        present, principal = self.service.in_service, client.program.principal
        most = self.service.limits.of(principal).workers
        if most is None or most >= len(present):
            return present
        numbers = {worker.number for worker in present}
        shared: Counter[int] = Counter()
        used: set[int] = set()
        for record in self.service.meshes.values():
            if record.client == client.number:
                continue
            shared.update(record.mesh.members)
            if self.service.by_number[record.client].program.principal == principal:
                used.update(numbers.intersection(record.mesh.members))
        own = {member for record in self.service.meshes_of.get(client.number, ()) for member in record.mesh.members}
        others = sorted(numbers - used, key=lambda number: (number not in own, shared[number], number))
        allowed = used | {*others[: max(0, most - len(used))]}
        return [worker for worker in present if worker.number in allowed]

    def _resolution(self, client: ClientRecord, config: Config) -> ConfigResolution:
        """What a config asks for, as far as it is known."""
        if config is self.service.config:
            if self.resolution is None or self.resolution.config is not config:
                self.resolution = ConfigResolution(config)
            return self.resolution
        if client.resolution is None or client.resolution.config is not config:
            client.resolution = ConfigResolution(config)
        return client.resolution

    def wait(self, client: ClientRecord, computation: SharedComputation[Any]) -> MessageState:
        """Let a job of the client go on with a computation. A job that goes on with an earlier one ends the wait as well."""
        jobs, what = self.plan_selection.jobs, JOB_NAMES[WAITING_CONFIG]
        if not jobs.has(client.number, what):
            jobs.add(Job(client.program, client.number, what, computation.turns(), lambda _: None))
        return WAITING_CONFIG

    def _record(
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

    def configure(self, client: ClientRecord, message: m.Configure) -> MessageState:
        """Apply a session's own config, which a job reads."""
        from gt.sharding.config import Config  # heavy, and most services never need it

        change = client.change
        if change is None or change.message is not message:
            own = SharedComputation(Config.from_wire_in_turns(message.config))
            change = client.change = ConfigChange(message, own)
        assert change.own is not None
        if not change.own.over:
            return self.wait(client, change.own)
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

    def adopt(self, config: Config) -> Generator[None, None, bool]:
        """Adopt a new config of the service if it fits the workers."""
        resolution = ConfigResolution(config)
        try:
            while workers := len(self.service.in_service):
                shape = resolution.axes(workers)
                if shape.over:
                    shape.result()
                    break
                yield from shape.turns()
        except ConfigError as error:
            self.service.log("error", f"the config stays as it was: {error}", "reload")
            return False
        self.service.config, self.resolution = config, resolution
        return True

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
            return self._remeshed(client, message, self._move_on(client, client.moving))
        client.stays = ""
        if client.planner is None or (client.fault is not None and not client.displaced):
            return DONE  # the next tensor finds the workers that there are then
        if self.service.is_gathering:
            return WAITING_WORKERS
        config, mesh = client.config, client.planner.mesh
        if message.to >= 0 and not self._may_go(client, mesh, message.to):
            return self._stays(client)
        if self.service.in_service and not client.displaced:
            axes = self._axes(client, config)
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
        known = {worker.number: kind_of(worker) for worker in self.allowed(client)}
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

    def _over_service(
        self, client: ClientRecord, change: ConfigChange, own: Config | None
    ) -> Config | MessageState | None:
        """A session's own config merged over the service's present one, or what it waits for."""
        base = self.service.config
        if base is None or own is None:
            return base or own
        if change.merged is None or change.base is not base:
            change.base, change.merged = base, SharedComputation(base.overlay_in_turns(own))
        return change.merged.result() if change.merged.over else self.wait(client, change.merged)

    def _reconfigure(self, client: ClientRecord, change: ConfigChange, own: Config | None) -> MessageState:
        """Shard a session by another config from here on: its own, over the service's.

        The config takes effect when no plan of the session is in flight. The session's plans are dropped, its parameters can
        be bound anew, and if its mesh changes, its tensors move. Nothing changes before that begins, so a refused config
        leaves the session as it was.
        """
        if client.moving is not None:
            return self._move_on(client, client.moving)
        config = self._over_service(client, change, own)
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
            return self.wait(client, client.survey)
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
                self.join(record)
                return self._set_out(client, config, planner, old, survey.live)
            if same:
                planner = Planner(old, planner.policy, planner.speeds)
            else:
                self.service.drop_mesh(self.service.meshes[old.number])
        if old is None or not same:
            self.join(record)
        client.config, client.planner, client.table = config, planner, survey.unbound
        client.displaced = False
        return DONE

    def _set_out(
        self, client: ClientRecord, config: Config | None, planner: Planner, old: Mesh, live: list[int]
    ) -> MessageState:
        """Begin to move a session's tensors, those of them that have values, to another mesh."""
        members = meeting(old, planner.mesh)
        both = None
        if members:
            record = self._record(client, {"workers": len(members)}, members)
            both = record.mesh = replace(record.mesh, number=next(self.service.mesh_numbers))
            self.join(record)
        client.moving = MeshMigration(config, planner, both, live[::-1])
        return self._move_on(client, client.moving)

    def _move_on(self, client: ClientRecord, moving: MeshMigration) -> MessageState:
        """Move the next tensors if there are credits, and have a job move more. Done when all have arrived."""
        old, new, both = client.mesh, moving.planner.mesh, moving.both
        assert old is not None
        records = [self.service.meshes[mesh.number] for mesh in (old, new, both) if mesh is not None]
        if moving.left and all(len(record.pending) < MESH_CREDITS for record in records):
            self._move_some(client, moving, old)
            if moving.left and all(len(record.pending) < MESH_CREDITS for record in records):
                self.wait(client, SharedComputation(_nothing()))
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

    def displace(self, client: ClientRecord, mesh: Mesh, left: Survivors) -> None:
        """Leave a session with what a lost worker has left of its mesh: tensors that are whole on a part of it, `mesh`, where
        nothing is computed. The workers of that part free its other tensors, and other workers forget the session."""
        assert client.planner is not None
        old = self.service.meshes[client.planner.mesh.number]
        self.plan_selection.drop_plans(client)
        client.survey = None
        record = self._record(client, dict(zip(mesh.axes, mesh.sizes, strict=True)), mesh.members)
        record.mesh = mesh
        self.join(record)
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


def _may_lack(client: ClientRecord, device: str, numbers: Iterable[int]) -> bool:
    """Whether a config of a session may name a device that no worker has: one that it has asked for before, or, after a recovery,
    a worker with a smaller number than some that are here. It was lost, and a config that named it is sent again."""
    rules = () if client.config is None else client.config.rules.values()
    if any(rule.device == device for each in rules for rule in each):
        return True
    return client.recovery.recoveries > 0 and device.startswith("gt:") and int(device[3:]) < max(numbers, default=0)


def _nothing() -> Generator[None, None, None]:
    """A computation that is over at its first turn."""
    yield from ()


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
