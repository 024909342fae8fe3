"""CUDA graphs of hot programs: which ranges of a program are captured, when, at which addresses, and why one is not.

A *captured range* is some actions of a block, one behind the other, each of which only tells the device what to do. It stands
in their place, and runs them as ever a few times; then it has them captured, and launches the graph from then on, which is one
call however many kernels it has. A graph reads and writes at fixed addresses, so

* it is for inputs that lie where they lay when it was captured. Inputs that come from graphs do, in a loop, and so do those that
  stay; all others are copied in, to memory of the captured range;
* its results lie in *places*, each of which the captured range lends to one value at a time and gets back when nobody looks at it
  any more. A result that is still held when the graph is to write it again is copied out from then on;
* what only its own kernels read lies in an arena, which all graphs of a worker share, for they run one after the other;
* run-time scalars are told to the device before the launch, where kernels read them (`worker/device/device_scalars.py`). What
  needs a number on the host, as the start of a slice, is for that number, and stands outside where it changes
  (`capturable_run.py`).

A captured range itself is in `captured_range.py`, its memory in `graph_memory.py`, what a device does in
`worker/device/graph_capture.py`; all but that is logic alone. No value depends on whether there is a graph.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gt.worker.base.kernel_call import KernelCall, OperandCheck
from gt.worker.device.buffers import BufferView
from gt.worker.device.device_scalars import ScalarReadingStep
from gt.worker.device.graph_capture import AllocationEvent, AllocationPart, ArrayAddress
from gt.worker.op_table.op_table import CAPTURABLE
from gt.worker.op_table.row import Capturable
from gt.worker.program.compiler import Action, Program, ProgramStep

from .capturable_run import CapturableRun
from .captured_range import CapturedRange
from .graph_memory import GraphAllocation, ResultAllocation


class GraphDevice(Protocol):
    """The calls of a GPU that graphs need; see `worker/device/graph_capture.py`."""

    def seen(self, value: Any) -> ArrayAddress: ...
    def whole(self, value: Any) -> bool: ...
    def view(self, value: Any) -> BufferView: ...
    def allocate(self, nbytes: int) -> Any: ...
    def look(self, root: Any, view: BufferView) -> Any: ...
    def beside(self, value: Any, view: BufferView) -> Any: ...
    def again(self, value: Any) -> Any: ...
    def copy(self, allocation: Any, value: Any) -> None: ...
    def tell(self, allocation: Any, words: Sequence[int]) -> None: ...
    def place(self, allocation: Any, at: int) -> Any: ...
    def rehearse(self, run: Callable[[], object]) -> list[AllocationEvent]: ...
    def capture(self, run: Callable[[], object], parts: Sequence[AllocationPart]) -> Any: ...
    def launch(self, graph: Any) -> None: ...


def captures(call: KernelCall | None) -> bool:
    """Whether a step only tells the device what to do."""
    if call is None or call.blocks:
        return False
    capturable = CAPTURABLE.get(call.op)
    if capturable is Capturable.DIRECT_CUBLAS:
        return call.direct is not None or call.result.dtype.kind in "iub"
    return capturable is not None


class CudaGraphs:
    """All graphs of one worker: their memory, and what is counted.

    `captured` and `launched` count graphs and launches, `without` runs of captured ranges that had none, and instructions that
    are in no captured range, by reason.
    """

    def __init__(self, device: GraphDevice, checks: list[OperandCheck]) -> None:
        self.device = device
        self.checks = checks
        """Where kernels leave what they found out about their operands."""
        self.captured = 0
        self.launched = 0
        self.without: Counter[str] = Counter()
        self.total = 0
        """Bytes of the device that graphs have, those among them that values lie in now."""
        self.ours: set[int] = set()
        """Where results lie: such memory stays where it is."""
        self.room: Callable[[int], bool] | None = None
        """Whether there is room for so many bytes more; None: there is no limit."""
        self._ranges: weakref.WeakSet[CapturedRange] = weakref.WeakSet()
        self._arenas: weakref.WeakSet[GraphAllocation] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """Bytes of the device that graphs have, beside those that values lie in now."""
        return self.total - sum(place.nbytes for place in self.places() if not place.free)

    def places(self) -> Iterator[ResultAllocation]:
        """Where results lie."""
        for captured in self._ranges:
            for found in captured.places.values():
                yield from found

    def arena(self, nbytes: int) -> GraphAllocation:
        """Memory that a graph may use while it runs. Raises `MemoryError`."""
        found = next((arena for arena in self._arenas if arena.nbytes >= nbytes), None)
        if found is None:
            found = GraphAllocation(self, nbytes)
            self._arenas.add(found)
        return found

    def give_up(self) -> bool:
        """Memory is short: have none, for a while; whether there was any."""
        found = False
        for captured in self._ranges:
            found = captured.give_up() or found
        return found

    def program(self, program: Program) -> Program:
        """The same program, whose capturable runs are one action each."""
        actions: list[list[Action]] = []
        starts: list[Sequence[int]] = []
        for block, acts, firsts in zip(program.blocks, program.actions, program.starts, strict=True):
            ends = [*firsts[1:], len(block)][: len(firsts)]  # between two moves there may be nothing
            found = self._with_capturable_runs(
                acts, [block[first:end] for first, end in zip(firsts, ends, strict=True)]
            )
            actions.append([action for action, _ in found])
            places = itertools.accumulate((count for _, count in found), initial=0)
            starts.append([firsts[at] for (_, _), at in zip(found, places, strict=False)])
        return replace(program, actions=actions, starts=starts)

    def add_range(self, captured: CapturedRange) -> None:
        """There is one more."""
        self._ranges.add(captured)

    def left_out(self, members: Sequence[ProgramStep]) -> None:
        """Count steps that are in no captured range."""
        for op in dict.fromkeys(step.instruction.op for step in members):
            self.without[f"{op} is not captured"] += 1

    def _with_capturable_runs(
        self, actions: Sequence[Action], steps: Sequence[Sequence[ProgramStep]]
    ) -> list[tuple[Action, int]]:
        """The actions of a block, those of capturable runs as one, and how many each stands for. `steps`: those of each
        action."""
        found: list[tuple[Action, int]] = []
        run: list[int] = []

        def ends() -> None:
            acts = [_told(actions[at], steps[at]) for at in run]
            capturable = CapturableRun(acts, [steps[at] for at in run], self)
            if capturable.ranges:
                found.append((capturable, len(run)))
            else:
                found.extend((actions[at], 1) for at in run)
            run.clear()

        for at, members in enumerate(steps):
            if all(captures(step.call) for step in members):
                run.append(at)
            else:
                ends()
                self.left_out(members)
                found.append((actions[at], 1))
        ends()
        return found


def _told(action: Action, members: Sequence[ProgramStep]) -> Action:
    """The action, but that its kernel finds run-time scalars on the device if it can."""
    return (
        ScalarReadingStep(members[0])
        if len(members) == 1 and CAPTURABLE.get(members[0].instruction.op) is Capturable.READS_SCALARS
        else action
    )
