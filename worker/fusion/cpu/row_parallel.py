"""Row-parallel groups: steps of a CPU worker that threads compute side by side, each thread some rows from the first step on.

A chain is element-wise, and what fits into caches is not worth one; a product of a millisecond in pieces wakes a thread for too
little. A row-parallel group has many steps of both kinds: all that treats each entry of the first dimension (the batch, as a
rule) by itself, such as products by one matrix, products of stacks, softmax and layer norm. It is cut into `ROW_PARTS` along
that dimension, and threads meet once for all its steps. What joins entries, as gradients of weights do, comes after the
row-parallel group.

A row-parallel group calls the kernels of its steps on parts of their operands, so its bits are those of its steps one by one:
what goes along other dimensions gets them whole, and a product is in a row-parallel group only if it is computed in the same
parts everywhere (`has_parts` in `worker/kernels/matmul.py`). A result that somebody reads after the row-parallel group lies in
memory as its parts do.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.ops import OPS
from gt.ir.spec import Spec, spec
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.fusion.chain_shapes import ELEMENTWISE_FAMILIES
from gt.worker.fusion.chains import Chain
from gt.worker.kernels.matmul import MIN_SHARED_MULTIPLICATIONS, ROW_PARTS, has_parts, part_of
from gt.worker.op_table.op_table import ALONG_ROWS, CPU_LOWERINGS, KERNELS
from gt.worker.program.compiler import LAYOUT_OPS, ProgramStep, Slots

MIN_SPLIT_MATMULS: Final = 2
"""Products in parts that a row-parallel group has, at least."""
MAX_LAYOUTS: Final = 8
"""Ways in which what a row-parallel group reads may lie in memory, at most, of which it remembers how its results lie then."""
VIEWS_OF_RESULTS: Final = LAYOUT_OPS | {"slice"}
"""Ops whose results are views, if their operand lies as it should."""

Order = tuple[int, ...]


class RowParallelGroup(NamedTuple):
    """Steps of a block that run as one row-parallel group."""

    steps: tuple[int, ...]


class RowParallelSource(NamedTuple):
    """What a row-parallel group reads: a slot, and whether each part of the row-parallel group reads a part of it."""

    slot: int
    cut: bool


def with_row_parallel_groups(
    steps: Sequence[ProgramStep], order: Sequence[Chain | int], thread_pool: ThreadPool
) -> list[Chain | int | RowParallelGroup]:
    """The order in which steps and chains run, with row-parallel groups among them."""
    if thread_pool.threads == 1 or not any(step.call is not None and has_parts(step.call) for step in steps):
        return list(order)
    if len({step.writes for step in steps}) < len(steps):
        return list(order)  # slots are written again, as sums over microbatches
    found: list[Chain | int | RowParallelGroup] = []
    open_ = _OpenRowParallel(steps)
    for unit in order:
        if not open_.takes(unit):
            found += open_.close()
            open_ = _OpenRowParallel(steps)
            open_.takes(unit)
    return found + open_.close()


class _OpenRowParallel:
    """A row-parallel group that grows, with what runs before it and after it."""

    def __init__(self, steps: Sequence[ProgramStep]) -> None:
        self.steps = steps
        self.before: list[Chain | int] = []
        self.inside: list[int] = []
        self.after: list[Chain | int] = []
        self.made: set[int] = set()
        self.later: set[int] = set()
        self.units: list[Chain | int] = []
        self.seeds = 0
        self.scope = ""

    def takes(self, unit: Chain | int) -> bool:
        """Find a place for a unit; False when the row-parallel group must end before it."""
        members = list(unit.steps) if isinstance(unit, Chain) else [unit]
        own = {self.steps[at].writes for at in members}
        reads = {slot for at in members for slot in self.steps[at].reads} - own
        first = self.steps[members[0]]
        seed = first.call is not None and has_parts(first.call)
        if self.inside and seed and (reads & self.later or first.scope != self.scope):
            return False
        if reads & self.later:
            place = self.after
        elif (seed or reads & self.made) and (not self.inside or first.scope == self.scope) and self._fits(members):
            place = None
        else:
            place = self.after if reads & self.made else self.before
        self.units.append(unit)
        if place is None:
            self.scope = first.scope
            self.seeds += seed
            self.inside += members
            self.made |= own
        else:
            place.append(unit)
            if place is self.after:
                self.later |= own
        return True

    def _fits(self, members: list[int]) -> bool:
        made = set(self.made)
        for at in members:
            step = self.steps[at]
            cut = cut_of(step)
            if cut is None or any(slot in made and not c for slot, c in zip(step.reads, cut, strict=True)):
                return False
            made.add(step.writes)
        return True

    def close(self) -> list[Chain | int | RowParallelGroup]:
        late = sum(1 for unit in self.after if isinstance(unit, int) and self.steps[unit].instruction.op == "matmul")
        if (
            self.seeds < MIN_SPLIT_MATMULS or 2 * late > self.seeds
        ):  # other threads have those to compute, beside the steps one by one
            return [*self.units]
        return [*self.before, RowParallelGroup(tuple(self.inside)), *self.after]


def cut_of(step: ProgramStep) -> tuple[bool, ...] | None:
    """For each operand whether a part of the result takes a part of it; None of what no row-parallel group can have."""
    call = step.call
    if call is None or call.thread_pool is None or not _divides(call.result):
        return None
    op, result = call.op, call.result
    shapes = [operand.shape if isinstance(operand, Spec) else () for operand in call.operands]
    if op == "matmul":
        if has_parts(call):
            return True, False
        a, b = shapes
        stacked = len(a) == len(b) >= 3 and a[0] == b[0] and result.size * a[-1] < MIN_SHARED_MULTIPLICATIONS
        return (True, True) if stacked else None
    if op == "reshape":
        return (True,) if _divides(call.tensor(0)) else None
    if op == "permute":
        return (True,) if call.attributes["axes"][0] == 0 else None
    if op == "expand":
        return (True,) if len(shapes[0]) == result.ndim and shapes[0][0] == result.shape[0] else None
    if op == "slice":
        return (True, *(False for _ in shapes[1:])) if 0 not in call.attributes["axes"] else None
    if op == "cat":
        return tuple(True for _ in shapes) if call.attributes["axis"] else None
    if op not in CPU_LOWERINGS:
        return None
    if op in ("softmax", "log_softmax"):
        return (True,) if call.attributes["axis"] else None
    if op in ALONG_ROWS:
        axes = call.attributes["axes"]
        return (True,) if axes and 0 not in axes and _divides(call.tensor(0)) else None
    if OPS[op].family not in ELEMENTWISE_FAMILIES or (op == "cast" and call.tensor(0).dtype is result.dtype):
        return None
    return tuple([len(shape) == result.ndim and shape[0] == result.shape[0] for shape in shapes])


def _divides(value: Spec) -> bool:
    return bool(value.ndim) and value.shape[0] % ROW_PARTS == 0 and value.shape[0] >= 2 * ROW_PARTS and value.size > 0


class _RowParallelMember(NamedTuple):
    """One step of each part, over registers. `leaves`: among the results, which it is; `direct`: it can write there."""

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]
    leaves: int
    direct: bool


class _RowParallelResult(NamedTuple):
    """A result that is read after the row-parallel group."""

    slot: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class RowParallelAction:
    """Runs a row-parallel group."""

    def __init__(
        self, steps: Sequence[ProgramStep], wanted: set[int], thread_pool: ThreadPool, dead: tuple[int, ...]
    ) -> None:
        """`wanted`: slots of its results that others read; `dead`: those of what it reads that dies with it."""
        self.thread_pool = thread_pool
        made = {step.writes: step for step in steps}
        leaving = {slot for slot in made if slot in wanted}
        self.looks: list[ProgramStep] = []
        """Views that are read after the row-parallel group, which are taken of its results."""
        for step in reversed(steps):
            if step.writes in leaving and step.instruction.op in VIEWS_OF_RESULTS:
                self.looks.insert(0, step)
                leaving.discard(step.writes)
                leaving.update(slot for slot in step.reads if slot in made)
        numbers: dict[tuple[int, bool], int] = {}
        for step in steps:
            for slot, cut in zip(step.reads, cut_of(step) or (), strict=True):
                if slot not in made:
                    numbers.setdefault((slot, cut), len(numbers))
        self.sources = [RowParallelSource(*key) for key in numbers]
        registers = {slot: len(numbers) + number for number, slot in enumerate(made)}
        self.count = len(numbers) + len(made)
        self.results = [
            _RowParallelResult(slot, step.call.result.shape, step.call.result.dtype.numpy)
            for slot, step in made.items()
            if slot in leaving and step.call is not None
        ]
        only = [*(result.slot for result in self.results), *(step.writes for step in self.looks)]
        self.dead = (*dead, *(slot for slot in only if slot not in wanted))
        places = {result.slot: number for number, result in enumerate(self.results)}
        self.members: list[_RowParallelMember] = []
        seen: set[int] = set()
        for step in reversed(steps):
            reads = tuple(
                [
                    registers[slot] if slot in made else numbers[slot, cut]
                    for slot, cut in zip(step.reads, cut_of(step) or (), strict=True)
                ]
            )
            writes = registers[step.writes]
            over = tuple([each for each in dict.fromkeys((*reads, writes)) if each not in seen])
            seen.update(reads)
            kernel, direct = _kernel(step)
            self.members.insert(0, _RowParallelMember(kernel, reads, writes, over, places.get(step.writes, -1), direct))
        self.orders: dict[Any, list[Order | None]] = {}

    def __call__(self, slots: Slots) -> None:
        given = [slots[source.slot] for source in self.sources]
        lie = tuple([each.strides if isinstance(each, np.ndarray) else None for each in given])
        orders = self.orders.get(lie)
        known = orders is not None
        if orders is None:
            orders = [None] * len(self.results)
        run = _RowParallelRun(self, given, orders, known=known)
        turn = itertools.count()  # which is one step of the interpreter: no two threads take the same

        def part(_: int) -> None:
            while (number := next(turn)) < ROW_PARTS:
                run.part(number)

        self.thread_pool.run(part)
        if not known:
            if len(self.orders) == MAX_LAYOUTS:
                self.orders.clear()
            self.orders[lie] = orders
        for result, array in zip(self.results, run.wholes, strict=True):
            slots[result.slot] = array
        for step in self.looks:
            slots[step.writes] = step.kernel(*[slots[slot] for slot in step.reads])
        for slot in self.dead:
            slots[slot] = None


class _RowParallelRun:
    """One run of a row-parallel group: what all its parts share."""

    def __init__(self, parts: RowParallelAction, given: list[Any], orders: list[Order | None], *, known: bool) -> None:
        self.parts = parts
        self.given = given
        self.orders = orders
        self.known = known
        self.lock = threading.Lock()
        self.wholes: list[Any] = [None] * len(orders)
        if known:
            self.wholes = [_empty(result, order or ()) for result, order in zip(parts.results, orders, strict=True)]

    def part(self, number: int) -> None:
        parts, known, wholes = self.parts, self.known, self.wholes
        registers: list[Any] = [
            _part(array, number) if source.cut else array
            for source, array in zip(parts.sources, self.given, strict=True)
        ]
        registers += [None] * (parts.count - len(registers))
        for kernel, reads, writes, dead, leaves, direct in parts.members:
            operands = [registers[each] for each in reads]
            if leaves < 0:
                registers[writes] = kernel(*operands)
            elif known and direct:
                registers[writes] = kernel(*operands, out=_part(wholes[leaves], number))
            else:
                registers[writes] = made = kernel(*operands)
                self._keep(leaves, made, number)
            del operands
            for each in dead:
                registers[each] = None

    def _keep(self, number: int, made: Any, part: int) -> None:
        """Put a part of a result where it belongs. In the first run its layout is that of the whole."""
        if not self.known:
            with self.lock:
                if self.orders[number] is None:
                    self.orders[number] = order = _order(made)
                    self.wholes[number] = _empty(self.parts.results[number], order)
        _part(self.wholes[number], part)[...] = made


def _part(array: Any, number: int) -> Any:
    size = array.shape[0] // ROW_PARTS
    return array[number * size : (number + 1) * size]


def _order(array: Any) -> Order:
    """The dimensions of an array as they lie in memory, the outermost first."""
    if array.flags.c_contiguous:
        return tuple(range(array.ndim))
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def _empty(result: _RowParallelResult, order: Order) -> Any:
    """Memory for a result that lies so."""
    if order == tuple(range(len(order))):
        return np.empty(result.shape, result.dtype)
    array = np.empty([result.shape[axis] for axis in order], result.dtype)
    return array.transpose([order.index(axis) for axis in range(len(order))])


def _kernel(step: ProgramStep) -> tuple[Callable[..., Any], bool]:
    """What computes a part of a step, and whether it can be told where."""
    call = step.call
    assert call is not None, "a step of a row-parallel group has a call"
    if has_parts(call):
        return _rows, True
    operands = tuple(
        [
            _spec_of_part(operand) if cut and isinstance(operand, Spec) else operand
            for operand, cut in zip(call.operands, cut_of(step) or (), strict=True)
        ]
    )
    kernel = KERNELS[call.op](replace(call, operands=operands, result=_spec_of_part(call.result), thread_pool=None))
    function = kernel.func if isinstance(kernel, partial) else kernel
    return kernel, isinstance(function, np.ufunc) and call.op not in ALONG_ROWS


def _rows(a: Any, b: Any, out: Any = None) -> Any:
    if out is None:
        out = np.empty((*a.shape[:-1], b.shape[-1]), np.result_type(a, b))
    return part_of(a, b, out)


def _spec_of_part(whole: Spec) -> Spec:
    return spec(whole.dtype, (whole.shape[0] // ROW_PARTS, *whole.shape[1:]))
