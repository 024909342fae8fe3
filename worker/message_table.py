"""Which messages there are for a worker, who may send each, and what acts on it: the tables at the end.

What concerns snapshots and marks is in `snapshot_messages.py`, what a plan takes in `plan_run.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from gt.sharding.placement import Mesh
from gt.wire import messages as m
from gt.worker.base.events import BulkIn, Forgotten, MarkIn, MarkPacked, SnapshotIn, ToDispatcher
from gt.worker.execution.execution import MeshInfo
from gt.worker.memory_limit.principal_memory import MemoryCharge
from gt.worker.telemetry.recorder import WorkerRecording

from . import snapshot_messages
from .plan_run import collect, execute, report_done

if TYPE_CHECKING:
    from .core import WorkerCore


class Sender(Enum):
    """Who sends a worker something."""

    DISPATCHER = "dispatcher"
    PEER = "peer"
    """Another worker."""
    SHELL = "shell"
    """This worker's own sockets: what has come in chunks."""


# in no order with plans


def _piece(core: WorkerCore, piece: m.Piece, now: float) -> None:
    core.moves.hear(piece, core.running, core.finished, now)


def _heard_peer(core: WorkerCore, message: m.Read | m.Probe | m.Echo, now: float) -> None:
    core.peers.hear(message, now)


def _meet(core: WorkerCore, message: m.Meet, now: float) -> None:
    for worker, address in zip(message.workers, message.addresses, strict=True):
        core.peers.know(worker, address, now)


def _peer_lost(core: WorkerCore, message: m.PeerLost, _now: float) -> None:
    core.peers.lose(message.worker, message.text)
    if core.communicators is not None:
        touched = [mesh for mesh, info in core.meshes.items() if message.worker in info.mesh.members]
        core.communicators.lose(touched, message.text)


def _unique_id(core: WorkerCore, message: m.UniqueId, _now: float) -> None:
    if core.communicators is not None and message.mesh in core.meshes:
        rank = core.meshes[message.mesh].rank
        core.communicators.hear(message.mesh, message.ranks, message.generation, message.unique_id, rank)


def _bulk_in(core: WorkerCore, event: BulkIn, _now: float) -> None:
    core.stored.receive_put(event, core.recording)


# in their order


def _store(core: WorkerCore, message: m.Store, now: float) -> None:
    core.began = core.clock()
    info = core.meshes[message.mesh]
    core.stored.put(message, info.mesh, info.rank, core.recording)
    report_done(core, message.order, info, now, small_put=not message.sender)


def _release(core: WorkerCore, message: m.Release, _now: float) -> None:
    core.stored.release(message.client, message.tensors)
    if message.client not in core.stored.tensors:
        core.marks.marked.forget(message.client)


def _forget(core: WorkerCore, message: m.Forget, _now: float) -> None:
    core.stored.forget(message.client)
    core.published.forget(message.client)
    core.marks.forget(message.client)
    core.out.append(Forgotten(message.client))


def _survey(core: WorkerCore, message: m.Survey, _now: float) -> None:
    core.out.append(ToDispatcher(m.Holdings(message.request, core.stored.survey(message.most))))


def _define_plan(core: WorkerCore, message: m.DefinePlan, _now: float) -> None:
    core.programs.define(message.plan, bytes(message.body))


def _drop_plan(core: WorkerCore, message: m.DropPlan, _now: float) -> None:
    core.programs.drop(message.plan)


def _drop_mesh(core: WorkerCore, message: m.DropMesh, _now: float) -> None:
    core.meshes.pop(message.mesh, None)
    core.stored.memory.drop_mesh(message.mesh)
    if core.communicators is not None:
        core.communicators.drop(message.mesh)


def _welcome(core: WorkerCore, message: m.Welcome, _now: float) -> None:
    core.number = core.peers.number = message.number
    core.finished = max(core.finished, int(message.facts.get("order", 0)))
    core.moves.forget(core.finished)


def _record(core: WorkerCore, message: m.Record, _now: float) -> None:
    core.recording = None
    if message.level and core.instruments is not None:
        core.recording = WorkerRecording(core.instruments, core.number, message.level, message.rate)
    core.moves.recording = core.recording
    if core.stored.limiter is not None:
        core.stored.limiter.recording = core.recording


def _ping(core: WorkerCore, _message: m.Ping, _now: float) -> None:
    """Do nothing: the shell has noted that the dispatcher lives."""


def _define_mesh(core: WorkerCore, message: m.DefineMesh, now: float) -> None:
    axes, sizes, members, weights, cards, *far = message.body
    cut = tuple(map(tuple, weights))
    mesh = Mesh(message.mesh, tuple(axes), tuple(sizes), tuple(members), cut, *map(tuple, far))
    known = tuple(cards) if core.communicators is not None else ()
    core.meshes[message.mesh] = MeshInfo(mesh, mesh.members.index(core.number), known)
    for worker, address in zip(mesh.members, message.addresses, strict=True):
        core.peers.know(worker, address, now)


def _charge_memory(core: WorkerCore, message: m.ChargeMemory, _now: float) -> None:
    charge = MemoryCharge(message.principal, message.live_bytes, message.weight / 1000, message.mesh)
    core.stored.memory.note(message.client, charge)


UNORDERED: Final[dict[type, tuple[Sender, Callable[[WorkerCore, Any, float], None]]]] = {
    m.Piece: (Sender.PEER, _piece),
    m.Read: (Sender.PEER, _heard_peer),
    m.Probe: (Sender.PEER, _heard_peer),
    m.Echo: (Sender.PEER, _heard_peer),
    m.Meet: (Sender.DISPATCHER, _meet),
    m.PeerLost: (Sender.DISPATCHER, _peer_lost),
    m.UniqueId: (Sender.DISPATCHER, _unique_id),
    BulkIn: (Sender.SHELL, _bulk_in),
    SnapshotIn: (Sender.SHELL, snapshot_messages.snapshot_in),
    MarkIn: (Sender.SHELL, snapshot_messages.mark_in),
    MarkPacked: (Sender.SHELL, snapshot_messages.mark_packed),
    m.CommitSnapshot: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.DiscardParts: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.ReadSnapshots: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.ReadPublished: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
    m.RevokePublished: (Sender.DISPATCHER, snapshot_messages.snapshot_files),
}
"""What is handled when it comes, also while a plan is suspended: who may send it, and what handles it."""

ORDERED: Final[dict[type, tuple[Sender, Callable[[WorkerCore, Any, float], None]]]] = {
    m.Welcome: (Sender.DISPATCHER, _welcome),
    m.Ping: (Sender.DISPATCHER, _ping),
    m.Record: (Sender.DISPATCHER, _record),
    m.DefineMesh: (Sender.DISPATCHER, _define_mesh),
    m.DropMesh: (Sender.DISPATCHER, _drop_mesh),
    m.ChargeMemory: (Sender.DISPATCHER, _charge_memory),
    m.DefinePlan: (Sender.DISPATCHER, _define_plan),
    m.DropPlan: (Sender.DISPATCHER, _drop_plan),
    m.Execute: (Sender.DISPATCHER, execute),
    m.Store: (Sender.DISPATCHER, _store),
    m.Release: (Sender.DISPATCHER, _release),
    m.Collect: (Sender.DISPATCHER, collect),
    m.Forget: (Sender.DISPATCHER, _forget),
    m.Survey: (Sender.DISPATCHER, _survey),
    m.WritePart: (Sender.DISPATCHER, snapshot_messages.write_part),
    m.LoadPart: (Sender.DISPATCHER, snapshot_messages.load_part),
    m.ShareMark: (Sender.DISPATCHER, snapshot_messages.share_mark),
    m.TakeMark: (Sender.DISPATCHER, snapshot_messages.take_mark),
    m.DropMark: (Sender.DISPATCHER, snapshot_messages.drop_mark),
    m.RestoreMark: (Sender.DISPATCHER, snapshot_messages.restore_mark),
    m.RestoreParts: (Sender.DISPATCHER, snapshot_messages.restore_parts),
    m.PackParts: (Sender.DISPATCHER, snapshot_messages.pack_parts),
}
"""What is handled in its turn, after all plans that came before it: who may send it, and what handles it."""

SENDERS: Final[dict[type, Sender]] = {kind: sender for kind, (sender, _) in (UNORDERED | ORDERED).items()}
