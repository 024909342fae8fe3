"""The plans that a worker knows, and their programs: compiled at the first run, fused at the run at which they are hot.

A program refers to ranks, and not to workers. So the programs of plans that were dropped are kept for a while: when a session
goes back to a mark (`marks.py`), its plans come again with other numbers, on a mesh with another number, and are not compiled
again.

A mistake in the compiler never ends a worker, since its other sessions would lose what they have there. An instruction that
cannot be compiled fails by itself (`worker/program/compiler.py`), a program that cannot be fused runs as it is, and a plan
that cannot be compiled at all leaves poison (`WorkerCore._pass_over`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gt.ir.instruction import Plan
from gt.ir.instruction_bytes import split_plan, unpack_plan
from gt.worker.base.backend import Backend
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.program.compiler import Program, compile_plan
from gt.worker.telemetry.nvtx_ranges import NvtxRange, with_ranges
from gt.worker.telemetry.recorder import WorkerRecording

from .execution import MeshInfo
from .optimize import HOT_RUN, executor, fused

log = logging.getLogger(__name__)
MAX_SPARE_STEPS: Final = 1 << 14
"""The most steps of programs that are kept after their plans were dropped; a step takes one or two KiB."""


class ProgramKey(NamedTuple):
    """All that a program depends on: the plan's bytes but for its mesh's number, and of the mesh the axes, sizes and weights, the
    own rank, and the GPUs for joint moves."""

    body: bytes
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    rank: int
    cards: tuple[int, ...]


class ProgramCache:
    """Plans and programs, by the numbers that the dispatcher gives to plans."""

    def __init__(self, backend: Backend, graphs: CudaGraphs | None) -> None:
        self.backend = backend
        self.graphs = graphs
        self.plans: dict[int, bytes] = {}
        self.compiled: dict[int, Program] = {}
        self.keys: dict[int, ProgramKey] = {}
        """Those of the compiled programs."""
        self.spare: dict[ProgramKey, Program] = {}
        """The programs of plans that were dropped, the oldest first. None with CUDA graphs, which have memory of the GPU."""
        self.spare_steps = 0
        """The steps of all these."""

    def define(self, number: int, body: bytes) -> None:
        """Learn a plan and its number."""
        self.plans[number] = body

    def drop(self, number: int) -> None:
        """Forget a plan."""
        self.plans.pop(number, None)
        program, key = self.compiled.pop(number, None), self.keys.pop(number, None)
        if program is None or key is None or self.graphs is not None:
            return
        self._take_spare(key)
        self.spare[key] = program
        self.spare_steps += _steps(program)
        while self.spare_steps > MAX_SPARE_STEPS:
            self._take_spare(next(iter(self.spare)))

    def plan(self, number: int) -> Plan:
        """A plan as the dispatcher defined it."""
        return unpack_plan(self.plans[number])

    def program(self, number: int, meshes: Mapping[int, MeshInfo], recording: WorkerRecording | None) -> Program:
        """The program for the next run of a plan. Raises whatever the compiler raises."""
        program = self.compiled.get(number)
        if program is None:
            mesh, body = split_plan(self.plans[number])
            info = meshes[mesh]
            key = ProgramKey(body, info.mesh.axes, info.mesh.sizes, info.mesh.weights, info.rank, info.cards)
            program = self._kept(key, info) or self._compiled(number, info, recording)
            self.compiled[number], self.keys[number] = program, key
        if program.runs < HOT_RUN:
            program.runs += 1
            if program.runs == HOT_RUN:
                program = self.compiled[number] = self._heated(program)
        return program

    def _compiled(self, number: int, info: MeshInfo, recording: WorkerRecording | None) -> Program:
        if recording is not None:
            recording.compiled += 1
        plan = self.plan(number)
        program = compile_plan(plan, info.mesh, info.rank, self.backend, info.cards)
        program.runs = HOT_RUN - 1 if plan.hot or self.backend.thread_pool is None else 0
        return program

    def _take_spare(self, key: ProgramKey) -> Program | None:
        program = self.spare.pop(key, None)
        if program is not None:
            self.spare_steps -= _steps(program)
        return program

    def _kept(self, key: ProgramKey, info: MeshInfo) -> Program | None:
        """The program of a plan that was dropped and is there again, for its new mesh."""
        program = self._take_spare(key)
        if program is None:
            return None
        return replace(program, plan=replace(program.plan, mesh=info.mesh.number), mesh=info.mesh)

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
        assert set(self.keys) == set(self.compiled)
        assert self.spare_steps == sum(map(_steps, self.spare.values())) <= MAX_SPARE_STEPS


def _steps(program: Program) -> int:
    return 1 + sum(map(len, program.blocks)) + len(program.moves)


def lines_of(plan: Plan) -> str:
    """The first and last user lines of a plan's instructions."""
    sites = [plan.tags[instruction.tag].site for instruction in plan.instructions] or ["nothing"]
    return sites[0] if sites[0] == sites[-1] else f"{sites[0]} to {sites[-1]}"
