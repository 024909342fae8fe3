"""The plans that a worker knows, and their programs: compiled at the first run, fused at the run at which they are hot.

A mistake in the compiler never ends a worker, since its other sessions would lose what they have there. An instruction that
cannot be compiled fails by itself (`worker/program/compiler.py`), a program that cannot be fused runs as it is, and a plan
that cannot be compiled at all leaves poison (`WorkerCore._pass_over`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gt.ir.instruction import Plan
from gt.ir.instruction_bytes import unpack_plan
from gt.worker.base.backend import Backend
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.program.compiler import Program, compile_plan
from gt.worker.telemetry.nvtx_ranges import NvtxRange, with_ranges
from gt.worker.telemetry.recorder import WorkerRecording

from .execution import MeshInfo
from .optimize import HOT_RUN, executor, fused

log = logging.getLogger(__name__)


class ProgramCache:
    """Plans and programs, by the numbers that the dispatcher gives to plans."""

    def __init__(self, backend: Backend, graphs: CudaGraphs | None) -> None:
        self.backend = backend
        self.graphs = graphs
        self.plans: dict[int, bytes] = {}
        self.compiled: dict[int, Program] = {}

    def define(self, number: int, body: bytes) -> None:
        """Learn a plan and its number."""
        self.plans[number] = body

    def drop(self, number: int) -> None:
        """Forget a plan."""
        self.plans.pop(number, None)
        self.compiled.pop(number, None)

    def plan(self, number: int) -> Plan:
        """A plan as the dispatcher defined it."""
        return unpack_plan(self.plans[number])

    def program(self, number: int, meshes: Mapping[int, MeshInfo], recording: WorkerRecording | None) -> Program:
        """The program for the next run of a plan. Raises whatever the compiler raises."""
        program = self.compiled.get(number)
        if program is None:
            if recording is not None:
                recording.compiled += 1
            plan = self.plan(number)
            info = meshes[plan.mesh]
            program = self.compiled[number] = compile_plan(plan, info.mesh, info.rank, self.backend, info.cards)
            program.runs = HOT_RUN - 1 if plan.hot or self.backend.thread_pool is None else 0
        if program.runs < HOT_RUN:
            program.runs += 1
            if program.runs == HOT_RUN:
                program = self.compiled[number] = self._heated(program)
        return program

    def _heated(self, program: Program) -> Program:
        """The fused program, or if fusing fails the program as it is, which does the same."""
        try:
            hot = fused(program, executor(self.backend))
            if self.backend.marks is not None:
                return with_ranges(hot, NvtxRange(*self.backend.marks))
            return hot if self.graphs is None else self.graphs.program(hot)
        except Exception:
            log.exception("a plan of %s runs unfused, as fusing it failed; please report this", lines_of(program.plan))
            return program

    def check(self) -> None:
        """The invariants between events."""
        assert set(self.compiled) <= set(self.plans)


def lines_of(plan: Plan) -> str:
    """The first and last user lines of a plan's instructions."""
    sites = [plan.tags[instruction.tag].site for instruction in plan.instructions] or ["nothing"]
    return sites[0] if sites[0] == sites[-1] else f"{sites[0]} to {sites[-1]}"
