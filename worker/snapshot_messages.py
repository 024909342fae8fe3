"""Snapshots and marks in the worker's core: what it does with the dispatcher's messages about them, and with what files gave.

The shell reads and writes the files (`worker/snapshots`); what comes back is an event of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gt.wire import messages as m
from gt.worker.base.events import MarkIn, MarkPacked, MarkWork, SnapshotIn, SnapshotWork, ToDispatcher
from gt.worker.execution.snapshot_parts import parts_to_write

from .plan_run import report_done

if TYPE_CHECKING:
    from .core import WorkerCore


def snapshot_in(core: WorkerCore, event: SnapshotIn, _now: float) -> None:
    """The shell has read the part of a snapshot."""
    core.stored.receive_load(event)


def mark_in(core: WorkerCore, event: MarkIn, _now: float) -> None:
    """The shell has written or read files of a mark."""
    answer = core.marks.receive(event)
    if answer is not None:
        core.out.append(ToDispatcher(answer))


def mark_packed(core: WorkerCore, event: MarkPacked, _now: float) -> None:
    """The shell has packed parts for a peer."""
    answer = core.marks.receive_packed(event)
    if answer is not None:
        core.out.append(ToDispatcher(answer))


def write_part(core: WorkerCore, message: m.WritePart, _now: float) -> None:
    """Write this worker's parts of tensors to a file of a snapshot. Values that have an error fail it."""
    info = core.meshes[message.mesh]
    try:
        values = parts_to_write(core.stored, message, info.mesh, info.rank, core.number, core.deferred_checks)
    except Exception as error:  # noqa: BLE001 — a value without a value, or no memory for it: the snapshot fails
        fault = list(core.stored.fault(error))
        core.out.append(ToDispatcher(m.SnapshotReport(message.request, fault, [], b"")))
    else:
        core.published.keep(message, info.mesh, info.rank)
        core.out.append(SnapshotWork(message, core.number, values))


def load_part(core: WorkerCore, message: m.LoadPart, now: float) -> None:
    """Have the shell read a part of a tensor from a snapshot, unless this worker has it as published."""
    core.began = core.clock()
    info = core.meshes[message.mesh]
    part = core.stored.load(message, info.mesh, info.rank)
    if part is not None and not core.published.give(message, part):
        core.out.append(SnapshotWork(message, core.number, box=part))
    report_done(core, message.order, info, now)


def snapshot_files(
    core: WorkerCore,
    message: m.CommitSnapshot | m.DiscardParts | m.ReadSnapshots | m.ReadPublished | m.RevokePublished,
    _now: float,
) -> None:
    """Have the shell do what concerns whole snapshots."""
    core.out.append(SnapshotWork(message, core.number))


def take_mark(core: WorkerCore, message: m.TakeMark, _now: float) -> None:
    """Remember what a session has at this place of the order, and have the shell write it."""
    clock = core.instruments.clock if core.instruments is not None else int
    began = clock()
    try:
        work = core.marks.take(message, core.meshes[message.mesh].rank, core.deferred_checks)
    except Exception as error:  # noqa: BLE001 — no memory on the host for it: there is no such mark
        fault = list(core.stored.fault(error))
        core.out.append(ToDispatcher(m.MarkTaken(message.mark, fault, clock() - began)))
    else:
        core.out.append(work._replace(nanoseconds=clock() - began))


def share_mark(core: WorkerCore, message: m.ShareMark, _now: float) -> None:
    """Learn which ranks write what of the next mark."""
    info = core.meshes[message.mesh]
    core.marks.share(message, info.mesh, info.rank)


def drop_mark(core: WorkerCore, message: m.DropMark, _now: float) -> None:
    """Forget a mark and its files."""
    core.marks.drop(message.mark)
    core.out.append(MarkWork(message, -1))


def restore_mark(core: WorkerCore, message: m.RestoreMark, _now: float) -> None:
    """Put a session back to a mark, from memory or from its files."""
    answer = core.marks.restore(message, core.meshes[message.mesh].rank)
    core.out.append(answer if isinstance(answer, MarkWork) else ToDispatcher(answer))


def restore_parts(core: WorkerCore, message: m.RestoreParts, _now: float) -> None:
    """Put the parts of a session back that this worker is to have now, from the files of all ranks."""
    info = core.meshes[message.mesh]
    answer = core.marks.restore_parts(message, info.mesh, info.rank, core.deferred_checks)
    if answer is not None:
        core.out.append(answer if isinstance(answer, MarkWork) else ToDispatcher(answer))


def pack_parts(core: WorkerCore, message: m.PackParts, _now: float) -> None:
    """Have the shell pack what a peer lacks of a mark."""
    core.out.append(core.marks.pack(message))
