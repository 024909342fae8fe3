"""The dispatcher's answer to `gt.why`: where a tensor is now, and what it waits for.

It reads state and changes none. The answer is bounded, however many workers there are and whatever waits.
"""

from __future__ import annotations

from typing import Any, Final

from gt.dispatcher.jobs.job_scheduler import JOB_NAMES
from gt.dispatcher.state.message_state import (
    WAITING_ANSWERS,
    WAITING_COMPILATION,
    WAITING_CREDIT,
    WAITING_MIGRATION,
    WAITING_OPERATOR,
    WAITING_PUT,
    WAITING_RATE,
    WAITING_RESTORE,
    WAITING_SHARE,
    WAITING_WORKERS,
)
from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ProtocolError
from gt.sharding.partition import box, extent
from gt.sharding.placement import format_layout
from gt.wire import messages as m

MAX_WORKERS: Final = 64
"""The most workers that an answer names."""


def explain_tensor(service: DispatcherState, client: ClientRecord, topic: str) -> dict[str, Any]:
    """The answer to 'why TENSOR POSITION'. `state` is 'failed', 'landing', 'under way', 'computed', 'queued' or 'unknown'."""
    _, *words = topic.split(" ")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise ProtocolError("a question why is 'why TENSOR POSITION'")
    tensor, position = map(int, words)
    entry = client.table.get(tensor)
    if entry is None:
        if position > client.arrived and client.queue:
            ahead = sum(isinstance(message, (m.Run, m.Put, m.Restore)) for message in client.queue)
            before = min(position - client.arrived - 1, ahead)
            return {"state": "queued", "before": before, "waits": describe_wait(service, client)}
        return {"state": "unknown"}
    if entry.fault is not None:
        return {"state": "failed", "error": list(entry.fault)}
    found = locate_tensor(service, entry)
    if entry.landing:
        return {"state": "landing", "workers": sorted(entry.landing)[:MAX_WORKERS], **found}
    order = next((order for at, order in client.inflight if at == position), 0)
    record = service.issued.get(order)
    if record is None:
        return {"state": "computed", **found}
    late = [worker for worker, last in record.done.items() if last < order]
    ahead = sum(pending < order for pending in record.pending)
    return {"state": "under way", "order": order, "workers": late[:MAX_WORKERS], "ahead": ahead, **found}


def locate_tensor(service: DispatcherState, entry: Entry) -> dict[str, Any]:
    """Where a tensor is between plans: its layout, the mesh, and the bytes that each worker holds."""
    mesh = service.meshes[entry.mesh].mesh
    held = []
    for rank, member in enumerate(mesh.members[:MAX_WORKERS]):
        part = box(entry.spec.shape, entry.resident.layout, mesh, rank)
        shape = None if part is None else extent(part)
        size = 0 if shape is None else entry.spec.dtype.itemsize
        for side in shape or ():
            size *= side
        held.append([member, size])
    axes = [list(pair) for pair in zip(mesh.axes, mesh.sizes, strict=True)]
    return {"layout": format_layout(entry.resident.layout), "mesh": axes, "held": held, "members": len(mesh.members)}


def tensors_read_by(message: Any) -> list[int]:
    """The tensors that a message reads, or waits for."""
    if isinstance(message, m.Run):
        return list(message.inputs)
    if isinstance(message, (m.WriteSnapshot, m.ConfirmTensors)):
        return list(message.tensors)
    return [message.tensor] if isinstance(message, m.Fetch) else []


def describe_wait(service: DispatcherState, client: ClientRecord) -> str:
    """What the message at the head of a client's queue waits for."""
    message, state = client.queue[0], client.head
    if state is WAITING_WORKERS and not service.is_short:
        return "links between hosts are being measured: " + ", ".join(" – ".join(pair) for pair in service.measured.due)
    if state is WAITING_WORKERS:
        return f"{len(service.in_service)} of {service.workers_expected} workers have joined"
    if state is WAITING_RESTORE:
        return f"workers {sorted(client.recovery.restoring)[:MAX_WORKERS]} have yet to restore what a mark has"
    if state is WAITING_MIGRATION:
        return "the session moves to another mesh, when nothing is under way"
    if state is WAITING_PUT:
        landing = next(
            entry.landing for entry in map(client.table.__getitem__, tensors_read_by(message)) if entry.landing
        )
        return f"a put has yet to arrive at workers {sorted(landing)[:MAX_WORKERS]}"
    record = None if client.mesh is None else service.meshes[client.mesh.number]
    if state is WAITING_CREDIT and record is not None:
        oldest = record.pending[0]
        late = [worker for worker, last in record.done.items() if last < oldest]
        return f"{len(record.pending)} plans are under way; workers {late[:MAX_WORKERS]} have yet to finish number {oldest}"
    if state is WAITING_SHARE and record is not None:
        members = list(record.mesh.members[:MAX_WORKERS])
        if service.pacer.is_beside_others(record.mesh.number):
            return f"others' plans have their turns first on workers {members}"
        return f"workers {members} have enough to do with its own plans that are in flight"
    if state is WAITING_OPERATOR:
        return "an operator has paused the session, until one lets it go on"
    if state is WAITING_ANSWERS:
        return "workers have yet to answer earlier fetches, as many as its principal may have at a time"
    if state is WAITING_RATE:
        rate = service.limits.of(client.program.principal).instructions_per_second
        return f"its principal, {client.program.principal}, may issue {rate or 0:,.0f} instructions a second"
    if state is WAITING_COMPILATION:
        return "the workers compile other new plans first, of which each program has one in its turn"
    return (
        f"{JOB_NAMES[state]} is being worked out"
        if state in JOB_NAMES
        else f"the {type(message).__name__} at the head of the queue"
    )
