"""What the workers of an in-memory session are told to move, run by run: read from the messages that one of them gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gt
from gt import messages as m
from gt.config import Config
from gt.dispatcher.account import Moved, account
from gt.dispatcher.cost import speeds_of
from gt.instruction import Plan, unpack_plan
from gt.placement import Mesh


class Move(NamedTuple):
    """One collective: what it is called, what of, in which phase and signal, and the bytes that travel in all."""

    collective: str
    shape: tuple[int, ...]
    phase: str
    signal: str
    total: int


@dataclass
class Ledger:
    """Every plan that was run, in order."""

    session: Any
    plans: dict[int, Plan] = field(default_factory=dict)
    runs: list[Plan] = field(default_factory=list)

    def watch(self) -> None:
        """Read along what worker 0 is told."""
        worker = next(iter(self.session.link.fabric.workers.values()))
        handle = worker.handle

        def read(event: Any, now: float) -> Any:
            if isinstance(event, m.DefinePlan):
                self.plans[event.plan] = unpack_plan(event.body)
            elif isinstance(event, m.Execute):
                self.runs.append(self.plans[event.plan])
            return handle(event, now)

        worker.handle = read

    @property
    def mesh(self) -> Mesh:
        """The mesh that the session's config asked for."""
        (client,) = self.session.link.fabric.dispatcher.clients.values()
        mesh: Mesh = client.planner.mesh
        return mesh

    def taken(self) -> list[Plan]:
        """The plans that were run since this was asked last."""
        runs, self.runs = self.runs, []
        return runs

    def moves(self, plans: list[Plan]) -> list[Move]:
        """The collectives of plans, in order; moves for which nobody needs what another holds are none."""
        mesh = self.mesh
        speeds = speeds_of(mesh.sizes, [{}] * len(mesh.members))
        return [_move(moved) for plan in plans for moved in account(plan, mesh, speeds).moves if moved.total]


def _move(moved: Moved) -> Move:
    signal = moved.tag.signal[-1] if moved.tag.signal else ""
    return Move(moved.collective, moved.spec.shape, moved.tag.phase, signal, moved.total)


@contextmanager
def sharded(config: dict[str, Any] | Config | None, workers: int) -> Iterator[Ledger]:
    """An in-memory session under a config, and its ledger. All random numbers start from the same seed."""
    read = Config.from_plain(config) if isinstance(config, dict) else config
    session = gt.connect("inproc", workers=workers, config=read)
    try:
        gt.manual_seed(0)
        ledger = Ledger(session)
        ledger.watch()
        yield ledger
        for builder in session.builders:
            builder.check()
        session.link.fabric.check()
    finally:
        gt.disconnect()
