"""Whether a service is well, in a word for people and an exit status for scripts. It reads a snapshot and nothing else."""

from __future__ import annotations

from typing import Final

from gt.monitor.snapshot import LIVE, Snapshot

WELL: Final = 0
UNREACHABLE: Final = 1
UNWELL: Final = 3
"""2 is how a command is told that it was called wrongly."""
STATUSES: Final = {
    WELL: "the service answers and is well",
    UNREACHABLE: "there is no service, or it does not answer",
    UNWELL: "it answers and is not well",
}
STUCK_AFTER_NS: Final = 10_000_000_000
"""Nanoseconds after which pieces that do not come are a fault."""


def troubles(snapshot: Snapshot) -> list[str]:
    """What is wrong, a line for each thing; nothing when all is well."""
    found: list[str] = []
    if snapshot.status.state != LIVE:
        found.append(f"the stream is {snapshot.status.state}: {snapshot.status.text}".rstrip(": "))
    if snapshot.service is None:
        found.append("nothing was heard of it in time")
    elif not snapshot.workers:
        found.append("no worker has joined")
    for worker in snapshot.workers:
        if worker.state == "lost":
            found.append(f"worker {worker.number} on {worker.host} is lost")
        elif worker.state == "silent":
            found.append(f"worker {worker.number} on {worker.host} has said nothing for {worker.age / 1e9:.0f} s")
        if worker.gpu is not None and worker.gpu.errors > 0:
            found.append(
                f"the GPU of worker {worker.number} has had {worker.gpu.errors} memory errors that could not be corrected"
            )
        waiting = worker.waiting
        if waiting is not None and waiting.what == "pieces" and waiting.time - waiting.since > STUCK_AFTER_NS:
            found.append(
                f"worker {worker.number} has waited for pieces of the {waiting.kind} from {waiting.peers} "
                f"for {(waiting.time - waiting.since) / 1e9:.0f} s"
            )
    return found + [
        f"client {client.number} waits for a worker in the place of one that was lost"
        for client in snapshot.clients
        if client.state is not None and client.state.phase == "workers"
    ]


def status(snapshot: Snapshot) -> int:
    """The exit status that tells health."""
    if snapshot.service is None:
        return UNREACHABLE
    return UNWELL if troubles(snapshot) else WELL
