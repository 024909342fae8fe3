"""The plans that a worker knows, and their programs: compiled at the first run, fused from the run on at which they are hot.

To fuse a long program takes many times as long as to run it, so on a CPU this is done piece by piece (`turn`): some pieces
with each run of any plan, by number and not by the clock, and more while the worker has nothing else to do. The fused program
takes over at the first run at which it is ready, which changes no bit. On a GPU a program is fused before its first run,
since its bits would change.

A program refers to ranks, and not to workers. So the programs of plans that were dropped are kept for a while: when a session
goes back to a mark (`marks.py`), its plans come again with other numbers, on a mesh with another number, and are not compiled
again.

A mistake in the compiler never ends a worker, since its other sessions would lose what they have there. An instruction that
cannot be compiled fails by itself (`worker/program/compiler.py`), a program that cannot be fused runs as it is, and a plan
that cannot be compiled at all leaves poison (`pass_over` in `worker/plan_run.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, NamedTuple

from gt.ir.instruction import Plan
from gt.ir.instruction_bytes import split_plan, unpack_plan
from gt.worker.base.backend import Backend
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.fusion.incremental import Incremental
from gt.worker.program.compiler import Program, compile_plan
from gt.worker.telemetry.nvtx_ranges import NvtxRange, with_ranges
from gt.worker.telemetry.recorder import WorkerRecording

from .execution import MeshInfo
from .optimize import HOT_RUN, executor, fused, fusing_program

log = logging.getLogger(__name__)
MAX_SPARE_STEPS: Final = 1 << 14
"""The most steps of programs that are kept after their plans were dropped; a step takes one or two KiB."""
MIN_TURN_PIECES: Final = 128
"""Pieces of fusing done with a run, at least: a third of a millisecond. Programs of some ten steps are ready with them."""
STEPS_PER_PIECE: Final = 40
"""Steps of the program that runs for each piece that is done with it: a piece takes 2 µs, and a step half of one and more."""
IDLE_TURN_PIECES: Final = 128
"""Pieces done at once while there is nothing else to do: what comes then waits a third of a millisecond."""
UNFUSED: Final = "a plan of %s runs unfused, as fusing it failed; please report this"


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

    def __init__(
        self,
        backend: Backend,
        graphs: CudaGraphs | None,
        long_lived: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`long_lived`: what is entered to make programs (`worker/device/heap.py`)."""
        self.backend = backend
        self.long_lived = long_lived
        self.graphs = graphs
        self.plans: dict[int, bytes] = {}
        self.compiled: dict[int, Program] = {}
        self.keys: dict[int, ProgramKey] = {}
        """Those of the compiled programs."""
        self.spare: dict[ProgramKey, Program] = {}
        """The programs of plans that were dropped, the oldest first. None with CUDA graphs, which have memory of the GPU."""
        self.spare_steps = 0
        """The steps of all these."""
        self.fusing: dict[int, Incremental[Program]] = {}
        """The plans that are being fused, in the order in which they became hot."""

    def define(self, number: int, body: bytes) -> None:
        """Learn a plan and its number."""
        self.plans[number] = body

    def drop(self, number: int) -> None:
        """Forget a plan."""
        self.plans.pop(number, None)
        program, key = self.compiled.pop(number, None), self.keys.pop(number, None)
        if self.fusing.pop(number, None) is not None and program is not None:
            program.runs = HOT_RUN - 1  # it is hot, and not fused
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
                program = self._hot(number, program)
        if self.fusing:
            self.turn(max(MIN_TURN_PIECES, _steps(program) // STEPS_PER_PIECE))
            program = self.compiled[number]
        return program

    def turn(self, pieces: int = IDLE_TURN_PIECES) -> None:
        """Fuse the oldest of the hot programs a bit further, by so many pieces at most."""
        number, work = next(iter(self.fusing.items()))
        try:
            with self.long_lived():
                for _ in range(pieces):
                    next(work)
        except StopIteration as end:
            self.compiled[number] = end.value
            del self.fusing[number]
        except Exception:
            log.exception(UNFUSED, lines_of(self.compiled[number].plan))
            del self.fusing[number]

    def _compiled(self, number: int, info: MeshInfo, recording: WorkerRecording | None) -> Program:
        if recording is not None:
            recording.compiled += 1
        with self.long_lived():
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

    def _hot(self, number: int, program: Program) -> Program:
        """The program for a plan's run at which it becomes hot: if fusing fails, the program as it is, which does the same."""
        if self.backend.torch is not None and not self.backend.torch.on_host:  # its functions are called one by one
            return program
        if self.backend.thread_pool is not None:
            self.fusing[number] = fusing_program(program, executor(self.backend))
            return program
        try:
            hot = fused(program, executor(self.backend))
            if self.backend.marks is not None:
                hot = with_ranges(hot, NvtxRange(*self.backend.marks))
            elif self.graphs is not None:
                hot = self.graphs.program(hot)
            self.compiled[number] = hot
        except Exception:
            log.exception(UNFUSED, lines_of(program.plan))
        return self.compiled[number]

    def check(self) -> None:
        """The invariants between events."""
        assert set(self.compiled) <= set(self.plans)
        assert set(self.keys) == set(self.compiled)
        assert set(self.fusing) <= set(self.compiled)
        assert self.spare_steps == sum(map(_steps, self.spare.values())) <= MAX_SPARE_STEPS


def _steps(program: Program) -> int:
    return 1 + sum(map(len, program.blocks)) + len(program.moves)


def lines_of(plan: Plan) -> str:
    """The first and last user lines of a plan's instructions."""
    sites = [plan.tags[instruction.tag].site for instruction in plan.instructions] or ["nothing"]
    return sites[0] if sites[0] == sites[-1] else f"{sites[0]} to {sites[-1]}"
