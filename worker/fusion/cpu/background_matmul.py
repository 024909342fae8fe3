"""Background products: those whose results are read late, which another thread computes beside the steps in between.

In a backward pass the gradient of a weight is read when the pass is over, and that of the layer's input at once. To cut one
product of a millisecond into pieces wakes two threads, and one of them waits; to compute a whole one elsewhere wakes one, and
nobody waits. It is the same call on the same operands, so no bit depends on who does it, or when. Which products those are
follows from the program alone. No arithmetic here.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gt.worker.device.thread_pool import ThreadPool
from gt.worker.fusion.incremental import Incremental
from gt.worker.kernels.matmul import MIN_SHARED_MULTIPLICATIONS
from gt.worker.program.compiler import LAYOUT_OPS, Action, ProgramStep, Slots

MIN_MULTIPLICATIONS: Final = 8_000_000
"""Multiplications from which a product is worth the waking of a thread: some 200 µs of a core."""
ELEMENT_COST: Final = 20
"""So many multiplications take as long as one element of a step that is no product."""


class ActionSteps(NamedTuple):
    """An action, and the steps that it stands for."""

    action: Action
    steps: list[ProgramStep]


class BackgroundMatmul:
    """A product under way: it stands in its result's slot until somebody needs that. Who comes first computes it."""

    __slots__ = ("_claim", "_done", "_error", "_operands", "_value", "step")

    def __init__(self, step: ProgramStep, operands: list[Any]) -> None:
        self.step = step
        self._operands = operands
        self._value: Any = None
        self._error: Exception | None = None
        self._claim = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def join(self, _thread: int = 0) -> None:
        """Compute the product, unless somebody does."""
        if not self._claim.acquire(blocking=False):
            return
        operands, self._operands = self._operands, []
        try:
            self._value = self.step.kernel(*operands)
        except Exception as error:  # noqa: BLE001 — whatever a kernel raises is raised where its result is wanted
            self._error = error
        finally:
            operands.clear()  # before anybody hears of it: what dies now may be written to
            self._done.release()

    def result(self) -> Any:
        """The value of the product, or what its kernel raised, as often as it is asked for."""
        self.join()
        with self._done:
            pass
        if self._error is not None:
            raise self._error
        return self._value


def settle(slots: Slots, failed: Callable[[ProgramStep, Exception], None]) -> None:
    """Wait for all that is under way, and put results in their slots; `failed` hears of those that have none."""
    for slot, value in enumerate(slots):
        if type(value) is BackgroundMatmul:
            try:
                slots[slot] = value.result()
            except Exception as error:  # noqa: BLE001 — as above
                failed(value.step, error)


def set_aside(groups: list[ActionSteps], wanted: set[int], thread_pool: ThreadPool) -> Incremental[list[ActionSteps]]:
    """The groups of a block, its late-read products begun where they were and met where they are read.

    A view of such a product, as a weight's gradient is, waits with it. `wanted`: slots that are read after the block.
    """
    writes = [step.writes for group in groups for step in group.steps]
    if thread_pool.threads == 1 or len(set(writes)) < len(writes):  # slots are written again, as sums over microbatches
        return groups
    costs: list[int] = []
    for group in groups:
        cost = 0
        for step in group.steps:
            yield
            cost += _cost(step)
        costs.append(cost)
    readers: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        for slot in {slot for step in group.steps for slot in step.reads}:
            readers.setdefault(slot, []).append(at)
    begun: dict[int, ActionSteps] = {}
    before: dict[int, list[ActionSteps]] = {}
    moved: set[int] = set()
    end = [len(groups)]
    for at, group in enumerate(groups):
        if not MIN_MULTIPLICATIONS <= costs[at] < MIN_SHARED_MULTIPLICATIONS or not _is_product(group):
            continue
        (step,) = group.steps
        view = reader = readers.get(step.writes, end)[0]
        rendezvous = [ActionSteps(_meet(step.writes), [])]
        if view < len(groups) and step.writes not in wanted and _is_view(groups[view], step.writes):
            reader = readers.get(groups[view].steps[0].writes, end)[0]
            rendezvous.append(groups[view])
        between = itertools.accumulate(costs[n] for n in range(at + 1, reader) if n not in begun and n not in moved)
        if not any(cost * 2 >= costs[at] for cost in between):
            continue
        begun[at] = ActionSteps(_begin(step, thread_pool), group.steps)
        before[reader] = rendezvous + before.get(reader, [])  # the last begun first: the others are nearer to their end
        if len(rendezvous) > 1:
            moved.add(view)
    if not begun:
        return groups
    found: list[ActionSteps] = []
    for at, group in enumerate(groups):
        found += before.get(at, [])
        if at not in moved:
            found.append(begun.get(at, group))
    return found + before.get(len(groups), [])


def _begin(step: ProgramStep, thread_pool: ThreadPool) -> Action:
    reads, writes, dead = step.reads, step.writes, step.dead

    def begin(slots: Slots) -> None:
        slots[writes] = aside = BackgroundMatmul(step, [slots[slot] for slot in reads])
        for slot in dead:
            slots[slot] = None
        thread_pool.leave(aside)

    return begin


def _meet(slot: int) -> Action:
    def meet(slots: Slots) -> None:
        slots[slot] = slots[slot].result()

    return meet


def _is_view(group: ActionSteps, slot: int) -> bool:
    """Whether a group does no more than look at the value of `slot` in another shape, and is the last to read it."""
    (step,) = group.steps if len(group.steps) == 1 else (None,)
    return step is not None and step.instruction.op in LAYOUT_OPS and step.reads == (slot,) == step.dead


def _is_product(group: ActionSteps) -> bool:
    step = group.steps[0]
    known = len(group.steps) == 1 and step.action is group.action and step.call is not None
    return known and step.instruction.op == "matmul" and step.writes not in step.dead


def _cost(step: ProgramStep) -> int:
    """The cost of a step, in multiplications of a product."""
    call = step.call
    if call is None or step.instruction.op in LAYOUT_OPS:
        return 0
    if step.instruction.op == "matmul":
        return call.result.size * call.tensor(0).shape[-1]
    return ELEMENT_COST * max(
        call.result.size, *(0, *(math.prod(x.shape) for x in call.operands if not isinstance(x, str)))
    )
