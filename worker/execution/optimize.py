"""Optimises a hot program: each chain and row-parallel group is one action, and products that are read late run in parallel.

This changes the time and memory that a program takes, and no bit of its results, so it may happen at any run. Where something
fails or is poisoned, the steps are there as before, in an order in which they can run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gt.worker.base.backend import Backend
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.fusion.chains import Chain, fusing
from gt.worker.fusion.cpu import chain_lowering, piecewise_chain, strip_executor, torch_chains
from gt.worker.fusion.cpu.background_matmul import ActionSteps, set_aside
from gt.worker.fusion.cpu.row_parallel import RowParallelAction, RowParallelGroup, with_row_parallel_groups
from gt.worker.fusion.cpu.scalar_batch import ScalarBatch, compile_batch, scalar_batch
from gt.worker.fusion.cpu.vector_batch import VectorBatch, compile_vectors, vector_batch
from gt.worker.fusion.cuda import fused_kernel
from gt.worker.fusion.incremental import Incremental, at_once, finished
from gt.worker.program.compiler import Action, Program, ProgramStep, Slots, action_of

Unit = Chain | int | RowParallelGroup | ScalarBatch | VectorBatch
"""What runs as one action: a chain, a group, a batch, or a step by its number."""
HOT_RUN: Final = 3
"""The run from which on a program is fused: from then on this saves more than it costs. It changes only the time. (On a GPU it
is the first run, because fused kernels add up rows in an order of their own.)"""


class ChainExecutor(NamedTuple):
    """What runs chains: which calls they may contain, which of them pay, and what makes one an action (None: run its steps)."""

    able: Callable[[KernelCall], bool]
    worth: Callable[[Chain], bool]
    compile: Callable[[Chain, tuple[int, ...], Action], Incremental[Action | None]]
    loose: bool = False
    """Whether it accepts chains of loose forms."""
    thread_pool: ThreadPool | None = None
    """The thread_pool whose other threads may compute what is read late."""


def on_cpu(thread_pool: ThreadPool) -> ChainExecutor:
    """Chains as NumPy's inner loops over pieces, where these are built, or as its functions over strips of rows."""
    return ChainExecutor(
        chain_lowering.able,
        lambda chain: piecewise_chain.worth(chain) or strip_executor.worth(chain, thread_pool),
        lambda chain, dead, by_steps: (
            at_once(piecewise_chain.compile_piecewise(chain, dead, by_steps))
            if piecewise_chain.worth(chain)
            else strip_executor.compile_chain(chain, thread_pool, dead, by_steps)
        ),
        thread_pool=thread_pool,
    )


def on_gpu(xp: Any) -> ChainExecutor:
    """Chains as generated kernels, one for each."""
    return ChainExecutor(
        fused_kernel.able,
        fused_kernel.worth,
        lambda chain, dead, by_steps: at_once(fused_kernel.compile_chain(chain, xp, dead, by_steps)),
        loose=True,
    )


def on_torch(backend: Backend, thread_pool: ThreadPool) -> ChainExecutor:
    """Chains as NumPy's functions over the memory of PyTorch's tensors, which is the host's."""
    return ChainExecutor(
        torch_chains.able,
        lambda chain: strip_executor.worth(chain, thread_pool),
        lambda chain, dead, by_steps: torch_chains.compile_chain(chain, backend, thread_pool, dead, by_steps),
    )


def executor(backend: Backend) -> ChainExecutor:
    """The executor of a backend."""
    if backend.torch is not None:
        return on_torch(backend, backend.torch.threads)
    return on_gpu(backend.xp) if backend.thread_pool is None else on_cpu(backend.thread_pool)


def fused(program: Program, executor: ChainExecutor) -> Program:
    """The program with each chain as one action. Poison and errors are still handled step by step."""
    return finished(fusing_program(program, executor))


def fusing_program(program: Program, executor: ChainExecutor) -> Incremental[Program]:
    """`fused`, piece by piece; the program itself stays as it is."""
    wanted = {slot for _, slot in program.survivors + program.relocated}
    blocks: list[list[ProgramStep]] = []
    actions: list[list[Action]] = []
    starts: list[Sequence[int]] = []
    for number in range(len(program.blocks) - 1, -1, -1):
        block, acts, firsts = yield from _fused_block(program.blocks[number], wanted, executor)
        blocks.append(block)
        actions.append(acts)
        starts.append(firsts)
        wanted.update(slot for step in block for slot in step.reads)
        if number:
            move = program.moves[number - 1]
            wanted.update((move.source, move.target))
    return replace(program, blocks=blocks[::-1], actions=actions[::-1], starts=starts[::-1])


def _fused_block(
    steps: list[ProgramStep], wanted: set[int], executor: ChainExecutor
) -> Incremental[tuple[list[ProgramStep], list[Action], list[int]]]:
    """The steps of a block in the order in which they run as chains, the actions, and the index of each action's first step."""
    vectors = None if executor.thread_pool is None else (yield from vector_batch(steps, wanted))
    last = set() if vectors is None else set(vectors.steps)
    shown = [replace(step, call=None) if at in last else step for at, step in enumerate(steps)] if last else steps
    order = yield from fusing(shown, wanted, executor.able, executor.worth, loose=executor.loose)
    units: Sequence[Unit] = order
    if executor.thread_pool is not None:
        order = [each for each in order if not isinstance(each, int) or each not in last]
        units = with_row_parallel_groups(steps, order, executor.thread_pool)
        batch = yield from scalar_batch(steps, [each for each in units if isinstance(each, int)])
        if batch is not None:
            inside = set(batch.steps)
            units = [batch, *(each for each in units if not isinstance(each, int) or each not in inside)]
        if vectors is not None:
            units = [*units, vectors]
    groups = yield from _grouped(steps, units, wanted, executor)
    if executor.thread_pool is not None:
        groups = yield from set_aside(groups, wanted, executor.thread_pool)
    starts = list(itertools.accumulate((len(group.steps) for group in groups), initial=0))[:-1]
    return [step for group in groups for step in group.steps], [group.action for group in groups], starts


def _grouped(
    steps: list[ProgramStep], order: Sequence[Unit], wanted: set[int], executor: ChainExecutor
) -> Incremental[list[ActionSteps]]:
    """Steps in the order in which they run, with those of a chain or row-parallel group together."""
    if all(isinstance(each, int) for each in order):
        return [ActionSteps(step.action, [step]) for step in steps]
    flat = [steps[at] for each in order for at in ((each,) if isinstance(each, int) else each.steps)]
    dying = {slot for step in steps for slot in step.dead}
    dead: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for step in reversed(flat):
        yield
        touched = dict.fromkeys((*step.tensors, step.writes))
        dead.append(tuple(slot for slot in touched if slot in dying and slot not in seen))
        seen.update(touched)
    for at, dies in enumerate(reversed(dead)):
        yield
        step = flat[at]
        action = action_of(step.kernel, step.reads, step.writes, dies, step.into)
        flat[at] = replace(step, action=action, dead=dies)
    groups: list[ActionSteps] = []
    at = 0
    for each in order:
        members = flat[at : at + (1 if isinstance(each, int) else len(each.steps))]
        compiled: Action | None = None
        if isinstance(each, RowParallelGroup):
            assert executor.thread_pool is not None, "only a thread_pool has row-parallel groups"
            inside = {step.writes for step in members}
            beside = {slot for step in [*flat[:at], *flat[at + len(members) :]] for slot in step.reads}
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead if slot not in inside))
            compiled = RowParallelAction(members, (wanted | beside) & inside, executor.thread_pool, dies)
        elif isinstance(each, ScalarBatch):
            inside = {step.writes for step in members}
            beside = {slot for step in flat[at + len(members) :] for slot in step.reads}
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead if slot not in inside))
            compiled = compile_batch(members, (wanted | beside) & inside, dies)
        elif isinstance(each, VectorBatch):
            inside = {step.writes for step in members}
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead))
            compiled = compile_vectors(members, each.sizes, wanted & inside, dies, _one_by_one(members, dies))
        elif isinstance(each, Chain):
            dies = tuple(dict.fromkeys(slot for step in members for slot in step.dead))
            compiled = yield from executor.compile(each, dies, _one_by_one(members, dies))
        groups += (
            [ActionSteps(step.action, [step]) for step in members]
            if compiled is None
            else [ActionSteps(compiled, members)]
        )
        at += len(members)
    return groups


def _one_by_one(steps: list[ProgramStep], dead: tuple[int, ...]) -> Action:
    """Several steps as one action. Slots that die are cleared at the end, so that the steps can run again after an error."""
    calls = [(step.kernel, step.reads, step.writes) for step in steps]

    def run(slots: Slots) -> None:
        for kernel, reads, writes in calls:
            slots[writes] = kernel(*[slots[r] for r in reads])
        for x in dead:
            slots[x] = None

    return run
