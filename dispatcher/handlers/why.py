"""Where a tensor is now, and what it waits for: the dispatcher's answer to `gt.why`.

It reads state and changes none. The answer is bounded, however many workers there are and whatever waits.
"""

from __future__ import annotations

from typing import Any, Final

from gt.dispatcher.state.plan_cache import Entry
from gt.dispatcher.state.records import Client
from gt.dispatcher.state.shared_state import Service
from gt.errors import ProtocolError
from gt.sharding.partition import box, extent
from gt.sharding.placement import format_layout
from gt.wire import messages as m

from .plan_selection import Preparing

MOST: Final = 64
"""The most workers that an answer names."""


def why(service: Service, prepared: Preparing, client: Client, topic: str) -> dict[str, Any]:
    """The answer to 'why TENSOR POSITION'. `state` is 'failed', 'landing', 'under way', 'computed', 'queued' or 'unknown'."""
    _, *words = topic.split(" ")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise ProtocolError("a question why is 'why TENSOR POSITION'")
    tensor, position = map(int, words)
    entry = client.table.get(tensor)
    if entry is None:
        if position > client.arrived and client.queue:
            ahead = sum(isinstance(message, (m.Run, m.Put)) for message in client.queue)
            before = min(position - client.arrived - 1, ahead)
            return {"state": "queued", "before": before, "waits": obstacle(service, prepared, client)}
        return {"state": "unknown"}
    if entry.fault is not None:
        return {"state": "failed", "error": list(entry.fault)}
    found = where(service, entry)
    if entry.landing:
        return {"state": "landing", "workers": sorted(entry.landing)[:MOST], **found}
    order = next((order for at, order in client.inflight if at == position), 0)
    record = service.issued.get(order)
    if record is None:
        return {"state": "computed", **found}
    late = [worker for worker, last in record.done.items() if last < order]
    ahead = sum(pending < order for pending in record.pending)
    return {"state": "under way", "order": order, "workers": late[:MOST], "ahead": ahead, **found}


def where(service: Service, entry: Entry) -> dict[str, Any]:
    """The home of a tensor: its placement, the mesh, and the bytes that each worker holds."""
    mesh = service.meshes[entry.mesh].mesh
    held = []
    for rank, member in enumerate(mesh.members[:MOST]):
        part = box(entry.spec.shape, entry.home.layout, mesh, rank)
        shape = None if part is None else extent(part)
        size = 0 if shape is None else entry.spec.dtype.itemsize
        for side in shape or ():
            size *= side
        held.append([member, size])
    axes = [list(pair) for pair in zip(mesh.axes, mesh.sizes, strict=True)]
    return {"layout": format_layout(entry.home.layout), "mesh": axes, "held": held, "members": len(mesh.members)}


def obstacle(service: Service, prepared: Preparing, client: Client) -> str:
    """What the first message in a client's queue waits for."""
    message = client.queue[0]
    if not service.ready(client):
        return f"{len(service.workers)} of {service.workers_expected} workers have joined"
    jobs = [job.what for job in prepared.turns.of(client.number)]
    if client.moving is not None:
        return "the session moves to another mesh, when nothing is under way"
    if isinstance(message, m.Run):
        for tensor in message.inputs:
            entry = client.table.get(tensor)
            if entry is not None and entry.landing:
                return f"a put has yet to arrive at workers {sorted(entry.landing)[:MOST]}"
    if client.mesh is not None and not service.has_credit(client.mesh):
        record = service.meshes[client.mesh.number]
        oldest = record.pending[0]
        late = [worker for worker, last in record.done.items() if last < oldest]
        return f"{len(record.pending)} plans are under way; workers {late[:MOST]} have yet to finish number {oldest}"
    if client.number in prepared.admission.waiting:
        return "the workers compile other new plans first, of which each program has one in its turn"
    return f"{jobs[0]} is being worked out" if jobs else f"the {type(message).__name__} at the head of the queue"
