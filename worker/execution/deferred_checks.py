"""Deferred checks: errors that steps on a GPU find in their operands, read later, so that the worker never waits for the device.

Whether an index is out of range is known only when the device has got so far. Until then the result stands in its slot or in
the store like any value, computed with a harmless index, and carries a deferred check. Results inherit the checks of what they
were computed from. A value leaves the worker only when its checks are known; and whenever a plan begins or ends, those are
settled whose answers have come. A value with a check that found an error is poison from then on, with the error that a CPU
would have raised; no other value is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gt.wire import messages as m
from gt.wire.faults import Fault, fault_of
from gt.worker.base.events import Send, ToDispatcher
from gt.worker.base.kernel_call import CheckFlags, OperandCheck
from gt.worker.program.compiler import Program, ProgramStep, describe

TensorKey = tuple[int, int]
"""Client and tensor."""


class DeferredCheck:
    """One check of one step, whose answer may not be known yet."""

    __slots__ = ("_at", "_explain", "_flags", "fault", "open")

    def __init__(self, flags: CheckFlags, at: int, explain: Callable[[int], Fault]) -> None:
        self._flags = flags
        self._at = at
        self._explain = explain
        self.open = True
        self.fault: Fault | None = None
        """The error that it found, once it is settled."""

    @property
    def group(self) -> Any:
        """The NCCL group whose joint move this checks, if it checks one (`CollectiveCompletion`)."""
        return getattr(self._flags, "group", None)

    def settled(self) -> bool:
        """Whether the answer has come."""
        if self.open and self._flags.come():
            self.open = False
            found = self._flags.all()[self._at]
            if found:
                self.fault = self._explain(found)
            self._explain = lambda _: ("", "")  # which holds a program
        return not self.open


class DeferredChecks:
    """The checks of one worker's stored values. Those of the plan in progress are by slot in its `Execution.deferred_checks`."""

    def __init__(self, checks: list[OperandCheck], flags: Callable[[list[Any]], CheckFlags], out: list[Send]) -> None:
        self.checks = checks
        """The list to which kernels append their checks."""
        self.flags = flags
        self.out = out
        self.stored: dict[TensorKey, list[DeferredCheck]] = {}

    def enter(
        self, client: int, inputs: Iterable[int], found: dict[int, list[DeferredCheck]], dying: Iterable[int]
    ) -> dict[int, Fault]:
        """Begin a plan: put the checks of its inputs into `found`, by slot. Returns the faults of inputs whose checks found
        errors."""
        faults: dict[int, Fault] = {}
        if not self.stored:
            return faults
        dead = set(dying)
        for slot, tensor in enumerate(inputs):
            deferred_checks = self.stored.get((client, tensor))
            if deferred_checks is None:
                continue
            fault = self._settled(deferred_checks)
            if fault is not None:
                faults[slot] = fault
            elif deferred_checks:
                found[slot] = list(deferred_checks)
            if slot in dead or not deferred_checks:
                del self.stored[client, tensor]
        return faults

    def gather(self, program: Program, order: int, client: int, found: dict[int, list[DeferredCheck]]) -> None:
        """Collect the checks of a block that was computed, by the slots of the results."""
        checks = [*self.checks]
        self.checks.clear()
        flags = self.flags([check.found for check in checks])
        for at, check in enumerate(checks):
            step = _step_of(program, check)
            found.setdefault(step.writes, []).append(
                DeferredCheck(flags, at, self._explain(program, step, check, order, client))
            )

    def _explain(
        self, program: Program, step: ProgramStep, check: OperandCheck, order: int, client: int
    ) -> Callable[[int], Fault]:
        error = check.error

        def explain(found: int) -> Fault:
            kind, text = fault_of(error(found))
            fault = (kind, f"{text}\n  in {describe(program, step.instruction)}")
            self.out.append(ToDispatcher(m.Poisoned(order, client, *fault)))
            return fault

        return explain

    def expect(
        self, flags: CheckFlags, explain: Callable[[int], Fault], slot: int, found: dict[int, list[DeferredCheck]]
    ) -> None:
        """Add a check of a slot that does not come from a kernel."""
        found.setdefault(slot, []).append(DeferredCheck(flags, 0, explain))

    def wrong(
        self, program: Program, found: dict[int, list[DeferredCheck]], slot: int, but: Any = None
    ) -> dict[int, Fault] | None:
        """Settle the checks on which the value in a slot depends. Returns the faults of all slots of the plan that are poison
        by them; None while an answer is missing. Calls of the NCCL group `but` need not be over, because it completes its
        calls in order, or none."""
        sources = [source for source in found if slot in _reached(program, source)]
        asked = [each for source in sources for each in found[source] if but is None or each.group is not but]
        if not all(deferred_check.settled() for deferred_check in asked):
            return None
        faults: dict[int, Fault] = {}
        for source in sources:
            fault = next(
                (deferred_check.fault for deferred_check in found[source] if deferred_check.fault is not None), None
            )
            found[source] = [deferred_check for deferred_check in found[source] if deferred_check.open]
            if not found[source]:
                del found[source]
            if fault is not None:
                for touched in _reached(program, source):
                    faults.setdefault(touched, fault)
        return faults

    def leave(
        self, program: Program, found: Mapping[int, list[DeferredCheck]], survivors: Iterable[tuple[TensorKey, int]]
    ) -> None:
        """End a plan: what survives it carries the checks of what it was computed from."""
        for key, slot in survivors:
            deferred_checks = [
                each for source, held in found.items() if slot in _reached(program, source) for each in held
            ]
            if deferred_checks:
                self.stored[key] = list(dict.fromkeys(deferred_checks))
            else:
                self.stored.pop(key, None)

    def of(self, key: TensorKey) -> list[DeferredCheck]:
        """The checks of a stored value."""
        return [*self.stored.get(key, ())]

    def look(self) -> dict[TensorKey, Fault]:
        """Settle the checks whose answers have come. Returns the faults of stored values of which one found an error."""
        faults: dict[TensorKey, Fault] = {}
        for key, deferred_checks in list(self.stored.items()):
            fault = self._settled(deferred_checks)
            if fault is not None:
                faults[key] = fault
            if not deferred_checks or fault is not None:
                del self.stored[key]
        return faults

    @staticmethod
    def _settled(deferred_checks: list[DeferredCheck]) -> Fault | None:
        """Remove the settled checks from a list. Returns the first fault that one found."""
        left = [deferred_check for deferred_check in deferred_checks if not deferred_check.settled()]
        fault = next(
            (deferred_check.fault for deferred_check in deferred_checks if deferred_check.fault is not None), None
        )
        deferred_checks[:] = left
        return fault


def _step_of(program: Program, check: OperandCheck) -> ProgramStep:
    """The step whose kernel has this call."""
    found = program.checked.get(id(check.call))
    if found is None:
        found = next(step for block in program.blocks for step in block if step.call is check.call)
        program.checked[id(check.call)] = found
    return found


def _reached(program: Program, slot: int) -> frozenset[int]:
    """The slots whose values are computed from one, and itself."""
    found = program.reached.get(slot)
    if found is None:
        touched = {slot}
        for at, block in enumerate(program.blocks):
            for step in block:
                if not touched.isdisjoint(step.sources):
                    touched.add(step.writes)
            if at < len(program.moves) and program.moves[at].source in touched:
                touched.add(program.moves[at].target)
        found = program.reached[slot] = frozenset(touched)
    return found
