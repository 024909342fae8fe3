"""The dispatcher's answer to `gt health`: how many workers there are, and how long the most silent one has said nothing."""

from __future__ import annotations

from typing import Any

from gt.daemon.process_end import MACHINE_FACTS
from gt.dispatcher.state.records import WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState


def health_facts(service: DispatcherState, asked: dict[str, Any]) -> dict[str, Any]:
    """The facts for a prober's `Welcome`; `asked` are those of its `Hello`."""
    facts: dict[str, Any] = {
        "workers": len(service.in_service), "spares": service.spares, "expected": service.workers_expected,
    }  # fmt: skip
    if "worker" in asked:
        found = _worker(service, asked["worker"])
        silence = 0 if found is None else int(max(0.0, service.now - found.heard) * 1000)
        facts["worker"] = [] if found is None else [found.number, silence, found.duty.value]
    return facts


def _worker(service: DispatcherState, which: Any) -> WorkerRecord | None:
    """The worker with a number, or the one that was heard last of those in a process namespace; None if there is none."""
    if isinstance(which, dict):
        there = [
            worker
            for worker in service.workers.values()
            if all(which.get(key) and worker.facts.get(key) == which.get(key) for key in MACHINE_FACTS)
        ]
        return max(there, key=lambda worker: worker.heard, default=None)
    return next((worker for worker in service.workers.values() if type(which) is int and worker.number == which), None)
