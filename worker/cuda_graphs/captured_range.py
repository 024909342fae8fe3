"""Captured ranges of a program: each runs step by step a few times, then as a CUDA graph, if there is one for its addresses.

Logic alone, as in `graphs.py`, which says what a graph needs.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.worker.base.kernel_call import OperandCheck
from gt.worker.device.buffers import BufferView
from gt.worker.device.device_scalars import ScalarReadingStep
from gt.worker.device.graph_capture import AllocationPart, ArrayAddress
from gt.worker.fusion.cuda.fused_kernel import FusedKernel
from gt.worker.program.compiler import Action, ProgramStep, Slots

from .graph_memory import AllocationRoot, GraphAllocation, GraphMemoryLayout, ResultAllocation, lay_out

if TYPE_CHECKING:
    from .graphs import CudaGraphs

log = logging.getLogger(__name__)

WARM_RUNS: Final = 3
"""Runs of a captured range before it is captured: kernels are compiled and loaded by then, and memory has found its places."""
MAX_RANGE_GRAPHS: Final = 4
"""Graphs of one captured range, each for other addresses."""
MAX_COPIED_BYTES: Final = 16 << 20
"""Bytes that a launch may have copied in and out: more takes longer than launching kernels one by one."""
MAX_CAPTURES: Final = 16
"""Captures of one captured range: whoever needs more will always need another."""
PAUSE_RUNS: Final = 256
"""Runs that a captured range waits after its memory was taken away."""


class CaptureRefused(Exception):
    """A run goes without a graph; its text is the reason that is counted."""


class CapturedResult(NamedTuple):
    """A result: which allocation it looks at, or else which input, and how; or what it always is. Beside an input the offset of
    `view` counts from the input's address."""

    slot: int
    allocation: int
    beside: int
    view: BufferView
    always: Any = None


@dataclass(slots=True)
class CapturedGraph:
    """A graph that was captured, and for what: where inputs lie (None: they are copied in), and how."""

    addresses: tuple[int | None, ...]
    strides: tuple[tuple[int, ...], ...]
    blocks: tuple[GraphAllocation | None, ...]
    """By input the memory that it is copied to, if it is."""
    places: dict[int, ResultAllocation]
    """By allocation."""
    results: list[CapturedResult]
    arena: GraphAllocation | None
    checks: list[tuple[OperandCheck, CapturedResult]] = field(default_factory=list)
    """What its kernels find out about their operands, and where."""
    graph: Any = None
    used: int = 0
    """At which run of the captured range it was launched last."""


@dataclass(slots=True)
class RehearsedMemory:
    """The memory of a captured range, as known after a rehearsal for inputs that lie so."""

    strides: tuple[tuple[int, ...], ...]
    dealt: GraphMemoryLayout


class CapturedRange:
    """Runs consecutive actions as one: step by step, or by a CUDA graph."""

    def __init__(self, actions: Sequence[Action], steps: Sequence[Sequence[ProgramStep]], graphs: CudaGraphs) -> None:
        self.actions = list(actions)
        self.graphs = graphs
        flat = [step for members in steps for step in members]
        made: set[int] = set()
        inputs: dict[int, None] = {}
        for step in flat:
            inputs.update(dict.fromkeys(slot for slot in step.tensors if slot not in made))
            made.add(step.writes)
        self.readers = [action for action in actions if isinstance(action, (FusedKernel, ScalarReadingStep))]
        numbers = {slot: kind for reader in self.readers for slot, kind in reader.numbers.items()}
        self.inputs, self.numbers = tuple(inputs), tuple(numbers)
        self.format = "<" + "".join(numbers.values())
        self.dead = tuple(dict.fromkeys(slot for step in flat for slot in step.dead))
        self.outputs = tuple(dict.fromkeys(step.writes for step in flat if step.writes not in self.dead))
        self.runs = 0
        self.begun = 0
        """How many of its actions were done in the last run that went without a graph."""
        self.found: list[CapturedGraph] = []
        self.known: RehearsedMemory | None = None
        self.places: dict[int, list[ResultAllocation]] = {}
        """Of each allocation that a result lies in."""
        self.lasting: set[int] = set()
        """Those whose values outlive the next run: they are copied out."""
        self.blocks: dict[int, GraphAllocation] = {}
        """By position, memory that an input is copied to."""
        self.captured = 0
        self.refused = ""
        """Why it is never captured."""
        self.stuck = -1
        """The number of the action at which a capture was refused."""
        self.before: tuple[ArrayAddress, ...] = ()
        self.board: GraphAllocation | None = None
        """The memory in which the device finds run-time scalars."""
        self.told = b""

    def __call__(self, slots: Slots) -> None:
        graph = None
        self.begun = 0
        self.runs += 1
        if self.runs >= WARM_RUNS:
            try:
                graph = self._graph(slots)
            except CaptureRefused as reason:
                self.graphs.without[str(reason)] += 1
        if graph is not None:
            self._launch(graph, slots)
        elif self.begun == 0:
            self._run(slots)

    def give_up(self) -> bool:
        """Have no memory for a while; whether there was any."""
        had = bool(self.found or self.places)
        self.found, self.places, self.blocks, self.known, self.board, self.told = [], {}, {}, None, None, b""
        if had:
            self.runs = WARM_RUNS - PAUSE_RUNS
        return had

    # without a graph

    def _run(self, slots: Slots) -> None:
        for action in self.actions:
            action(slots)
            self.begun += 1

    # which graph

    def _graph(self, slots: Slots) -> CapturedGraph | None:
        """The graph for these inputs; None where the run was a rehearsal. Raises `CaptureRefused`."""
        if self.refused:
            raise CaptureRefused(self.refused)
        device = self.graphs.device
        if not all(reader.takes(slots) for reader in self.readers):
            raise CaptureRefused("a number that a tensor's dtype does not hold")
        seen = tuple([device.seen(slots[slot]) for slot in self.inputs])
        before, self.before = self.before, seen
        graph = self._fitting(seen)
        if graph is not None:
            return graph
        strides = tuple([each.strides for each in seen])
        if self.known is None or self.known.strides != strides:
            self._rehearse(slots, strides)
            return None
        return self._captured(slots, seen, before, self.known)

    def _fitting(self, seen: tuple[ArrayAddress, ...]) -> CapturedGraph | None:
        """A graph that was captured: one that copies what it need not only where no other may be made. Raises
        `CaptureRefused`."""
        second = held = None
        ours = self.graphs.ours
        for graph in self.found:
            if _lies(graph, seen):
                if not all(place.free for at, place in graph.places.items() if at not in self.lasting):
                    held = held or graph
                elif any(block and now.memory in ours for block, now in zip(graph.blocks, seen, strict=True)):
                    second = second or graph
                else:
                    return graph
        if second is None and held is not None:
            self._copy_out(held, {now.memory for now in seen})
        if len(self.found) < MAX_RANGE_GRAPHS and self.captured < MAX_CAPTURES:
            return None
        return second

    def _copy_out(self, graph: CapturedGraph, inputs: set[int]) -> None:
        """Results of earlier launches are held where this graph would write, and not because they go in now: from now on they are
        copied out. Raises `CaptureRefused`."""
        held = [
            at
            for at, place in graph.places.items()
            if at not in self.lasting and not place.free and place.memory not in inputs
        ]
        if not held:
            return
        if sum(graph.places[at].nbytes for at in {*held, *self.lasting} & graph.places.keys()) > MAX_COPIED_BYTES:
            raise CaptureRefused("results are held that are more than is worth copying")
        self.found.clear()
        self.lasting.update(held)
        for at in held:
            self.places[at] = []  # who holds one keeps it

    def _rehearse(self, slots: Slots, strides: tuple[tuple[int, ...], ...]) -> None:
        """Run as ever, and learn which memory that takes. Raises what actions raise."""
        log = self.graphs.device.rehearse(lambda: self._run(slots))
        dealt = lay_out(log)
        if self.known is not None and self.known.dealt != dealt:  # allocations have other numbers now
            self.places, self.found, self.lasting = {}, [], set()
        self.known = RehearsedMemory(strides, dealt)

    # capture

    def _captured(
        self, slots: Slots, seen: tuple[ArrayAddress, ...], before: tuple[ArrayAddress, ...], known: RehearsedMemory
    ) -> CapturedGraph:
        """A new graph. Raises `CaptureRefused`."""
        if self.captured == MAX_CAPTURES:
            raise CaptureRefused("addresses change")
        copied = self._to_copy(slots, seen, before, sum(known.dealt.sizes[at] for at in self.lasting))
        try:
            graph = self._made(slots, seen, copied, known)
        except MemoryError:
            self.give_up()
            self.runs = WARM_RUNS - PAUSE_RUNS
            raise CaptureRefused("memory is short") from None
        except CaptureRefused as reason:
            self.refused = str(reason)
            raise
        except Exception as error:  # noqa: BLE001 — whatever it is, the actions are there
            self.refused = f"{type(error).__name__} in a capture"
            log.warning("%d actions are not captured as a CUDA graph: %s", len(self.actions), str(error))
            raise CaptureRefused(self.refused) from None
        self.captured += 1
        self.graphs.captured += 1
        if len(self.found) == MAX_RANGE_GRAPHS:
            self.found.remove(min(self.found, key=lambda each: each.used))
        self.found.append(graph)
        return graph

    def _to_copy(
        self, slots: Slots, seen: tuple[ArrayAddress, ...], before: tuple[ArrayAddress, ...], others: int
    ) -> set[int]:
        """The inputs that a new graph is to have copied in: those that seem not to stay, the small ones first, and all as soon as
        graphs for other addresses did not help. `others`: bytes that are copied anyway."""
        graphs = self.graphs
        full = len(self.found) == MAX_RANGE_GRAPHS
        copied: set[int] = set()
        for at in sorted(range(len(seen)), key=lambda at: seen[at].nbytes):
            now = seen[at]
            stays = now.memory in graphs.ours or (len(before) > at and before[at].address == now.address)
            if (full or not stays) and graphs.device.whole(slots[self.inputs[at]]):
                others += now.nbytes
                if others > MAX_COPIED_BYTES:
                    break
                copied.add(at)
        return copied

    def _made(
        self, slots: Slots, seen: tuple[ArrayAddress, ...], copied: set[int], known: RehearsedMemory
    ) -> CapturedGraph:
        """Capture. Raises `CaptureRefused`, `MemoryError`, and what a capture raises."""
        graphs, device, dealt = self.graphs, self.graphs.device, known.dealt
        stays = sum(size for size, offset in zip(dealt.sizes, dealt.offsets, strict=True) if offset is None)
        wanted = dealt.arena + sum(seen[at].nbytes for at in copied) + stays
        if graphs.room is not None and not graphs.room(wanted):
            raise MemoryError
        arena = graphs.arena(dealt.arena) if dealt.arena else None
        for at in copied:
            if at not in self.blocks:
                self.blocks[at] = GraphAllocation(graphs, seen[at].nbytes)
        if self.board is None and self.numbers:
            self.board, self.told = GraphAllocation(graphs, 8 * len(self.numbers)), b""
        places: dict[int, ResultAllocation] = {}
        parts = []
        for at, (nbytes, offset) in enumerate(zip(dealt.sizes, dealt.offsets, strict=True)):
            if offset is not None:
                assert arena is not None, "what has an offset lies in an arena"
                parts.append(AllocationPart(arena.allocation, offset, nbytes))
            else:
                places[at] = self._place(at, nbytes)
                parts.append(AllocationPart(places[at].allocation, 0, nbytes))
        blocks = tuple(self.blocks[at] if at in copied else None for at in range(len(seen)))
        own: Slots = [*slots]
        lent: list[Any] = []
        for at, slot in enumerate(self.inputs):
            if at in copied:
                own[slot] = device.look(
                    AllocationRoot(self.blocks[at].allocation), device.view(own[slot])._replace(offset=0)
                )
            lent.append(own[slot])
        there = {}
        if self.board is not None:
            there = {slot: device.place(self.board.allocation, at) for at, slot in enumerate(self.numbers)}

        def run() -> None:
            for at, action in enumerate(self.actions):
                self.stuck = at
                if isinstance(action, (FusedKernel, ScalarReadingStep)):
                    action(own, there)
                else:
                    action(own)
            self.stuck = -1

        graph = CapturedGraph(
            tuple(None if at in copied else now.address for at, now in enumerate(seen)), known.strides, blocks, places, [], arena,
        )  # fmt: skip
        known_before = len(graphs.checks)
        try:
            graph.graph = device.capture(run, parts)
            checks = graphs.checks[known_before:]
        finally:
            del graphs.checks[known_before:]
        graph.results = [self._result(slot, own[slot], lent, places) for slot in self.outputs]
        graph.checks = [(check._replace(found=None), self._result(-1, check.found, lent, places)) for check in checks]
        return graph

    def _place(self, allocation: int, nbytes: int) -> ResultAllocation:
        """Memory for a result: such as nobody has now. Raises `MemoryError`."""
        found = self.places.setdefault(allocation, [])
        for place in found:
            if place.free:
                return place
        found.append(ResultAllocation(self.graphs, nbytes))
        return found[-1]

    def _result(
        self, slot: int, value: Any, inputs: Sequence[Any], places: dict[int, ResultAllocation]
    ) -> CapturedResult:
        """Where a result lies. Raises `CaptureRefused` where nobody knows."""
        device = self.graphs.device
        now, view = device.seen(value), device.view(value)
        if not now.nbytes:
            return CapturedResult(slot, -1, -1, view, value)
        for allocation, place in places.items():
            if now.memory == place.memory:
                return CapturedResult(slot, allocation, -1, view)
        for at, each in enumerate(inputs):
            there = device.seen(each)
            if now.memory == there.memory:
                return CapturedResult(slot, -1, at, view._replace(offset=now.address - there.address))
        raise CaptureRefused("a result lies where nobody knows")

    # a launch

    def _launch(self, graph: CapturedGraph, slots: Slots) -> None:
        device = self.graphs.device
        for at, held in enumerate(graph.blocks):
            if held is not None:
                device.copy(held.allocation, slots[self.inputs[at]])
        if self.board is not None:
            told = struct.pack(self.format, *[slots[slot] for slot in self.numbers])
            if told != self.told:
                device.tell(self.board.allocation, struct.unpack(f"<{len(self.numbers)}Q", told))
                self.told = told
        roots = {
            at: AllocationRoot(place.allocation) if at in self.lasting else place.lend()
            for at, place in graph.places.items()
        }
        wanted = [*graph.results, *[made for _, made in graph.checks]]
        results = []
        for made in wanted:
            if made.beside >= 0:
                results.append(device.beside(slots[self.inputs[made.beside]], made.view))
            elif made.allocation >= 0:
                results.append(device.look(roots[made.allocation], made.view))
            else:
                results.append(made.always)
        device.launch(graph.graph)
        values = [
            device.again(value) if made.allocation in self.lasting else value
            for made, value in zip(wanted, results, strict=True)
        ]
        for made, value in zip(graph.results, values, strict=False):
            slots[made.slot] = value
        for (check, _), value in zip(graph.checks, values[len(graph.results) :], strict=True):
            self.graphs.checks.append(check._replace(found=value))
        for slot in self.dead:
            slots[slot] = None
        self.graphs.launched += 1
        graph.used = self.runs


def _lies(graph: CapturedGraph, seen: Sequence[ArrayAddress]) -> bool:
    """Whether inputs lie where a graph reads them, or can be copied there."""
    for address, strides, now in zip(graph.addresses, graph.strides, seen, strict=True):
        if now.strides != strides or (address is not None and address != now.address):
            return False
    return True
