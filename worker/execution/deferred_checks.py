"""What steps on a GPU found wrong with their operands, looked at later: the worker's thread does not wait for the device.

Whether an index is out of range is known when the device has got so far. Until then what was computed from it is *doubtful*: it
stands in its slot or store like any value, computed with an index that does no harm. Results inherit doubts of what
they were computed from. A doubtful value leaves the worker when its doubts are settled, and no earlier; and whenever a plan
begins or ends, those are whose answers have come. Whatever had a doubt that proved true is poison from then on, with the
error that a CPU would have raised, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gt.wire import messages as m
from gt.wire.messages import Fault, fault_of
from gt.worker.base.events import Send, ToDispatcher
from gt.worker.base.kernel_call import CheckFlags, OperandCheck
from gt.worker.program.compiler import Program, ProgramStep, describe

Key = tuple[int, int]
"""Client and tensor."""


class Doubt:
    """One check of one step."""

    __slots__ = ("_at", "_explain", "_flags", "fault", "open")

    def __init__(self, flags: CheckFlags, at: int, explain: Callable[[int], Fault]) -> None:
        self._flags = flags
        self._at = at
        self._explain = explain
        self.open = True
        self.fault: Fault | None = None
        """Why what has this doubt is poison, once it is settled."""

    @property
    def group(self) -> Any:
        """The group whose members do together what this is a doubt of, if it is one of theirs (`nccl.Finish`)."""
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


class Doubts:
    """The doubts of one worker's stored values, and of the plan that runs (by slot, in its `Running.doubts`)."""

    def __init__(self, checks: list[OperandCheck], flags: Callable[[list[Any]], CheckFlags], out: list[Send]) -> None:
        self.checks = checks
        """Where kernels leave what they found."""
        self.flags = flags
        self.out = out
        self.stored: dict[Key, list[Doubt]] = {}

    def enter(
        self, client: int, inputs: Iterable[int], found: dict[int, list[Doubt]], dying: Iterable[int]
    ) -> dict[int, Fault]:
        """A plan begins: put the doubts of its inputs in `found`, by slot; the faults of inputs whose doubts proved true."""
        faults: dict[int, Fault] = {}
        if not self.stored:
            return faults
        dead = set(dying)
        for slot, tensor in enumerate(inputs):
            doubts = self.stored.get((client, tensor))
            if doubts is None:
                continue
            fault = self._settled(doubts)
            if fault is not None:
                faults[slot] = fault
            elif doubts:
                found[slot] = list(doubts)
            if slot in dead or not doubts:
                del self.stored[client, tensor]
        return faults

    def gather(self, program: Program, order: int, client: int, found: dict[int, list[Doubt]]) -> None:
        """A block was computed: what its steps were not sure of, by their results' slots."""
        checks = [*self.checks]
        self.checks.clear()
        flags = self.flags([check.found for check in checks])
        for at, check in enumerate(checks):
            step = _step_of(program, check)
            found.setdefault(step.writes, []).append(
                Doubt(flags, at, self._explain(program, step, check, order, client))
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
        self, flags: CheckFlags, explain: Callable[[int], Fault], slot: int, found: dict[int, list[Doubt]]
    ) -> None:
        """What stands in a slot is not sure for another reason than a kernel's."""
        found.setdefault(slot, []).append(Doubt(flags, 0, explain))

    def wrong(
        self, program: Program, found: dict[int, list[Doubt]], slot: int, but: Any = None
    ) -> dict[int, Fault] | None:
        """The faults of the slots of a plan that are poison by what was doubtful of a slot; None while an answer is missing. What
        the group `but` has under way need not be over: it finishes one thing after the other, or nothing more."""
        sources = [source for source in found if slot in _reached(program, source)]
        asked = [each for source in sources for each in found[source] if but is None or each.group is not but]
        if not all(doubt.settled() for doubt in asked):
            return None
        faults: dict[int, Fault] = {}
        for source in sources:
            fault = next((doubt.fault for doubt in found[source] if doubt.fault is not None), None)
            found[source] = [doubt for doubt in found[source] if doubt.open]
            if not found[source]:
                del found[source]
            if fault is not None:
                for touched in _reached(program, source):
                    faults.setdefault(touched, fault)
        return faults

    def leave(self, program: Program, found: Mapping[int, list[Doubt]], survivors: Iterable[tuple[Key, int]]) -> None:
        """A plan ends: what survives has the doubts of what it was computed from."""
        for key, slot in survivors:
            doubts = [each for source, held in found.items() if slot in _reached(program, source) for each in held]
            if doubts:
                self.stored[key] = list(dict.fromkeys(doubts))
            else:
                self.stored.pop(key, None)

    def of(self, key: Key) -> list[Doubt]:
        """The doubts of a stored value."""
        return [*self.stored.get(key, ())]

    def look(self) -> dict[Key, Fault]:
        """Forget doubts whose answers have come; the faults of the stored values of which one proved true."""
        faults: dict[Key, Fault] = {}
        for key, doubts in list(self.stored.items()):
            fault = self._settled(doubts)
            if fault is not None:
                faults[key] = fault
            if not doubts or fault is not None:
                del self.stored[key]
        return faults

    @staticmethod
    def _settled(doubts: list[Doubt]) -> Fault | None:
        """Look at doubts, of which only open ones stay; the first that proved true."""
        left = [doubt for doubt in doubts if not doubt.settled()]
        fault = next((doubt.fault for doubt in doubts if doubt.fault is not None), None)
        doubts[:] = left
        return fault


def _step_of(program: Program, check: OperandCheck) -> ProgramStep:
    """The step whose kernel was told this call."""
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
