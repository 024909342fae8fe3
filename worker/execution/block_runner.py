"""Runs the blocks of a plan: all actions of one between two moves, or step by step where one fails or memory is short.

A failing step puts a `Poison` in place of its result; what reads poison becomes poison, and everything else is computed.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from operator import length_hint
from typing import Any

from gt.errors import VerificationError
from gt.wire import messages as m
from gt.worker.base.backend import Backend
from gt.worker.base.events import Send, ToDispatcher
from gt.worker.cuda_graphs.capturable_run import CapturableRun
from gt.worker.cuda_graphs.graphs import CudaGraphs
from gt.worker.fusion.cpu.background_matmul import settle
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.memory_limit.low_memory_run import LowMemoryRun
from gt.worker.program.compiler import ProgramStep, describe

from .device_failure import FailureWatch
from .execution import Execution
from .tensor_store import Poison, TensorStore


class BlockRunner:
    """Runs blocks of plans on a device, with the stored tensors. `queue` has the messages that the dispatcher has announced, of
    which a low-memory run knows what is needed soon; faults go to `out`."""

    def __init__(
        self, backend: Backend, stored: TensorStore, graphs: CudaGraphs | None, watch: FailureWatch | None,
        queue: deque[Any], out: list[Send],
    ) -> None:  # fmt: skip
        self.backend = backend
        self.stored = stored
        self.graphs = graphs
        self.watch = watch
        self.queue = queue
        self.out = out

    def run(self, running: Execution) -> None:
        """Run the block at which a plan is, or the rest of it, up to where it is to answer (`Execution.at`). What fails becomes
        poison, and nothing is raised."""
        if running.poisoned or running.low_memory is not None or running.live_bytes is not None:
            self._run_steps(running, 0)
            return
        recording, slots = running.recording, running.slots
        block = running.program.actions[running.block]
        start, answer, running.at = running.at, running.answer, 0
        end = len(block)
        timed = recording is not None and recording.sampling
        if answer is not None and answer.block == running.block and not start and not timed:
            end = running.at = answer.at
        actions = iter(block[start:end])
        try:
            if recording is not None and timed:
                recording.timed(actions, slots)
            if self.backend.sync:
                for action in actions:
                    action(slots)
                    self.backend.synchronize()
            for action in actions:
                action(slots)
        except Exception as error:  # noqa: BLE001 — whatever a kernel raises becomes the fault of its result
            running.at = 0
            self._recover(running, end - length_hint(actions) - 1, error)

    def _recover(self, running: Execution, failed: int, error: Exception) -> None:
        """Run the rest of a block step by step after an action failed, so that the failing step of a chain is found."""
        settle(running.slots, partial(self._fail, running))
        program = running.program
        at, steps = program.starts[running.block][failed], program.blocks[running.block]
        action = program.actions[running.block][failed]
        if isinstance(action, CapturableRun):
            action, done = action.failing()
            at += done
        once_more = isinstance(error, MemoryError) and self._continues_in_low_memory(running, at)
        if not once_more and at < len(steps) and steps[at].action is action:
            self._fail(running, steps[at], error)
            at += 1
        elif self.watch is not None and self.backend.sync:  # when its steps run, a device that it killed fails in each
            end = (*program.starts[running.block], len(steps))[failed + 1]
            described = "; ".join(describe(program, step.instruction) for step in steps[at:end])
            self.watch.blame(f"one kernel that does {described}")
        self._run_steps(running, at)

    def _continues_in_low_memory(self, running: Execution, at: int) -> bool:
        """Turn a plan that ran out of memory at a step into a low-memory run from there on. Returns whether that is possible:
        values can be evicted, and the step's operands are untouched."""
        limiter, slots, blocks = self.stored.limiter, running.slots, running.program.blocks
        if (
            limiter is None
            or at == len(blocks[running.block])
            or any(slots[slot] is None for slot in blocks[running.block][at].tensors)
        ):
            return False
        if self.graphs is not None:
            self.graphs.give_up()
        position = sum(map(len, blocks[: running.block])) + running.block + at
        running.low_memory = self.low_memory_run(running, limiter, position)
        return True

    def low_memory_run(self, running: Execution, limiter: MemoryLimiter, at: int = 0) -> LowMemoryRun:
        """How a plan runs, from its `at`th step on, whose values do not all fit into memory."""
        program, tensors = running.program, self.stored.tensors
        lasting = {slot: (running.client, running.base + offset) for offset, slot in program.survivors}
        return LowMemoryRun(limiter, program, running.slots, tensors, self.queue, lasting, at)

    def _fail(self, running: Execution, step: ProgramStep, error: Exception) -> None:
        """Put poison in place of the result of a step, and report it."""
        kind, text = self.stored.fault(error, running.order, running.program, running.slots)
        described = describe(running.program, step.instruction)
        if self.watch is not None:
            self.watch.blame(described)
        fault = (kind, f"{text}\n  in {described}")
        running.slots[step.writes] = Poison(fault)
        running.poisoned = True
        if isinstance(error, VerificationError):
            running.refuted = running.refuted or Poison(fault)
        self.out.append(ToDispatcher(m.Poisoned(running.order, running.client, *fault)))

    def _run_steps(self, running: Execution, start: int) -> None:
        """Run the rest of a block step by step, because memory is short or some slot holds poison. What reads poison becomes
        poison, everything else is computed."""
        slots, low_memory, live_bytes = running.slots, running.low_memory, running.live_bytes
        if live_bytes is not None:
            live_bytes.begin_block()
        for step in running.program.blocks[running.block][start:]:
            poison = next((slots[r] for r in step.sources if type(slots[r]) is Poison), None)
            if poison is not None:
                slots[step.writes] = poison
            else:
                try:
                    if live_bytes is not None:
                        live_bytes.check(step, anew=low_memory is not None)
                    slots[step.writes] = _computed(step, slots, low_memory)
                    if self.backend.sync:
                        self.backend.synchronize()
                except Exception as error:  # noqa: BLE001 — as above
                    self._fail(running, step, error)
            for dead in step.dead:
                slots[dead] = None
            if low_memory is not None:
                low_memory.done(step.writes, step.dead)
            if live_bytes is not None:
                live_bytes.done(step)


def _computed(step: ProgramStep, slots: list[Any], low_memory: LowMemoryRun | None) -> Any:
    """Computes the result of a step. In a low-memory run its operands are brought in first, and everything else is evicted if
    the kernel itself needs the room."""
    if low_memory is None:
        return step.kernel(*[slots[r] for r in step.reads])
    low_memory.make_ready(step)
    try:
        return step.kernel(*[slots[r] for r in step.reads])
    except MemoryError:
        if not low_memory.alone(step.tensors):
            raise
    return step.kernel(*[slots[r] for r in step.reads])
