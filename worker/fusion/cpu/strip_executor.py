"""Runs chains on a CPU: NumPy's own functions, called on strips of rows that stay in the caches, by all threads.

Between a chain's members nothing is stored but one strip, in scratch memory that all chains of a worker share. Element-wise
functions give an element the same bits wherever it lies, and what goes along a row gets the whole row, so a chain's bits
are those of its steps one by one, whatever the strips and whoever computes them. (But which NaN it is that a NaN becomes:
loops of the same function may take either operand's.) Where operands lie in memory in another order than row by row, NumPy
would lay results, and so add them up, in that order too; such a chain runs step by step.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np

from gt.ir.spec import Spec
from gt.worker.device.exclusive_array import take_exclusive
from gt.worker.device.thread_pool import SCRATCH_BYTES, ThreadPool
from gt.worker.fusion.chains import Chain
from gt.worker.fusion.incremental import Incremental
from gt.worker.fusion.merge_dims import MergedSpace, merged_space
from gt.worker.op_table.cpu_lowering import GENERAL, UNARY, Registers, UfuncCall

from .chain_lowering import ChainDraft, draft_of
from .reusable_memory import reusable_sources

STRIP_BYTES: Final = 1 << 20
"""Bytes of a strip of one value. Smaller ones would fit into nearer caches, but calls take their time too."""
MIN_SHARED_WORK: Final = 512 << 10
"""Elements times calls from which threads share the strips of a chain: it takes tens of microseconds to wake them."""
MAX_SMALL_ELEMENTS: Final = 16 << 10
"""Elements up to which calls take about as long as computing."""
MIN_SMALL_STEPS: Final = 4
"""Steps from which a chain of small values saves more than it takes."""
MIN_CALL_RUN: Final = 8
"""Calls of one function, one after the other, from which they are one."""

Slots = list[Any]


@dataclass(frozen=True, slots=True)
class StripGeometry:
    """How a chain is cut into strips, which are `rows` of dimension `peeled` of the merged space; of the dimensions before it
    one index at a time is computed."""

    space: MergedSpace
    peeled: int
    rows: int

    def of_source(self, number: int) -> tuple[int, ...] | None:
        """The shape in which strips are cut from a source; None where it is a number."""
        pattern = self.space.patterns[number]
        if pattern is None:
            return None
        return tuple(size if full else 1 for size, full in zip(self.space.shape, pattern, strict=True))

    def strip(self, rows: int, *, column: bool) -> tuple[int, ...]:
        """The shape of a strip."""
        return (rows, *(self.space.column if column else self.space.shape)[self.peeled + 1 :])

    def strips(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """(the index before, the first row, the row behind the last) of every strip."""
        size = self.space.shape[self.peeled]
        for index in np.ndindex(*self.space.shape[: self.peeled]):
            for first in range(0, size, self.rows):
                yield index, first, min(first + self.rows, size)


def geometry(chain: Chain, space: MergedSpace, draft: ChainDraft, threads: int) -> StripGeometry | None:
    """The strips of a chain; None when one row is too long for the scratch memory."""
    shape = space.shape
    widest = max(value.call.result.dtype.itemsize for value in chain.values)
    peeled = 0
    while peeled < space.edge - 1 and math.prod(shape[peeled + 1 :]) * widest > STRIP_BYTES:
        peeled += 1
    inner, lines = math.prod(shape[peeled + 1 :]), math.prod(space.column[peeled + 1 :])
    rows = max(1, min(STRIP_BYTES // (inner * widest), shape[peeled]))
    if (
        threads > 1 and math.prod(shape) > MAX_SMALL_ELEMENTS and math.prod(shape) * len(draft.calls) >= MIN_SHARED_WORK
    ):  # a few strips for each, as they may not be as fast
        rows = max(1, min(rows, -(-math.prod(shape[: peeled + 1]) // (2 * threads))))
    while draft.nbytes(rows * inner, rows * lines) > SCRATCH_BYTES:
        if rows == 1:
            return None
        rows = -(-rows // 2)
    return StripGeometry(space, peeled, rows)


def worth(chain: Chain, thread_pool: ThreadPool) -> bool:
    """Whether a chain pays. What is small saves the time of calls, what is large that of memory; between, a core's caches hold
    every step's result until the next step reads it, and memory that was just freed is warm."""
    if not chain.outputs or not math.prod(chain.shape):  # of nothing there are no strips
        return False
    elements, count = math.prod(chain.shape), len(chain.values)
    if elements <= MAX_SMALL_ELEMENTS:
        return count >= MIN_SMALL_STEPS
    value = chain.values[-1]
    large = elements * value.call.result.dtype.itemsize > STRIP_BYTES
    return large and (count > 1 or value.call.op == "relu" or (thread_pool.threads > 1 and elements >= MIN_SHARED_WORK))


class StripExecutor:
    """Runs a chain strip by strip. `by_steps` does the same one by one, for when operands do not lie row by row."""

    def __init__(
        self,
        chain: Chain,
        thread_pool: ThreadPool,
        dead: tuple[int, ...],
        by_steps: Callable[[Slots], None],
        cut: StripGeometry,
        draft: ChainDraft,
    ) -> None:
        self.chain = chain
        self.thread_pool = thread_pool
        self.dead = dead
        self.by_steps = by_steps
        self.cut = cut
        self.draft = draft
        self.sources = [source.slot for source in chain.sources]
        self.rowwise = _rowwise(chain)
        self.shapes = [cut.of_source(number) for number in range(len(chain.sources))]
        self.results = [
            (register.number, value.slot, value.call.result.shape, register.dtype, self._merged(column=register.column))
            for register, value in self.draft.outputs
        ]
        patterns = [(number, pattern) for number, pattern in enumerate(cut.space.patterns) if pattern is not None]
        patterns += [
            (register.number, tuple(size != 1 for size in self._merged(column=register.column)))
            for register, _ in self.draft.outputs
        ]
        self.patterns = patterns
        self.cuts = list(cut.strips())
        self.templates: dict[tuple[int, int], Registers] = {}
        self.shared = thread_pool.threads > 1 and len(self.cuts) > 1
        self.memory_sources = reusable_sources(chain, dead)

    def _merged(self, *, column: bool) -> tuple[int, ...]:
        return self.cut.space.column if column else self.cut.space.shape

    def __call__(self, slots: Slots) -> None:
        if self.rowwise is not None and not self.rowwise(slots):
            self.by_steps(slots)
            return
        inherited: dict[int, Any] = {}
        inherited_arrays = [self._inherit(slots, memory_sources, inherited) for memory_sources in self.memory_sources]
        views: Registers = [None] * self.draft.count
        for number, (slot, shape) in enumerate(zip(self.sources, self.shapes, strict=True)):
            source: Any = inherited.get(slot, slots[slot])
            if shape is not None:
                source = source.reshape(shape)
            elif isinstance(source, np.ndarray):
                source = source.reshape(())
            views[number] = source
        made = []
        for (number, slot, shape, dtype, laid), inherited_array in zip(self.results, inherited_arrays, strict=True):
            array = np.empty(shape, dtype) if inherited_array is None else inherited_array
            views[number] = array.reshape(laid)
            made.append((slot, array))
        cuts = iter(self.cuts)  # whoever is free takes the next
        if self.shared:
            self.thread_pool.run(lambda thread: self._strips(thread, views, cuts))
        else:
            self._strips(0, views, cuts)
        for slot, array in made:
            slots[slot] = array
        for slot in self.dead:
            slots[slot] = None

    def _inherit(self, slots: Slots, memory_sources: tuple[int, ...], inherited: dict[int, Any]) -> Any:
        """Memory for an output out of one of these slots, or None; `inherited` remembers what was in it."""
        for slot in memory_sources:
            array = take_exclusive(slots, slot)
            if array is not None:
                inherited[slot] = array
                return array
        return None

    def _strips(self, thread: int, views: Registers, cuts: Iterator[tuple[tuple[int, ...], int, int]]) -> None:
        """Strips until there are none left."""
        steps, peeled = self.draft.calls, self.cut.peeled
        here: tuple[int, ...] = ()
        sliced: list[tuple[int, Any]] = []
        fixed: list[tuple[int, Any]] = []
        registers: Registers = []
        height, fresh = -1, True
        for index, first, last in cuts:
            if fresh or index != here:
                here, fresh, height = index, False, -1
                sliced, fixed = [], []
                for number, pattern in self.patterns:
                    view = views[number][tuple(i if full else 0 for i, full in zip(index, pattern, strict=False))]
                    (sliced if pattern[peeled] else fixed).append((number, view))
            if last - first != height:
                height = last - first
                registers = self._template(thread, height).copy()
                for number, source in enumerate(views):
                    if self.cut_number(number):
                        registers[number] = source
                for number, view in fixed:
                    registers[number] = view
            for number, view in sliced:
                registers[number] = view[first:last]
            run(steps, registers)

    def cut_number(self, number: int) -> bool:
        """Whether a register holds a number, which is the same for all strips."""
        return number < len(self.sources) and self.shapes[number] is None

    def _template(self, thread: int, rows: int) -> Registers:
        """Registers with scratch memory in place, for strips of so many rows."""
        found = self.templates.get((thread, rows))
        if found is None:
            found = [None] * self.draft.count
            scratch = [(register, self.cut.strip(rows, column=register.column)) for register in self.draft.scratch]
            zeros = [(register, self.cut.strip(rows, column=register.column)) for register in self.draft.zeros]
            self.thread_pool.lay(found, thread, scratch, zeros)
            self.templates[thread, rows] = found
        return found


def _whole(
    chain: Chain, thread_pool: ThreadPool, dead: tuple[int, ...], by_steps: Callable[[Slots], None]
) -> Incremental[Callable[[Slots], None]]:
    """The action of a chain that is one strip: nothing is cut, so nothing is merged."""
    ndim = len(chain.shape)
    draft = yield from draft_of(chain, chain.joined, whole=True)
    steps = _in_runs(draft.calls, {register.number for register, _ in draft.outputs})
    column = chain.shape[: ndim - chain.joined] + (1,) * chain.joined
    rest: Registers = [None] * draft.count
    scratch = [(each, column if each.column else chain.shape) for each in draft.scratch]
    zeros = [(each, column if each.column else chain.shape) for each in draft.zeros]
    thread_pool.lay(rest, 0, scratch, zeros)
    del rest[: len(chain.sources)]
    sources = [source.slot for source in chain.sources]
    rowwise = _rowwise(chain)
    results = [(register.number, value.slot) for register, value in draft.outputs]
    writers = {step.out: step.function for step in reversed(draft.calls)}
    empties = [  # functions of NumPy make a result where they are given none
        (register.number, value.call.result.shape, register.dtype)
        for register, value in draft.outputs
        if not isinstance(writers[register.number], np.ufunc)
        or all(_shape_of(chain, operand) != value.call.result.shape for operand in value.operands)
    ]

    def action(slots: Slots) -> None:
        if rowwise is not None and not rowwise(slots):
            by_steps(slots)
            return
        registers = [slots[slot] for slot in sources]
        registers += rest
        for number, shape, dtype in empties:
            registers[number] = np.empty(shape, dtype)
        for function, first, second, out in steps:
            if second >= 0:
                registers[out] = function(registers[first], registers[second], registers[out])
            elif second == UNARY:
                registers[out] = function(registers[first], registers[out])
            else:
                function(registers)
        for number, slot in results:
            slots[slot] = registers[number]
        for slot in dead:
            slots[slot] = None

    return action


def _shape_of(chain: Chain, operand: int) -> tuple[int, ...]:
    """The shape of a source or value."""
    if operand >= len(chain.sources):
        return chain.values[operand - len(chain.sources)].call.result.shape
    known = chain.sources[operand].spec
    return known.shape if isinstance(known, Spec) else ()


def _in_runs(steps: Sequence[UfuncCall], made: set[int]) -> list[tuple[Callable[..., Any], int, int, int]]:
    """The calls, those of one function on two operands that follow on each other as one, whose loop is C's.

    `made`: registers that hold no memory before their call, which can be in none.
    """
    found: list[tuple[Callable[..., Any], int, int, int]] = []
    for (function, binary), group in itertools.groupby(
        steps, lambda step: (step.function, step.second >= 0 and step.out not in made)
    ):
        members = list(group)
        if binary and len(members) >= MIN_CALL_RUN:
            found.append((_run_of(function, members), 0, GENERAL, 0))
        else:
            found += [(step.function, step.first, step.second, step.out) for step in members]
    return found


def _run_of(function: Callable[..., Any], steps: Sequence[UfuncCall]) -> Callable[[Registers], None]:
    first, second, out = (itemgetter(*numbers) for numbers in list(zip(*steps, strict=True))[1:])

    def run(registers: Registers) -> None:
        deque(map(function, first(registers), second(registers), out(registers)), 0)

    return run


def _rowwise(chain: Chain) -> Callable[[Slots], bool] | None:
    """Whether of each group of sources one lies row by row; None where there is nothing to ask."""
    groups = [[chain.sources[number].slot for number in group] for group in chain.rowwise]
    if not groups:
        return None
    if len(groups) == len(groups[0]) == 1:
        slot = groups[0][0]
        return lambda slots: bool(slots[slot].flags.c_contiguous)

    def holds(slots: Slots) -> bool:
        for group in groups:
            for slot in group:
                if slots[slot].flags.c_contiguous:
                    break
            else:
                return False
        return True

    return holds


def run(steps: Sequence[UfuncCall], registers: Registers) -> None:
    """Make the calls, one after the other."""
    for function, first, second, out in steps:
        if second >= 0:
            function(registers[first], registers[second], registers[out])
        elif second == UNARY:
            function(registers[first], registers[out])
        else:
            function(registers)


def compile_chain(
    chain: Chain, thread_pool: ThreadPool, dead: tuple[int, ...], by_steps: Callable[[Slots], None]
) -> Incremental[Callable[[Slots], None] | None]:
    """The action that runs a chain over slots; None when its rows are too long for the scratch memory."""
    space = merged_space(chain)
    draft = yield from draft_of(chain, len(space.shape) - space.edge, whole=False)
    cut = geometry(chain, space, draft, thread_pool.threads)
    if cut is None:
        return None
    if cut.peeled == 0 and cut.rows == space.shape[0]:
        return (yield from _whole(chain, thread_pool, dead, by_steps))
    return StripExecutor(chain, thread_pool, dead, by_steps, cut, draft)
