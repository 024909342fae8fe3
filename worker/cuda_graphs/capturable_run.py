"""Capturable runs: consecutive actions that may all be in a CUDA graph, and how they are cut into captured ranges.

A graph reads run-time scalars from the device, where kernels can. What needs a number on the host, such as the start of a slice,
is in a graph for the number that it has; most never change. One that is seen to change stands outside from then on: before
all others, if what it reads is there by then (a slice is a view: that is one more input), else between two ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gt.worker.device.device_scalars import ScalarReadingStep
from gt.worker.fusion.cuda.fused_kernel import FusedKernel
from gt.worker.op_table.op_table import VIEW_OPS
from gt.worker.program.compiler import Action, ProgramStep, Slots

from .captured_range import WARM_RUNS, CapturedRange

if TYPE_CHECKING:
    from .graphs import CudaGraphs

MIN_LAUNCHES: Final = 3
"""Actions of a captured range that tell the device something: for fewer a launch saves nothing."""


class CapturableRun:
    """Runs consecutive actions as one, by captured ranges where it can. `steps`: those of each action."""

    def __init__(self, actions: Sequence[Action], steps: Sequence[Sequence[ProgramStep]], graphs: CudaGraphs) -> None:
        self.actions = list(actions)
        self.steps = [list(members) for members in steps]
        self.graphs = graphs
        self.runs = 0
        self.hosts = [_hosts(action, members) for action, members in zip(actions, steps, strict=True)]
        """Of each action the slots of numbers that it needs on the host."""
        self.watched = tuple(dict.fromkeys(slot for slots in self.hosts for slot in slots))
        self.before: list[str] | None = None
        """What those were in the last run."""
        self.changing: set[int] = set()
        """Those that were seen to change."""
        self.apart: set[int] = set()
        """Actions that were refused in a capture."""
        self.ahead: list[ProgramStep] = []
        self.parts: list[tuple[list[int], Action]] = []
        """In order, each with the numbers of its actions."""
        self.at = -1
        """Which of the parts is under way; -1: what stands before all."""
        self._divide()

    def __call__(self, slots: Slots) -> None:
        self.runs += 1
        self.at, refused = -1, False
        if self.watched:
            self._watch(slots)
            for step in self.ahead:  # what dies with it may be read again: it stays until its slot is emptied
                slots[step.writes] = step.kernel(*[slots[slot] for slot in step.reads])
        for _, part in self.parts:
            self.at += 1
            part(slots)
            if type(part) is CapturedRange and part.stuck >= 0:
                refused = True
        for step in self.ahead:
            for slot in step.dead:
                slots[slot] = None
        if refused:
            self._without_refused()

    def failing(self) -> tuple[Action, int]:
        """After an error: the action that raised it, and how many steps are before it. What stood before all is done again in
        its place."""
        if self.at < 0:
            return self, 0
        numbers, part = self.parts[self.at]
        at = numbers[part.begun if isinstance(part, CapturedRange) else 0]
        return self.actions[at], sum(map(len, self.steps[:at]))

    @property
    def ranges(self) -> list[CapturedRange]:
        return [part for _, part in self.parts if isinstance(part, CapturedRange)]

    def _watch(self, slots: Slots) -> None:
        """See which numbers of the host change."""
        now = [repr(slots[slot]) for slot in self.watched]  # which tells 1 from 1.0, and 0.0 from -0.0
        before, self.before = self.before, now
        if before is None or before == now:
            return
        changed = {slot for slot, was, is_ in zip(self.watched, before, now, strict=True) if was != is_} - self.changing
        if changed:
            self.changing |= changed
            self._divide()

    def _without_refused(self) -> None:
        """What a capture was refused at stands between two captured ranges from now on."""
        for numbers, part in self.parts:
            if isinstance(part, CapturedRange) and part.stuck >= 0:
                at = numbers[part.stuck]
                self.apart.add(at)
                self.graphs.left_out(self.steps[at])
        self._divide()

    def _divide(self) -> None:
        """Cut the actions into captured ranges, and others where there is no graph."""
        self.ahead, self.parts = [], []
        makers = {step.writes: at for at, members in enumerate(self.steps) for step in members}
        ahead: set[int] = set()
        between = set(self.apart)
        for at, slots in enumerate(self.hosts):
            if not self.changing.isdisjoint(slots):
                first = self._first(at, makers)
                if first is None:
                    between.add(at)
                else:
                    ahead.update(first)
        run: list[int] = []
        for at, members in enumerate(self.steps):
            if at in ahead:
                self.ahead += members
            elif at in between:
                self._end(run)
                self.parts.append(([at], self.actions[at]))
            else:
                run.append(at)
        self._end(run)

    def _first(self, at: int, makers: dict[int, int]) -> list[int] | None:
        """The actions that are to be done for one to stand before all, if these only look at what is there."""
        found = [at]
        for source in {makers[slot] for step in self.steps[at] for slot in step.tensors if slot in makers}:
            more = self._first(source, makers) if self._looks(source) else None
            if more is None:
                return None
            found += more
        return found

    def _looks(self, at: int) -> bool:
        return all(step.instruction.op in VIEW_OPS for step in self.steps[at])

    def _end(self, run: list[int]) -> None:
        """Some actions behind each other are all that can be in one graph."""
        if sum(not self._looks(at) for at in run) >= MIN_LAUNCHES:
            captured = CapturedRange([self.actions[at] for at in run], [self.steps[at] for at in run], self.graphs)
            captured.runs = min(self.runs, WARM_RUNS - 1)
            self.graphs.add_range(captured)
            self.parts.append(([*run], captured))
        else:
            self.parts += [([at], self.actions[at]) for at in run]
        run.clear()


def _hosts(action: Any, members: Sequence[ProgramStep]) -> tuple[int, ...]:
    if isinstance(action, (FusedKernel, ScalarReadingStep)):
        return ()
    return tuple(dict.fromkeys(slot for step in members for slot in step.reads if slot not in step.tensors))
