"""Ops of packages at the dispatcher: which the workers of a mesh lack, and what programs are told of who has which.

A program looks before it sends such an op. What it cannot know, such as a worker that joins later, is found here: when a segment
is first run on a mesh, the instructions whose op some worker lacks are refused, as those that are not legal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gt.dispatcher.state.records import WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ProtocolError
from gt.op_packages.offers import SAME_PROCESS, Offer, first_lacking, own_offer, read_offer
from gt.sharding.placement import Mesh

FACT: Final = "ops"
"""Under which a worker's `Hello` has its offer."""
MAX_KNOWN: Final = 256
"""Answers that are kept: for how many meshes and sets of ops."""


def check_offer(facts: dict[str, Any]) -> None:
    """Raise `ProtocolError` if a worker's facts have no offer that can be read."""
    read_offer(facts.get(FACT))


def _named(worker: WorkerRecord) -> str:
    device, host = worker.facts.get("device", "unknown device"), worker.facts.get("host")
    return f"worker {worker.number} ({device}{f' on {host}' if isinstance(host, str) else ''})"


def _offer_of(worker: WorkerRecord) -> Offer:
    try:
        return read_offer(worker.facts.get(FACT))
    except ProtocolError:  # of one that joined at a dispatcher before
        return {}


def _distinct(workers: Iterable[WorkerRecord]) -> Iterator[tuple[str, Any]]:
    """The offers of workers as they told them, each once, with who has it."""
    by_offer: dict[str, list[WorkerRecord]] = {}
    for worker in sorted(workers, key=lambda each: each.number):
        raw = worker.facts.get(FACT)
        by_offer.setdefault(json.dumps(raw, sort_keys=True, default=str), []).append(worker)
    for same in by_offer.values():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        raw = same[0].facts.get(FACT)
        yield f"{_named(same[0])}{more}", own_offer() if raw is SAME_PROCESS else raw or {}


def offers_of(service: DispatcherState) -> dict[str, Any]:
    """The answer to the question 'ops': what the dispatcher has, and what the workers in service have."""
    workers = [list(each) for each in _distinct(service.in_service)]
    return {"dispatcher": own_offer(), "workers": workers}


class LackingOps:
    """Which ops of packages the workers of a mesh lack, and what to tell of each. A worker keeps those with which it joined."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service
        self.known: dict[tuple[int, frozenset[str]], dict[str, str]] = {}

    def on(self, mesh: Mesh, ops: frozenset[str]) -> dict[str, str]:
        """Of these ops those that some worker of the mesh lacks, each with a text for the program."""
        key = mesh.number, ops
        found = self.known.get(key)
        if found is None:
            members = set(mesh.members)
            workers = [each for each in self.service.workers.values() if each.number in members]
            found = first_lacking(sorted(ops), ((_named(each), _offer_of(each)) for each in workers))
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[key] = found
        return found
