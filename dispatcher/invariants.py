"""What must hold between two events of the dispatcher's core. Tests check it after each event; a running service never does."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from .handlers.marks import DISPATCHER, STANDBY
from .jobs.job_scheduler import SERVICE
from .state.events import Marking
from .state.shared_state import MESH_CREDITS
from .state.worker_duty import SPARE

if TYPE_CHECKING:
    from .core import DispatcherCore


def check_core(core: DispatcherCore) -> None:
    """Raise AssertionError if an invariant of a core does not hold."""
    core.subscribers.check()
    core.queues.check()
    core.plan_selection.jobs.check()
    core.plan_selection.admission.ring.check()
    core.service.pacer.check()
    core.service.rates.check()
    assert core.plan_selection.jobs.clients.keys() <= {SERVICE, *core.service.by_number}, (
        "nothing is worked out for who is gone"
    )
    for client in core.service.clients.values():
        assert core.service.by_number[client.number] is client
        positions = {position for position, _ in client.inflight}
        assert client.credited + len(positions) <= client.arrived + (client.underway is not None)
        assert client.underway is None or client.queue, "a run of which parts are issued is at the head of the queue"
        for entry in client.table.values():
            assert entry.fault is not None or entry.mesh in core.service.meshes, "a tensor is somewhere or has a fault"
    loaded = 0
    for record in core.service.meshes.values():
        numbers = {worker.number for worker in core.service.workers.values()}
        assert record.fault or set(record.mesh.members) <= numbers, "a sound mesh has all its members"
        assert record.client in core.service.by_number, "a mesh is somebody's"
        assert all(worker.duty is not SPARE for worker in record.workers), "spares are on no mesh"
        assert len(record.pending) <= MESH_CREDITS
        flights = core.service.pacer.lanes[record.mesh.number].flights
        assert [*record.pending] == [flight.order for flight in flights], "the pacer counts what is in flight"
        loaded += len(record.mesh.members) if record.pending else 0
        assert all(core.service.issued[order] is record for order in record.pending)
        if record.pending:
            assert record.lagging == sum(last < record.pending[0] for last in record.done.values()) > 0
    assert loaded == core.service.load
    by_client = [(record.client, number) for number, record in core.service.meshes.items()]
    indexed = [(client, each.mesh.number) for client, records in core.service.meshes_of.items() for each in records]
    assert sorted(by_client) == sorted(indexed), "each mesh is found by its client"
    for worker in core.service.workers.values():
        assert worker.to_compile == sum(length for _, length in worker.fresh)
    assert len(core.service.issued) == sum(len(record.pending) for record in core.service.meshes.values())
    _check_awaited(core)
    _check_marks(core)


def _check_marks(core: DispatcherCore) -> None:
    """The marks of a session follow each other in its stream, and at most one is being written."""
    taking = {client.number: mark for client in core.service.clients.values() if (mark := client.recovery.taking)}
    assert core.marks.taking.keys() == {mark.number for mark in taking.values()}, "each mark is of a session"
    for client in core.service.clients.values():
        recovery = client.recovery
        marks = [*recovery.marks, *([] if recovery.taking is None else [recovery.taking])]
        numbers, positions = [mark.number for mark in marks], [mark.position for mark in marks]
        assert numbers == sorted({*numbers}), "each mark has a number of its own, and later ones a higher one"
        assert positions == sorted(positions), "and has more of the stream"
        assert recovery.settled <= max(positions, default=recovery.settled), "a client notes marks that there are"
        assert recovery.taking is None or recovery.taking.position <= recovery.over, "a mark has what is over"
        if recovery.copying is not None:
            assert recovery.taking is None, "one mark of a session is taken at a time"
            assert Marking(recovery.copying) in client.queue, "all else of a session waits while its table is copied"


def _check_awaited(core: DispatcherCore) -> None:
    """No worker is waited for that is not there: its answer would never come. One that is lost is, until its turn has come,
    by the session, fetch or request that has yet to be told."""
    lost = {each.message.worker.number for each in core.disconnect.losses}
    there = {worker.number for worker in core.service.workers.values()} | lost
    for client in core.service.clients.values():
        recovery = client.recovery
        mesh = None if client.mesh is None else core.service.meshes[client.mesh.number]
        members = set() if mesh is None else {worker.number for worker in mesh.workers}
        gone = [message.worker.number for message in client.undecided]
        assert lost.issuperset(gone), "a session's turn comes"
        assert client.undecided == [*islice(client.queue, len(gone))][::-1], "all else of a session waits for it"
        assert recovery.restoring <= members, "workers of its mesh give a session back what a mark has"
        copies = {DISPATCHER, STANDBY} if core.service.standby.peer else {DISPATCHER}
        assert recovery.taking is None or recovery.taking.waiting <= there | copies, "who writes a mark is there"
        for entry in client.table.values():
            assert client.loss is not None or entry.landing <= there, "a tensor arrives at workers that are there"
        assert client.landing == {tensor for tensor, entry in client.table.items() if entry.landing}
    undecided = {client.number for client in core.service.clients.values() if client.undecided}
    assert core.fetches.held.keys() <= undecided, "errors are held of who has yet to be told of a loss"
    assert core.snapshots.lacking <= lost
    for collection in core.fetches.collections.values():
        assert collection.waiting <= there, "who is asked for a value is there"
    for request in core.snapshots.requests.values():
        assert {number for number, owed in request.waiting.items() if owed} <= there, "who has files to do is there"
    for survey in core.surveys.surveys.values():
        assert survey.waiting <= there, "who is asked what it holds is there"
