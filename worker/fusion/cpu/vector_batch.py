"""Vector batches: what a block does alike to many small tensors, and nothing in it reads, on one vector of all their elements.

An optimizer does the same to each parameter, and of a small one NumPy takes a microsecond a step, whatever it is. So steps of one
op that are computed alike, eight or more of them, become one call on the elements of all, one tensor after the other; tensors are
packed before and copied out after. As nothing else in the block reads what they make, they run behind all else. As in a scalar
batch only functions take part of which every element's result is the exact one, rounded once (IEEE 754), so no bit can depend
on it. Where operands lie in memory in another order than row by row, NumPy would lay results in that order too, and so add them
up: then the steps run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.fusion.incremental import Incremental
from gt.worker.program.compiler import Action, ProgramStep, Slots

from .scalar_batch import EXACT, MIN_ALIKE

MAX_ELEMENTS: Final = 8 << 10
"""Elements of a tensor up to which calls take longer than computing."""
MAX_VECTOR: Final = 1 << 18
"""Elements up to which vectors stay in a core's caches."""
PIECE: Final = 8
"""Candidates that are looked at in one piece of the work."""
FUNCTIONS: Final = {**EXACT, "square": np.square}
"""Functions whose results are rounded exactly, whichever loop computes them."""

Group = list[int]
"""Steps that are one call, by their numbers, in their order."""


class VectorBatch(NamedTuple):
    """Steps of a block that run as one vector batch, those of one call after the other, and how many each call has."""

    steps: tuple[int, ...]
    sizes: tuple[int, ...]


def vector_batch(steps: Sequence[ProgramStep], wanted: set[int]) -> Incremental[VectorBatch | None]:
    """The vector batch of a block; it runs after all others. None if it would not pay. `wanted`: slots that are read after the
    block."""
    if len({step.writes for step in steps}) < len(steps):  # slots are written again, as sums over microbatches
        return None
    kept = [at for at, step in enumerate(steps) if _able(step)]
    while True:
        candidates = yield from _unread(steps, kept)
        groups = yield from _alike(steps, candidates, wanted)
        kept = sorted(at for group in groups for at in group)
        if len(kept) == len(candidates):
            break
    if len(kept) < max(1, _copies(steps, groups, wanted)):
        return None
    return VectorBatch(tuple(at for group in groups for at in group), tuple(map(len, groups)))


def _able(step: ProgramStep) -> bool:
    call = step.call
    if call is None or call.op not in FUNCTIONS or not call.result.shape or not 0 < call.result.size <= MAX_ELEMENTS:
        return False
    if call.result.dtype.numpy not in (np.float32, np.float64):
        return False
    return all(
        each.dtype is call.result.dtype and each.shape in ((), call.result.shape)
        for each in call.operands
        if isinstance(each, Spec)
    )


def _unread(steps: Sequence[ProgramStep], candidates: Sequence[int]) -> Incremental[list[int]]:
    """Those candidates that only such candidates read in the block."""
    left = set(candidates)
    read: set[int] = set()
    for at in range(len(steps) - 1, -1, -1):
        if not at % (8 * PIECE):
            yield
        if at in left and steps[at].writes in read:
            left.remove(at)
        if at not in left:
            read.update(steps[at].reads)
    return sorted(left)


def _alike(steps: Sequence[ProgramStep], candidates: Sequence[int], wanted: set[int]) -> Incremental[list[Group]]:
    """Candidates that are computed alike and read alike, in groups of enough, each behind those that it reads."""
    forms: dict[Any, int] = {}
    form: dict[int, int] = {}
    level: dict[int, int] = {}
    readers: dict[int, list[tuple[int, int]]] = {}
    for number, at in enumerate(candidates):
        if not number % PIECE:
            yield
        step, call = steps[at], _call(steps[at])
        operands = tuple(
            form[slot] if slot in form else isinstance(each, Spec) and each.shape != ()
            for slot, each in zip(step.reads, call.operands, strict=True)
        )
        inside = tuple(slot in form for slot in step.reads)
        form[step.writes] = forms.setdefault((call.op, call.result.dtype, operands, inside), len(forms))
        level[step.writes] = 1 + max((level.get(slot, -1) for slot in step.reads), default=-1)
        for place, slot in enumerate(step.reads):
            readers.setdefault(slot, []).append((at, place))
    uses: dict[Any, int] = {}
    use: dict[int, int] = {}
    groups: dict[int, Group] = {}
    for number, at in enumerate(reversed(candidates)):
        if not number % PIECE:
            yield
        slot = steps[at].writes
        read = tuple(sorted((use[reader], place) for reader, place in readers.get(slot, ())))
        use[at] = uses.setdefault((form[slot], read, slot in wanted), len(uses))
        groups.setdefault(use[at], []).append(at)
    ordered = sorted(
        (group[::-1] for group in groups.values()), key=lambda group: (level[steps[group[0]].writes], group[0])
    )
    places = {
        steps[at].writes: (number, place) for number, group in enumerate(ordered) for place, at in enumerate(group)
    }
    return [group for group in ordered if _fits(steps, group, places)]


def _fits(steps: Sequence[ProgramStep], group: Group, places: dict[int, tuple[int, int]]) -> bool:
    """Whether a group is large enough, and not too large, and its operands lie as its members do."""
    if len(group) < MIN_ALIKE or sum(_call(steps[at]).result.size for at in group) > MAX_VECTOR:
        return False
    for slots in zip(*[steps[at].reads for at in group], strict=True):
        found = [places.get(slot, (-1, at)) for at, slot in enumerate(slots)]
        if found != [(found[0][0], found[0][1] + at) for at in range(len(group))]:
            return False
    return True


def _copies(steps: Sequence[ProgramStep], groups: Sequence[Group], wanted: set[int]) -> int:
    """How many tensors are packed and copied out, each of which takes less than a step."""
    made = {steps[at].writes for group in groups for at in group}
    packed = {
        slot
        for group in groups
        for at in group
        for slot, each in zip(steps[at].reads, _call(steps[at]).operands, strict=True)
        if slot not in made and isinstance(each, Spec) and each.shape
    }
    return len(packed) + len(made & wanted)


def _call(step: ProgramStep) -> KernelCall:
    assert step.call is not None, "a candidate has a call"
    return step.call


class _Operand(NamedTuple):
    """What a call reads: a vector, or a part of it; or numbers out of slots, one for each tensor."""

    vector: int
    part: slice | None = None
    numbers: tuple[int, ...] = ()


class _VectorCall(NamedTuple):
    """One call: from vectors and numbers to another vector, in the memory of `out` if it is not negative."""

    function: np.ufunc
    operands: tuple[_Operand, ...]
    counts: np.ndarray[Any, Any]
    dtype: np.dtype[Any]
    result: int
    out: int
    spent: tuple[int, ...]
    """Vectors that nobody reads afterwards."""
    kept: tuple[tuple[int, slice, tuple[int, ...]], ...]
    """The slot, part and shape of each tensor that is read outside."""

    def made(self, vectors: list[Any], slots: Slots) -> Any:
        """What it makes."""
        given: list[Any] = []
        for vector, part, numbers in self.operands:
            if numbers:
                given.append(_numbers([slots[slot] for slot in numbers], self.counts, self.dtype))
            else:
                given.append(vectors[vector] if part is None else vectors[vector][part])
        return self.function(*given) if self.out < 0 else self.function(*given, out=vectors[self.out])


Draft = tuple[list[ProgramStep], list[_Operand]]
"""The members of a call, and what it reads; vectors that calls make have negative numbers, those that are packed others."""


def compile_vectors(
    members: Sequence[ProgramStep], sizes: Sequence[int], wanted: set[int], dead: tuple[int, ...], by_steps: Action
) -> Action:
    """The action of a vector batch, of calls of so many members. `wanted`: slots that are read after it; `by_steps` does the same
    one by one."""
    drafts, packed = _drafts(members, sizes)
    calls = _drawn(drafts, len(packed), wanted)
    rowwise = _rowwise(members, wanted)

    def action(slots: Slots) -> None:
        if not all(any(slots[slot].flags.c_contiguous for slot in group) for group in rowwise):
            by_steps(slots)
            return
        vectors: list[Any] = [np.concatenate([slots[slot].reshape(-1) for slot in each]) for each in packed]
        vectors += [None] * len(calls)
        found: list[tuple[int, Any]] = []
        for call in calls:
            made = vectors[call.result] = call.made(vectors, slots)
            found += [(slot, made[part].reshape(shape).copy()) for slot, part, shape in call.kept]
            for vector in call.spent:
                vectors[vector] = None
        for slot, value in found:
            slots[slot] = value
        for slot in dead:
            slots[slot] = None

    return action


def _drafts(members: Sequence[ProgramStep], sizes: Sequence[int]) -> tuple[list[Draft], list[tuple[int, ...]]]:
    """What each call reads, and the slots of which vectors are packed."""
    packs: dict[tuple[int, ...], int] = {}
    drafts: list[Draft] = []
    places: dict[int, tuple[int, int]] = {}
    """By slot, the call that makes it and the first element there."""
    rest = iter(members)
    for size in sizes:
        group = list(itertools.islice(rest, size))
        operands: list[_Operand] = []
        for place, operand in enumerate(_call(group[0]).operands):
            slots = tuple([step.reads[place] for step in group])
            if slots[0] in places:
                number, start = places[slots[0]]
                operands.append(_Operand(-1 - number, slice(start, start + _size(group))))
            elif isinstance(operand, Spec) and operand.shape:
                operands.append(_Operand(packs.setdefault(slots, len(packs))))
            else:
                operands.append(_Operand(0, None, slots))
        end = 0
        for step in group:
            places[step.writes] = (len(drafts), end)
            end += _call(step).result.size
        drafts.append((group, operands))
    return drafts, list(packs)


def _size(group: Iterable[ProgramStep]) -> int:
    return sum(_call(step).result.size for step in group)


def _drawn(drafts: Sequence[Draft], packs: int, wanted: set[int]) -> list[_VectorCall]:
    """The calls, with the memory of vectors that are spent used again."""
    sizes = [_size(group) for group, _ in drafts]
    plain: list[tuple[_Operand, ...]] = []
    last: dict[int, int] = {}
    for number, (_, operands) in enumerate(drafts):
        row = [_final(each, packs, sizes) for each in operands]
        last.update((each.vector, number) for each in row if not each.numbers)
        plain.append(tuple(row))
    calls = []
    for number, (group, _) in enumerate(drafts):
        result = packs + number
        spent = [vector for vector, at in last.items() if at == number] + ([] if result in last else [result])
        out = next((each.vector for each in plain[number] if each[1:] == (None, ()) and each.vector in spent), -1)
        ends = list(itertools.accumulate(_call(step).result.size for step in group))
        kept = tuple(
            (step.writes, slice(end - _call(step).result.size, end), _call(step).result.shape)
            for step, end in zip(group, ends, strict=True)
            if step.writes in wanted
        )
        first = _call(group[0])
        counts = np.array([_call(step).result.size for step in group])
        dtype = first.result.dtype.numpy
        calls.append(_VectorCall(FUNCTIONS[first.op], plain[number], counts, dtype, result, out, tuple(spent), kept))
    return calls


def _final(operand: _Operand, packs: int, sizes: Sequence[int]) -> _Operand:
    """An operand with the final number of its vector, and no part where it is all of it."""
    if operand.part is None:
        return operand
    made = -1 - operand.vector
    return _Operand(packs + made, None if operand.part == slice(0, sizes[made]) else operand.part)


def _rowwise(members: Sequence[ProgramStep], wanted: set[int]) -> list[tuple[int, ...]]:
    """Groups of slots from outside, of each of which one tensor must lie row by row in memory, or a result would not."""
    laid: dict[int, frozenset[int]] = {}
    for step in members:
        found: list[frozenset[int]] = []
        for slot, each in zip(step.reads, _call(step).operands, strict=True):
            if isinstance(each, Spec) and each.shape:
                found.append(laid.get(slot, frozenset((slot,))))
        laid[step.writes] = frozenset().union(*found)
    return list(
        dict.fromkeys(
            tuple(sorted(laid[step.writes]))
            for step in members
            if step.writes in wanted and len(_call(step).result.shape) > 1
        )
    )


def _numbers(values: Sequence[Any], counts: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers of tensors as an operand: one if all are the same, to the bit, else one for each element."""
    packed = np.array(values, dtype)
    bits = packed.view(f"i{dtype.itemsize}")
    return packed[0] if (bits == bits[0]).all() else packed.repeat(counts)
