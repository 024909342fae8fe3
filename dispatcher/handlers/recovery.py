"""Going back to a mark: what becomes of a session when a worker that it uses is lost.

The session begins a new *incarnation*: another record for the same client, with a new number, a new mesh and new orders. The
workers are told to forget the old one, so whatever of it is still under way is recognised by its numbers and dropped. The client
is told (`Rewind`) and all that it says before its answer (`Resume`) is ignored. Then the first message in the new queue is a
`Recovery`: it waits for the workers, gives the session a mesh of the same shape with another worker in the place of the lost
one, and has all of them restore the tensors of the mark. What the client sends again is behind it.

If nobody comes in place of the lost one, the session gets the mesh that its config asks for on the workers that remain. Each of
them puts its parts together from the files of all ranks, and what follows is planned anew.

A worker that sees no file with its parts gets them from peers that do (`dispatcher/state/peer_parts.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gt.dispatcher.cost.nccl_cards import cards_of
from gt.dispatcher.jobs.job_scheduler import Job
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.session_meshes.mesh_migration import delivery_plan, moved_entries, restore_parts, restored_layout
from gt.dispatcher.session_meshes.mesh_registry import MAX_TOLD
from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
from gt.dispatcher.state.config_resolution import SharedComputation
from gt.dispatcher.state.events import OWN_MESSAGES, Recovery, Reload, Remesh, Send, WorkerLoss
from gt.dispatcher.state.mark_wait import MarkWait, Overdue
from gt.dispatcher.state.message_state import DONE, WAITING_RESTORE, WAITING_WORKERS, MessageState, begin
from gt.dispatcher.state.peer_parts import MAX_PACKED, Delivery, Needed, givers, needed_parts
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord, MeshRecord, ReducedSegment, WorkerRecord
from gt.dispatcher.state.session_marks import SessionMark, entries_on, entries_without, lost_entries
from gt.dispatcher.state.shared_state import MESH_CREDITS, releases
from gt.dispatcher.state.worker_duty import LEAVING, SPARE, kind_of
from gt.errors import GTError, ProtocolError
from gt.ir.instruction import Segment
from gt.ir.spec import MAX_ELEMENTS
from gt.sharding.config_meshes import show_mesh
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.faults import Fault, error_of, fault_of

from .marks import MarkHandler, folder_of

if TYPE_CHECKING:
    from gt.dispatcher.state.shared_state import DispatcherState


LOOKED_AT_DEFINITIONS: Final = 16
"""The number of a session's newest definitions that the next dispatcher searches for those that end a training step."""


class RecoveryHandler:
    """All sessions on their way back to a mark. `numbers` gives the numbers of sessions, and `leave` drops what a session has on
    its workers."""

    def __init__(
        self, service: DispatcherState, meshes: SessionMeshes, marks: MarkHandler, numbers: Iterator[int],
        leave: Callable[[ClientRecord], None],
    ) -> None:  # fmt: skip
        self.service = service
        self.meshes = meshes
        self.marks = marks
        self.numbers = numbers
        self.leave = leave
        self.packed_ids = itertools.count(m.FIRST_PACKED)

    def can_rewind(self, client: ClientRecord, loss: WorkerLoss, text: str, there: Set[int]) -> bool:
        """Whether a session that has lost a worker (`text`) can go back, where these are `usable_workers`. Asked once for each
        time that it would."""
        recovery = client.recovery
        self._note(client, loss, text)
        if not recovery.resends or recovery.is_hopeless:
            return False
        needed = [1 if mark.config is None else mark.config.least_mesh for mark in recovery.marks]
        config = client.config
        if client.mesh is not None and config is not None and config.mesh is not None:
            needed.append(config.least_mesh)
        expected = self.service.workers_expected if not client.recovery.avoided else 0
        return loss.returns or max(len(there) - len(recovery.avoided & there), expected) >= max(needed, default=1)

    def usable_workers(self) -> Set[int]:
        """The workers that there are for sessions, by number."""
        workers = self.service.workers.values()
        return {worker.number for worker in workers if worker.duty is not SPARE and not worker.released}

    def _note(self, client: ClientRecord, loss: WorkerLoss, text: str) -> None:
        """Note of a session that it has lost a worker. What another session ran is no sign that this one would fail again."""
        recovery, plan = client.recovery, loss.plan
        late = (position for position, order in client.inflight if order in self.service.issued)
        recovery.fatal_runs.note_computed(next(late, client.arrived + 1) - 1)
        if plan is None:
            recovery.note_loss(failed=loss.failed)
        elif plan.client == client.number:
            found = (position for position, order in client.inflight if order == plan.order)
            position = next(found, None)
            if position is None or not recovery.resends:
                recovery.note_loss(failed=loss.failed)
            else:
                recovery.note_fatal(position, text)

    def has(self, client: ClientRecord, mark: int) -> bool:
        """Whether a session can go back to this mark, or (0) to its beginning."""
        return client.recovery.resends and (not mark or any(each.number == mark for each in client.recovery.marks))

    def rewind(self, client: ClientRecord, text: str, lost: int) -> None:
        """Begin a new incarnation of a session that goes back, and is in nothing any more, at most in the table of clients."""
        service, recovery = self.service, client.recovery
        self.marks.abandon(client)
        recovery.known = max(recovery.known, _taken(client))
        recovery.taken = max(recovery.taken, recovery.known)
        recovery.awaited = True
        recovery.due = recovery.wanted = recovery.begins = recovery.calm = recovery.awaits_update = False
        self._drop_table(client)
        fresh = ClientRecord(
            client.identity, next(self.numbers), client.facts, client.bulk, client.program, client.principal, heard=client.heard,
            unread_bytes=client.unread_bytes, gpipe=client.gpipe, made=client.made, misses=client.misses,
            improved=client.improved, hits=client.hits, recovery=recovery, priority=client.priority, weight=client.weight,
            paused=client.paused, ordered=client.ordered, account=client.account,
        )  # fmt: skip
        service.clients[client.identity] = service.by_number[fresh.number] = fresh
        service.send(fresh.identity, m.Rewind(fresh.number, text, lost))
        service.log(
            "warning",
            f"client {client.number} goes back, and is client {fresh.number} now: {text}",
            "rewind",
            fresh.number,
        )
        if service.recording is not None:
            service.recording.rewound(client, fresh, lost, text)

    def is_repeated(self, client: ClientRecord) -> bool:
        """Whether the last message of a client was one that it has sent before, or will send again (before its `Resume`)."""
        recovery = client.recovery
        return recovery.awaited or (recovery.known > 0 and _taken(client) <= recovery.known)

    def resume(self, client: ClientRecord, message: m.Resume) -> bool:
        """A client is ready to send again what came after a mark. Returns whether its queue has something to do.

        Raises `ProtocolError` for a mark that it was never told of.
        """
        recovery = client.recovery
        if not recovery.awaited or message.session != client.number:
            return False  # of an incarnation that is over
        recovery.awaited = False
        mark = next((each for each in recovery.marks if each.number == message.mark), None)
        if mark is None and message.mark != 0:
            raise ProtocolError(f"mark {message.mark} is not one of this session, so it cannot go on from there")
        for each in recovery.marks:
            if each is not mark:
                self.marks.drop(client, each)
        recovery.marks = [] if mark is None else [mark]
        recovery.next_at = self.service.now + self.marks.least_seconds
        client.queue.clear()  # at most new configs of the service
        if mark is None:
            recovery.over = 0
            recovery.keep_definitions(())
            recovery.begins = True
            self.begin_again(client)
            return False
        recovery.over, client.arrived, client.credited = mark.position, mark.done, mark.done
        client.queue.append(Recovery(mark))
        if mark.base is not self.service.config and self.service.config is not None:
            client.queue.append(Reload(self.service.config))
        if mark.config is not None and mark.config.is_elastic:
            client.queue.append(Remesh("the session goes on"))  # workers may have joined since the mark
        begin(client)
        return True

    def begin_again(self, client: ClientRecord) -> None:
        """Note that a session goes on which begins again, if it need not wait for workers."""
        if client.recovery.begins and self.service.ready(client):
            self.marks.recovered(client, 0)

    def recover(self, client: ClientRecord, message: Recovery) -> MessageState:
        """Give a session back what its mark has; if there are no workers for that, every tensor of the mark gets the error."""
        recovery, mark = client.recovery, message.mark
        if recovery.table is not None and recovery.table.over:
            self.service.dispose(client.table)
            client.table, recovery.table = recovery.table.result(), None
        if recovery.restoring:
            self._send_packed(client)
            return WAITING_RESTORE
        if recovery.table is not None:
            return self.meshes.jobs.compute(client, recovery.table)
        if recovery.gone:
            gone, recovery.gone = recovery.gone, {}
            self._make_table(client, entries_without(client.table, gone))
            return self.recover(client, message)
        if client.planner is not None or mark not in recovery.marks:
            return DONE  # all is there, or nothing will come back
        if not self.service.ready(client) and not self._has_idle_workers(mark, recovery.avoided):
            return WAITING_WORKERS
        members = self._members(mark, recovery.avoided)
        self._set_state(client, mark)
        try:
            if members is None:
                return self._to_the_rest(client, mark)
        except GTError as error:
            fault = fault_of(error)
            if self.service.recording is not None:
                self.service.recording.failed(t.DISPATCHER, client.number, -1, *fault)
            self.fail(client, mark, fault)
            return self.recover(client, message)
        self._set_mesh(client, mark, members)
        recovery.restoring = {worker.number for worker in members}
        recovery.restore_wait = MarkWait(self.service.order, mark.table)
        assert client.mesh is not None
        restore = m.RestoreMark(mark.number, client.number, client.mesh.number)
        self.service.multicast(client.mesh, restore)
        return WAITING_RESTORE

    def _drop_table(self, client: ClientRecord) -> None:
        """Drop the table that was made for a session which goes back once more, or has lost all."""
        table, client.recovery.table = client.recovery.table, None
        if table is not None and table.over:
            self.service.dispose(table.result())

    def _make_table(self, client: ClientRecord, turns: Generator[None, None, dict[int, Entry]]) -> None:
        """Let a job make the tensor table of a session, while workers read what a mark has."""
        client.recovery.table = SharedComputation(turns)
        self.meshes.jobs.compute(client, client.recovery.table)

    def _to_the_rest(self, client: ClientRecord, mark: SessionMark) -> MessageState:
        """Give a session what its mark has on the workers that there are, fewer than the mark's. Raises `GTError` if its config
        needs more."""
        needed = len(mark.mesh.members)
        if client.recovery.avoided:
            raise error_of("WorkerLost", f"{needed} workers are needed to go on, and so many do not answer")
        try:
            found = self.meshes.planner(client)
        except GTError as error:
            text = f"{needed} workers are needed to go on, and so many are not there; on fewer: {error}"
            raise error_of("WorkerLost", text) from None
        if isinstance(found, MessageState):
            return found
        mesh = found.mesh
        self._make_table(client, moved_entries(mark.table, mark.mesh, mesh))
        self._tell_parts(client, mark, self.service.meshes[mesh.number].identities)
        client.recovery.restoring = set(mesh.members)
        client.recovery.joining = set(mesh.members)
        client.recovery.restore_wait = MarkWait(self.service.order, mark.table)
        client.recovery.due = True
        shape = show_mesh(dict(zip(mesh.axes, mesh.sizes, strict=True)))
        text = f"client {client.number} goes on with the mesh {shape}, because {needed} workers are not there any more"
        self.service.log("warning", text, "remesh", client.number)
        return WAITING_RESTORE

    def _tell_parts(
        self, client: ClientRecord, mark: SessionMark, to: tuple[bytes, ...], packed: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Let a job tell workers to read their parts of a mark from the files of all its ranks, but for what peers sent."""
        assert client.mesh is not None
        parts = restore_parts(mark, client.number, client.mesh, packed, client.recovery.gone)

        def turns() -> Iterator[None]:
            for part in parts:
                if part is not None and not client.undecided:
                    self.service.out.append(Send(to, part))
                yield

        job = Job(client.program, client.number, "parts of a mark", turns(), lambda _: None)
        self.meshes.jobs.add(job)

    def _members(self, mark: SessionMark, avoided: set[int]) -> list[WorkerRecord] | None:
        """Who takes each rank: those who had it, and for others workers in service that have the folder where its file is, and
        serve the fewest sessions, or in want of them one that is to leave, but for some; None if there are not enough."""
        by_number = {worker.number: worker for worker in self.service.in_service if worker.number not in avoided}
        leaving = [
            each
            for each in self.service.workers.values()
            if each.duty is LEAVING and not each.released and each.number not in avoided
        ]
        kept = {number for number in mark.mesh.members if number in by_number}
        others = [worker for number, worker in by_number.items() if number not in kept]
        used: dict[int, int] = dict.fromkeys(by_number, 0)
        for record in self.service.meshes.values():
            for member in record.mesh.members:
                if member in used:
                    used[member] += 1
        others.sort(
            key=lambda worker: (worker.facts.get("marks") is not True, used[worker.number], worker.number), reverse=True
        )
        folders = mark.folders or ("",) * len(mark.mesh.members)
        near = {
            rank: self._near(others, folder)
            for rank, folder in enumerate(folders)
            if mark.mesh.members[rank] not in kept
        }
        found: list[WorkerRecord] = []
        for rank, number in enumerate(mark.mesh.members):
            if number in kept:
                found.append(by_number[number])
            elif (there := near[rank]) is not None:
                found.append(there)
            elif others:
                found.append(others.pop())
            elif leaving:
                leaving.sort(key=lambda worker: worker.number == number)
                found.append(leaving.pop())
            else:
                return None
        return found

    def _has_idle_workers(self, mark: SessionMark, avoided: Set[int]) -> bool:
        """Whether workers that no session uses can take all ranks of a mark whose workers are lost, from the same folders: then
        nobody need wait until these are started again, and nobody shares a worker who would not have to. Only where all workers
        are of one kind: a CPU gives other bits than the GPU that returns."""
        if len({*mark.kinds, *map(kind_of, self.service.in_service)}) > 1:
            return False
        there = {worker.number: worker for worker in self.service.in_service if worker.number not in avoided}
        used = {*mark.mesh.members}.union(*(record.mesh.members for record in self.service.meshes.values()))
        idle = Counter(folder_of(worker) for number, worker in there.items() if number not in used)
        folders = mark.folders or ("",) * len(mark.mesh.members)
        ranks = zip(mark.mesh.members, folders, strict=True)
        return Counter(folder for number, folder in ranks if number not in there) <= idle

    def _near(self, others: list[WorkerRecord], folder: str) -> WorkerRecord | None:
        """Take the last of these workers that has a folder; None if none of them has."""
        at = next((at for at in reversed(range(len(others))) if folder and folder_of(others[at]) == folder), None)
        return None if at is None else others.pop(at)

    def _set_state(self, client: ClientRecord, mark: SessionMark) -> None:
        """Give a session what a mark has, but for its mesh and tensors."""
        client.segments, client.refused = dict(mark.segments), dict(mark.refused)
        client.recovery.keep_definitions(client.segments)
        if not client.recovery.updating:  # the dispatcher is another one
            for number in [*client.segments][-LOOKED_AT_DEFINITIONS:]:
                segment = client.segments[number]
                if isinstance(segment, Segment) and segment.updates:
                    client.recovery.updating.add(number)
        client.own, client.config = mark.own, mark.config
        if mark.own is not None:
            self.meshes.take_sharing(client, mark.own)
        client.verify, client.tf32, client.runs = mark.verify, mark.tf32, mark.checked
        client.warned = set(mark.warned)

    def _set_mesh(self, client: ClientRecord, mark: SessionMark, workers: list[WorkerRecord]) -> None:
        """Give a session a mesh like that of a mark, with all plans and tensors there."""
        number = next(self.service.mesh_numbers)
        mesh = replace(mark.mesh, number=number, members=tuple(worker.number for worker in workers))
        cards = () if mark.policy.deterministic else cards_of([worker.facts for worker in workers])
        identities = tuple(worker.identity for worker in workers)
        self.meshes.registry.join(MeshRecord(client.number, mesh, mark.speeds, list(workers), identities, cards))
        client.planner = Planner(mesh, mark.policy.copy(mesh), mark.speeds)
        client.reduced = {segment: ReducedSegment(number, hidden) for segment, hidden in mark.reduced.items()}
        client.plans.saved = dict(mark.plans)
        self._make_table(client, entries_on(mark.table, number))

    def overdue(self) -> list[tuple[ClientRecord, Overdue]]:
        """The sessions one of whose workers has not given them back what a mark has, in the time for that."""
        found = [
            (client, wait.overdue(client.recovery.awaited_now, self.service))
            for client in self.service.clients.values()
            if client.recovery.restoring and not client.undecided and (wait := client.recovery.restore_wait) is not None
        ]
        return [(client, overdue) for client, overdue in found if overdue is not None]

    def avoid(self, client: ClientRecord, number: int) -> bool:
        """Note that a worker has not given a session back what a mark has. Returns whether it can go back again without that
        one, perhaps with a spare."""
        recovery, needed = client.recovery, len(client.recovery.marks[0].mesh.members)
        recovery.avoided.add(number)
        recovery.note_loss(failed=False)
        if len(self.usable_workers() - recovery.avoided) < needed:
            self.service.replace(next(each for each in self.service.workers.values() if each.number == number))
        return len(self.usable_workers() - recovery.avoided) >= needed and not recovery.is_hopeless

    def fail(self, client: ClientRecord, mark: SessionMark, fault: Fault) -> None:
        """Nothing comes back: every tensor of a mark gets this error, and what follows is computed on the workers that there
        are. The session's queue goes on with that."""
        self.leave(client)
        self._set_state(client, mark)
        self._drop_table(client)
        self.service.dispose(client.table)
        client.table = {}
        client.recovery.table = SharedComputation(lost_entries(mark.table, fault))  # the queue waits for it
        self.marks.give_up(client, fault[1])

    def restored(self, worker: WorkerRecord, message: m.MarkRestored) -> ClientRecord | None:
        """A worker has given a session back its tensors, or cannot. Returns the client whose queue can go on."""
        client = self.service.by_number.get(message.client)
        if client is None or client.undecided or worker.number not in client.recovery.restoring:
            return None
        recovery = client.recovery
        if message.fault and worker.number not in recovery.joining:
            assert client.mesh is not None, "it restores"
            recovery.joining.add(worker.number)  # other ranks may have had the same parts
            text = f"worker {worker.number} looks elsewhere for its part of a mark: {message.fault[-1]}"
            self.service.log("warning", text, client=client.number)
            self._tell_parts(client, recovery.marks[0], (worker.identity,))
            return None
        if message.fault and worker.number not in recovery.deliveries:
            recovery.deliveries[worker.number] = Delivery((message.fault[0], message.fault[-1]))
            self._seek(client, worker.number, recovery.marks[0].table.items())
            return None
        if message.fault:
            text = f"what worker {worker.number} is to restore cannot be had: {message.fault[-1]}"
            self.fail(client, recovery.marks[0], (message.fault[0], text))
            return client
        recovery.restoring.discard(worker.number)
        delivery = recovery.deliveries.pop(worker.number, None)
        if delivery is not None:
            assert client.mesh is not None, "it restores"
            for release in releases(client.number, [each for each, _ in delivery.sent]):
                self.service.multicast(client.mesh, release)
            recovery.due = True  # it has no file yet
        if recovery.restoring:
            return None
        if recovery.gone:
            assert client.mesh is not None, "it was restored"
            for release in releases(client.number, [*recovery.gone]):
                self.service.multicast(client.mesh, release)
        recovery.restore_wait = None
        self.marks.recovered(client, message.mark)
        return client

    # what peers send

    def _seek(self, client: ClientRecord, number: int, entries: Collection[tuple[int, Entry]]) -> None:
        """Let a job find out which peers have what a worker cannot read of a mark."""
        recovery, mark, mesh = client.recovery, client.recovery.marks[0], client.mesh
        assert mesh is not None, "it restores"
        workers = self.service.meshes[mesh.number].workers
        members = [(worker.number, folder_of(worker)) for worker in workers]
        folders = mark.folders or ("",) * len(mark.mesh.members)
        who = givers(folders, members, number, recovery.unreadable)
        layout_of = partial(restored_layout, mark.mesh, mesh)
        rank = mesh.members.index(number)
        recovery.deliveries[number].seeking += 1

        def turns() -> Iterator[Needed | None]:
            yield (yield from needed_parts(entries, mark.mesh, mesh, rank, layout_of, who))

        job = Job(client.program, client.number, "peers for a mark", turns(), partial(self._found, client, number))
        self.meshes.jobs.add(job)

    def _found(self, client: ClientRecord, number: int, found: Needed | None) -> None:
        """Have peers pack what a worker needs, or give the mark up if they have nothing of it. What has parts that nobody has is
        lost."""
        recovery = client.recovery
        delivery = recovery.deliveries.get(number)
        if delivery is None or client.undecided:
            return  # the session has lost the mark meanwhile, or a worker
        delivery.seeking -= 1
        fault = delivery.fault[0], f"what worker {number} is to restore cannot be had: {delivery.fault[1]}"
        if found is None or not (found.parcels or delivery.sent or delivery.asked or delivery.packed):
            self.fail(client, recovery.marks[0], fault)
            return
        delivery.left += found.parcels
        recovery.gone |= dict.fromkeys(found.gone, fault)
        sources = sorted({parcel.source for parcel in found.parcels})
        lost = f"; {len(found.gone)} tensors of which it had parts are lost" if found.gone else ""
        text = (
            f"worker {number} gets what it is to restore from workers {sources[:MAX_TOLD]}{lost}: {delivery.fault[1]}"
        )
        self.service.log("warning", text, client=client.number)
        recovery.restore_wait = MarkWait(self.service.order, recovery.marks[0].table)
        self._pack(client, delivery)
        self._send_packed(client)

    def _pack(self, client: ClientRecord, delivery: Delivery) -> None:
        """Have peers pack the next parcels."""
        mark = client.recovery.marks[0]
        while delivery.left and len(delivery.asked) + len(delivery.packed) < MAX_PACKED:
            parcel, packed = delivery.left.popleft(), next(self.packed_ids)
            delivery.asked[packed] = parcel
            source = next(each for each in self.service.workers.values() if each.number == parcel.source)
            told = m.PackParts(mark.number, client.number, parcel.rank, packed, parcel.tensors)
            self.service.send(source.identity, told)

    def packed(self, worker: WorkerRecord, message: m.PartsPacked) -> None:
        """A worker has packed parts of a mark for a peer, or cannot: then others may have them. Raises `ProtocolError` if these
        are no bytes, or more than a tensor has."""
        if not message.fault and not 0 < message.nbytes <= MAX_ELEMENTS:
            raise ProtocolError(f"parts of a mark cannot take {message.nbytes} bytes")
        client = self.service.by_number.get(message.client)
        deliveries = {} if client is None or client.undecided else client.recovery.deliveries
        for number, delivery in deliveries.items():
            parcel = delivery.asked.get(message.packed)
            if client is not None and parcel is not None and parcel.source == worker.number:
                del delivery.asked[message.packed]
                if message.fault:
                    client.recovery.unreadable.add(parcel.rank)
                    delivery.fault = message.fault[0], message.fault[-1]
                    table = client.recovery.marks[0].table
                    self._seek(client, number, [(tensor, table[tensor]) for tensor in parcel.tensors])
                    self._pack(client, delivery)
                else:
                    delivery.packed.append((message.packed, message.nbytes, parcel))
                    self._send_packed(client)
                return

    def _send_packed(self, client: ClientRecord) -> None:
        """Issue the plans that move what is packed, as far as there is credit, and have those restore the mark who have all."""
        recovery, mesh = client.recovery, client.mesh
        if mesh is None:
            return
        record = self.service.meshes[mesh.number]
        for number, delivery in recovery.deliveries.items():
            while delivery.packed and len(record.pending) < MESH_CREDITS:
                packed, nbytes, parcel = delivery.packed.popleft()
                target, source = mesh.members.index(number), mesh.members.index(parcel.source)
                self.meshes.migration.carry(client, delivery_plan(mesh, packed, nbytes, source, target), [packed])
                delivery.sent.append((packed, parcel.rank))
                self._pack(client, delivery)
            if delivery.is_whole and not delivery.told:
                delivery.told = True
                identity = next(worker.identity for worker in record.workers if worker.number == number)
                self._tell_parts(client, recovery.marks[0], (identity,), delivery.sent)


def _taken(client: ClientRecord) -> int:
    """How many of a client's messages are over or in its queue, counted from the first of the session."""
    return client.recovery.over + sum(not isinstance(message, OWN_MESSAGES) for message in client.queue)
