"""What the workers of an in-memory session are told to move, run by run: read from the messages that one of them gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gt
from gt.ir.instruction import MOVE, Plan
from gt.ir.instruction_bytes import unpack_plan
from gt.sharding.config import Config
from gt.sharding.partition import moved_bytes
from gt.sharding.placement import Mesh, collective_name, format_layout
from gt.wire import messages as m


class Move(NamedTuple):
    """One collective: what it is called, of what, in which phase and innermost signal, and the bytes that travel in all."""

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
    def client(self) -> Any:
        """What the dispatcher knows of this session."""
        (client,) = self.session.link.fabric.dispatcher.service.clients.values()
        return client

    @property
    def mesh(self) -> Mesh:
        """The mesh that the session's config asked for."""
        mesh: Mesh = self.client.mesh
        return mesh

    def home(self, tensor: gt.Tensor) -> str:
        """Where a tensor lives between plans."""
        gt.flush()
        return format_layout(self.client.table[tensor._value.id].resident.layout)

    def taken(self) -> list[Plan]:
        """The plans that were run since this was asked last."""
        gt.flush()
        runs, self.runs = self.runs, []
        return runs

    def moves(self, plans: list[Plan]) -> list[Move]:
        """The collectives of plans, in order; moves for which nobody needs what another holds are none."""
        return [move for plan in plans for move in _moves(plan, self.mesh)]


def _moves(plan: Plan, mesh: Mesh) -> Iterator[Move]:
    axes = len(mesh.sizes)  # along one in time nothing travels
    for instruction in plan.instructions:
        if instruction.op != MOVE:
            continue
        before, after = plan.layout(instruction.inputs[0])[:axes], plan.layouts[instruction.outputs[0]][:axes]
        value, tag = plan.values[instruction.outputs[0]], plan.tags[instruction.tag]
        total, _ = moved_bytes(value.shape, value.dtype.itemsize, before, after, mesh)
        if total:
            signal = tag.signal[-1] if tag.signal else ""
            yield Move(collective_name(before, after), value.shape, tag.phase, signal, total)


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
