"""Scalar batches: what a program does alike to many numbers, each a tensor without dimensions, as one vector.

An optimizer whose counts of steps are tensors computes the same bias corrections for each parameter. Of a number NumPy takes a
microsecond a step, as long as of hundreds. So steps of one op that are computed alike from what a block finds, eight or more of
them, become one call on a vector. Only functions take part of which every element's result is the exact one, rounded once (IEEE
754), so no bit can depend on it; powers are computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gt.ir.spec import Spec
from gt.worker.fusion.incremental import Incremental
from gt.worker.program.compiler import Action, ProgramStep, Slots

MIN_ALIKE: Final = 8
"""Steps from which packing and unpacking take less than they save."""
EXACT: Final = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "neg": np.negative, "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
}  # fmt: skip
"""Functions whose results are rounded exactly, whichever loop computes them."""
ONE_BY_ONE: Final = {"pow": np.power}
"""Functions of which loops over vectors may have other bits."""


class ScalarBatch(NamedTuple):
    """Steps of a block that run as one scalar batch, those that are alike one after the other."""

    steps: tuple[int, ...]


Form = tuple[Any, ...]
"""How a step is computed: its op and dtype, and of each operand the form, or that it comes from outside."""


def scalar_batch(steps: Sequence[ProgramStep], alone: Sequence[int]) -> Incremental[ScalarBatch | None]:
    """The scalar batch of a block, out of steps that are in nothing else; it runs before all others. None if few are alike."""
    made = {step.writes for step in steps}
    if len(made) < len(steps):  # slots are written again, as sums over microbatches
        return None
    candidates = [at for at in alone if _able(steps[at])]
    while True:
        forms: dict[int, Form] = {}
        alike: dict[Form, list[int]] = {}
        for at in candidates:
            yield
            step = steps[at]
            if all(slot in forms or slot not in made for slot in step.tensors):
                assert step.call is not None, "a candidate has a call"
                operands = tuple(forms.get(slot, slot in step.tensors) for slot in step.reads)
                form = (step.call.op, step.call.result.dtype, operands)
                forms[step.writes] = form
                alike.setdefault(form, []).append(at)
        kept = {at for members in alike.values() if len(members) >= MIN_ALIKE for at in members}
        if len(kept) == len(candidates):
            return ScalarBatch(tuple(at for members in alike.values() for at in members)) if kept else None
        candidates = [at for at in candidates if at in kept]


def _able(step: ProgramStep) -> bool:
    call = step.call
    if call is None or call.result.shape or call.result.dtype.numpy not in (np.float32, np.float64):
        return False
    if call.op not in EXACT and call.op not in ONE_BY_ONE:
        return False
    return all(each == call.result for each in call.operands if isinstance(each, Spec))


class _ScalarCall(NamedTuple):
    """One call: the function, whether of vectors, and of each operand either the vector of an earlier call with the places in it
    (None: all, in order), or the slots to pack."""

    function: np.ufunc
    exact: bool
    dtype: np.dtype[Any]
    operands: tuple[tuple[int, Any] | list[int], ...]
    kept: list[tuple[int, int]]
    """Which elements somebody else reads, and their slots."""


def compile_batch(members: Sequence[ProgramStep], wanted: set[int], dead: tuple[int, ...]) -> Action:
    """The action of a scalar batch. `wanted`: slots that are read after it."""
    runs: list[list[ProgramStep]] = []
    forms: dict[int, Form] = {}
    last: Form | None = None
    for step in members:
        assert step.call is not None, "a member has a call"
        form = (step.call.op, step.call.result.dtype, tuple(forms.get(s, s in step.tensors) for s in step.reads))
        forms[step.writes] = form
        if form != last:
            runs.append([])
        runs[-1].append(step)
        last = form
    calls: list[_ScalarCall] = []
    places: dict[int, tuple[int, int]] = {}
    for number, run in enumerate(runs):
        operands = tuple(_operand([step.reads[k] for step in run], places) for k in range(len(run[0].reads)))
        call = run[0].call
        assert call is not None, "a member has a call"
        function = EXACT.get(call.op) or ONE_BY_ONE[call.op]
        kept = [(at, step.writes) for at, step in enumerate(run) if step.writes in wanted]
        calls.append(_ScalarCall(function, call.op in EXACT, call.result.dtype.numpy, operands, kept))
        places.update((step.writes, (number, at)) for at, step in enumerate(run))

    def action(slots: Slots) -> None:
        vectors: list[Any] = []
        found: list[tuple[int, Any]] = []
        for function, exact, dtype, operands, kept in calls:
            if exact:
                out = function(*[_vector(each, vectors, slots, dtype) for each in operands])
            else:
                out = np.array(list(map(function, *[_numbers(each, vectors, slots) for each in operands])), dtype)
            vectors.append(out)
            if len(kept) == len(out):
                found += zip([slot for _, slot in kept], out, strict=True)
            else:
                found += [(slot, out[at]) for at, slot in kept]
        for slot, value in found:
            slots[slot] = value
        for slot in dead:
            slots[slot] = None

    return action


def _operand(slots: list[int], places: dict[int, tuple[int, int]]) -> tuple[int, Any] | list[int]:
    if slots[0] not in places:
        return slots
    number, at = places[slots[0]][0], [places[slot][1] for slot in slots]
    return number, None if at == list(range(len(at))) and len(at) == _length(number, places) else np.array(at)


def _length(number: int, places: dict[int, tuple[int, int]]) -> int:
    return sum(1 for run, _ in places.values() if run == number)


def _vector(operand: tuple[int, Any] | list[int], vectors: list[Any], slots: Slots, dtype: np.dtype[Any]) -> Any:
    if isinstance(operand, list):
        return np.array([slots[slot] for slot in operand], dtype)
    number, at = operand
    return vectors[number] if at is None else vectors[number][at]


def _numbers(operand: tuple[int, Any] | list[int], vectors: list[Any], slots: Slots) -> Any:
    """The same as numbers: of the program, or NumPy's."""
    if isinstance(operand, list):
        return [slots[slot] for slot in operand]
    number, at = operand
    return vectors[number] if at is None else vectors[number][at]
