"""How the worker runs a plan, from `Execute` to `Done`: block by block, suspended at moves whose pieces have not all come.

`execution/plan_state.py` has the states of a plan, `execution/block_runner.py` runs what lies between two moves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.wire import messages as m
from gt.wire.faults import fault_of
from gt.wire.shared_memory.running_plan import CLIENT, IN_PROGRESS, ORDER
from gt.worker.base.events import ToDispatcher
from gt.worker.execution.early_answer import answer_point
from gt.worker.execution.execution import Execution, MeshInfo
from gt.worker.execution.plan_state import PlanState
from gt.worker.execution.program_cache import lines_of
from gt.worker.execution.tensor_store import ABSENT, Poison, missing_tensor, storable
from gt.worker.memory_limit.limiter import MemoryLimiter, SpillCause
from gt.worker.memory_limit.principal_memory import LiveBytesRun
from gt.worker.program.compiler import Program
from gt.worker.spill.spill_file import SpilledValue
from gt.worker.telemetry.recorder import COMMUNICATION_TIME, RUNTIME_TIME

if TYPE_CHECKING:
    from .core import WorkerCore

log = logging.getLogger(__name__)


@np.errstate(all="ignore")
def execute(core: WorkerCore, message: m.Execute, now: float) -> None:
    """Begin a plan, compiled if it is the first time."""
    core.began = core.clock()
    words = core.running_words
    words[ORDER], words[CLIENT], words[IN_PROGRESS] = message.order, message.client, 1
    try:
        program = core.programs.program(message.plan, core.meshes, core.recording)
    except Exception as error:
        log.exception("a plan could not be compiled; please report this")
        pass_over(core, message, error, now)
    else:
        _begin(core, program, message, now)


def _begin(core: WorkerCore, program: Program, message: m.Execute, now: float) -> None:
    if core.watch is not None:
        core.watch.recent.append(program)
    info = core.meshes[program.plan.mesh]
    store = core.stored.tensors.setdefault(message.client, {})
    limiter = core.stored.limiter
    if limiter is not None:
        limiter.cause = SpillCause(message.client, message.plan, message.order)
    fits = limiter is None or _admitted(core, program, message, limiter)
    slots: list[Any] = [None] * program.slots
    running = Execution(message.order, message.plan, message.client, message.base, message.inputs, program, info, slots)
    count = len(message.inputs)
    for slot, tensor in enumerate(message.inputs):
        value = store.get(tensor)
        if value is None:
            value = missing_tensor(tensor, core.number)
        elif limiter is not None and fits and type(value) is SpilledValue:
            value = store[tensor] = core.stored.take_in((message.client, tensor), value)
        slots[slot] = None if value is ABSENT else value
        if type(value) is Poison:
            running.poisoned = True
    value = None  # what dies in the plan dies then, and may be written to
    if core.stored.coming:
        core.stored.meet(message.client, message.inputs)
    if core.deferred_checks is not None:
        for slot, fault in core.deferred_checks.enter(
            message.client, message.inputs, running.deferred_checks, message.dying
        ).items():
            slots[slot] = store[message.inputs[slot]] = Poison(fault)
            running.poisoned = True
    slots[count : count + len(message.scalars)] = message.scalars
    for position in message.dying:
        store.pop(message.inputs[position], None)
    if message.freed:
        core.stored.free(message.client, message.freed)
    _limit(core, running, None if fits else limiter)
    _note_fetch(core, running, message)
    if core.recording is not None:
        running.recording = core.recording.begin(running)
    running.enter(PlanState.RUNNING)
    run(core, running, now)


def _note_fetch(core: WorkerCore, running: Execution, message: m.Execute) -> None:
    """Note what is asked for with a plan, and where it stops to answer, if its steps are computed at once."""
    if message.fetch:
        running.asked = _asked(message)
        if core.stops and core.backend.staging is None:
            running.answer = answer_point(running.program, message.fetch[1])


def _limit(core: WorkerCore, running: Execution, limiter: MemoryLimiter | None) -> None:
    """Have a plan run step by step whose client's principal might hold too much; and, with a limiter, one that does not fit
    into memory."""
    memory, tensors = core.stored.memory, core.stored.tensors
    if memory.limited and not memory.admits(running.client, running.program.need, tensors):
        running.live_bytes = LiveBytesRun(memory, running.client, running.program, running.slots, tensors)
    if limiter is not None:
        running.low_memory = core.blocks.low_memory_run(running, limiter)


def pass_over(core: WorkerCore, message: m.Execute, error: Exception, now: float) -> None:
    """Finish a plan that cannot be compiled: its results are poison. It takes part in no move: its peers learn that by
    their time-out, unless it failed there too."""
    plan = core.programs.plan(message.plan)
    kind, text = fault_of(error)
    fault = (kind, f"{text}\n  in compiling a plan of {lines_of(plan)}")
    store = core.stored.tensors.setdefault(message.client, {})
    core.stored.free(message.client, [*(message.inputs[position] for position in message.dying), *message.freed])
    left = [message.base + offset for offset, _ in plan.survivors]
    left += [message.inputs[position] for position, _ in plan.relocated if message.inputs[position] in store]
    store.update(dict.fromkeys(left, Poison(fault)))
    core.out.append(ToDispatcher(m.Poisoned(message.order, message.client, *fault)))
    core.running_words[IN_PROGRESS] = 0
    core.finished = message.order
    core.moves.forget(message.order)
    if message.fetch:
        collect(core, _asked(message), now)
    report_done(core, message.order, core.meshes[plan.mesh], now)


def _admitted(core: WorkerCore, program: Program, message: m.Execute, limiter: MemoryLimiter) -> bool:
    """Whether there is room for a plan, if necessary with the memory of CUDA graphs."""
    tensors = core.stored.tensors
    while not limiter.admits(program, message.client, message.inputs, tensors, core.queue):
        if core.graphs is None or not core.graphs.give_up():
            return False
    return True


def run(core: WorkerCore, running: Execution, now: float) -> None:
    """Run blocks and moves until the plan ends or a move has to wait."""
    program, recording = running.program, running.recording
    while True:
        core.blocks.run(running)
        if running.at:
            if _answers(core, running):
                return
            continue
        if core.deferred_checks is not None and core.deferred_checks.checks:
            core.deferred_checks.gather(program, running.order, running.client, running.deferred_checks)
        if recording is not None and recording.sampling:
            recording.block_ends(running)
        if running.block == len(program.moves):
            _finish(core, running, now)
            return
        if recording is not None:
            recording.move_begins()
        if not core.moves.start(running, now) or not core.moves.advance(running, now):
            _suspend(core, running)
            if recording is not None:
                recording.switch(RUNTIME_TIME)
            return
        core.moves.complete(running)


def _answers(core: WorkerCore, running: Execution) -> bool:
    """Answer what was asked with a run, if the value is there: it leaves before the plan goes on. Returns whether it does."""
    assert running.answer is not None, "it has stopped for that"
    assert running.asked is not None, "nobody else has answered"
    value = running.answer.value(running.slots)
    if value is None:
        return False
    core.stored.collect(running.asked, core.number, running.recording, value=value)
    running.asked = None
    running.enter(PlanState.ANSWERING)
    core.running = running
    core.running_words[IN_PROGRESS] = 0
    return True


def _suspend(core: WorkerCore, running: Execution) -> None:
    """Wait for the move that a plan has entered, or for the checks before it can enter one."""
    state = PlanState.WAITING_FOR_MOVE if running.moves else PlanState.WAITING_FOR_CHECK
    if running.state is not state:
        running.enter(state)
    core.running = running
    core.running_words[IN_PROGRESS] = 0


@np.errstate(all="ignore")
def resume(core: WorkerCore, running: Execution, now: float) -> None:
    """Continue with the move at which a plan is suspended, and after it; or where it has stopped to answer."""
    core.running_words[IN_PROGRESS] = 1
    if running.state is PlanState.ANSWERING:
        core.running = None
        running.enter(PlanState.RUNNING)
        run(core, running, now)
        return
    if core.recording is not None:
        core.recording.switch(COMMUNICATION_TIME)
    if core.moves.start(running, now) and core.moves.advance(running, now):
        core.running = None
        running.enter(PlanState.RUNNING)
        core.moves.complete(running)
        run(core, running, now)
        return
    _suspend(core, running)
    if core.recording is not None:
        core.recording.switch(RUNTIME_TIME)


def _finish(core: WorkerCore, running: Execution, now: float) -> None:
    program, slots = running.program, running.slots
    store = core.stored.tensors.setdefault(running.client, {})
    for offset, slot in program.survivors:
        store[running.base + offset] = running.refuted or storable(slots[slot])
    for position, slot in program.relocated:
        if running.inputs[position] in store:
            store[running.inputs[position]] = storable(slots[slot])
            core.marks.marked.changed(running.client, running.inputs[position])
    if core.deferred_checks is not None:
        _store_checks(core, running)
    if program.survivors:
        core.stored.origins.note(running.client, running.base, program.signals, store)
    if running.low_memory is not None:
        running.low_memory.end()
    if running.live_bytes is not None:
        running.live_bytes.end()
    running.enter(PlanState.FINISHED)
    core.running = None
    core.running_words[IN_PROGRESS] = 0
    core.finished = running.order
    core.executed += 1
    if running.recording is not None:
        running.recording.finish(running)
    core.moves.forget(running.order)
    if running.asked is not None:
        collect(core, running.asked, now)
    report_done(core, running.order, running.info, now)


def _store_checks(core: WorkerCore, running: Execution) -> None:
    """Pass the unknown checks of a plan on to what survives it, and poison stored values of which one found an error."""
    assert core.deferred_checks is not None, "there are deferred checks"
    if running.deferred_checks:
        program = running.program
        kept_here = [((running.client, running.base + offset), slot) for offset, slot in program.survivors]
        kept_here += [((running.client, running.inputs[at]), slot) for at, slot in program.relocated]
        core.deferred_checks.leave(program, running.deferred_checks, kept_here)
    for (client, tensor), fault in core.deferred_checks.look().items():
        if tensor in core.stored.tensors.get(client, {}):
            core.stored.tensors[client][tensor] = Poison(fault)


def report_done(core: WorkerCore, order: int, info: MeshInfo, now: float, *, small_put: bool = False) -> None:
    """Report a plan, put or load as done, at once or with later ones."""
    core.spent, mesh = core.clock() - core.began, info.mesh
    done = core.reports.finished(order, mesh.number, len(mesh.members), now, core.spent, small_put=small_put)
    core.out += map(ToDispatcher, done)


def _asked(message: m.Execute) -> m.Collect:
    """What is fetched of the results of a plan, as the message that would ask for it behind the plan."""
    request, output = message.fetch
    return m.Collect(request, 0, message.client, message.base + output, False, b"")


def collect(core: WorkerCore, message: m.Collect, _now: float) -> None:
    """Answer what a client fetches."""
    deferred_checks = (
        core.deferred_checks.of((message.client, message.tensor)) if core.deferred_checks is not None else ()
    )
    core.stored.collect(message, core.number, core.recording, deferred_checks)
