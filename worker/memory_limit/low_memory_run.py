"""A low-memory run of a plan: step by step, with only each step's operands and result guaranteed to be in memory.

All else may go out between two uses, what is read again last first: in which order a program reads its slots is known, and
which stored tensors the plans after it read was announced. What is computed is the same to the last bit, for these are the
same steps; chains, and results in their operands' memory, are for when there is room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, Final

from gt.ir.instruction import Instruction
from gt.worker.program.compiler import Program, ProgramStep, Slots
from gt.worker.spill.eviction import DEVICE_TIER, NEVER_READ, OverLimit, ValuePlace
from gt.worker.spill.memory_accounting import Stores, memory_by_signal, unstored_memory, who_holds
from gt.worker.spill.spill_file import SpilledValue

from .explained_error import ExplainedMemoryError
from .limiter import MemoryLimiter, next_reads

MAX_LOOKAHEAD_STEPS: Final = 64
"""The most steps that are searched for what to prefetch."""


class LowMemoryRun:
    """A low-memory run of one plan, from position `at` on. `kept`: by slot, the stored tensors that its value becomes when
    the plan ends."""

    def __init__(
        self, limiter: MemoryLimiter, program: Program, slots: Slots, stores: Stores, queue: Iterable[Any],
        kept: Mapping[int, ValuePlace], at: int = 0,
    ) -> None:  # fmt: skip
        self.limiter = limiter
        self.cause = limiter.cause
        self.program = program
        self.slots = slots
        self.stores = stores
        self.held = ""
        self.at = at
        """The position of the step or move that is next."""
        self.reads: dict[int, list[int]] = {}
        self.order = _positions(program, self.reads)
        self.last = len(self.order)
        soon = next_reads(queue)
        self.later = {place: self.last + when for place, when in soon.items()}
        self.kept = {slot: soon.get(place, NEVER_READ) + self.last for slot, place in kept.items()}
        limiter.copies.forget_slots()
        self.books = limiter.count(stores)
        for slot, value in enumerate(slots):
            if value is not None:
                limiter.enter(self.books, slot, value)
        limiter.low_memory_runs += 1

    def wanted(self, place: ValuePlace) -> float:
        """The position at which the value in a place is read next."""
        if not isinstance(place, int):
            return self.later.get(place, NEVER_READ)
        positions = self.reads.get(place, ())
        found = bisect_left(positions, self.at)
        return positions[found] if found < len(positions) else self.kept.get(place, NEVER_READ)

    def make_ready(self, step: ProgramStep) -> None:
        """Have a step's operands there, and room for its result. Raises `MemoryError`."""
        if step.instruction.op == "reshape":
            self.make_room(step.tensors, 0, step.instruction)
            if self.slots[step.reads[0]].flags.c_contiguous:
                return  # it will be a view
        needs = step.needs if step.needs >= self.limiter.small else 0  # what is small is in no books
        needs += self.scratch(step, needs)
        self.make_room(step.tensors, needs, step.instruction)
        self.look_ahead(step.tensors, needs)

    def scratch(self, step: ProgramStep, needs: int) -> int:
        """Bytes to have room for beside a step's operands and its result: what its kernel uses, unless not even alone there would
        be room for all of that. It may use less."""
        books = self.books
        there = {key for slot in step.tensors if (key := books.keys.get(slot)) is not None}
        fits = sum(books.buffers[key].nbytes for key in there) + needs + step.scratch <= self.limiter.limit
        return step.scratch if fits else 0

    def look_ahead(self, tensors: Iterable[int], needs: int) -> None:
        """Begin to read what the next steps will, while this one computes with the values of these slots and makes a result of so
        many bytes. Where there is no room, what is read later than that goes out."""
        limiter, books, slots = self.limiter, self.books, self.slots
        if not limiter.ahead or not limiter.spill.used:
            return
        soon = range(self.at + 1, min(self.at + 1 + MAX_LOOKAHEAD_STEPS, self.last))
        there: set[Hashable] = {key for slot in tensors if (key := books.keys.get(slot)) is not None}
        for when, outside in limiter.to_begin((at, slots[slot]) for at in soon for slot in self.order[at]):
            missing = outside.nbytes - (limiter.limit - books.used - needs - limiter.spill.begun())
            inside = limiter.spill.pinned is None
            if (
                inside
                and missing > 0
                and not limiter.give_way(missing, when, books, there, self.stores, slots, self.wanted)
            ):
                return
            limiter.begin(outside)

    def make_room(self, tensors: Iterable[int], nbytes: int, instruction: Instruction) -> None:
        """Have the values of these slots there, and room for so many bytes beside them. Raises `MemoryError`."""
        books, slots = self.books, self.slots
        if self.limiter.recording is not None:
            self.limiter.cause = self.cause._replace(tag=self.program.plan.tags[instruction.tag])
        there: set[Hashable] = {key for slot in tensors if (key := books.keys.get(slot)) is not None}
        missing = [key for key in there if not books.buffers[key].inside]
        nbytes += sum(books.buffers[key].nbytes for key in missing)
        try:
            try:
                self.put_out(nbytes, there, self.limiter.limit - self.limiter.spill.begun(missing))
            except OverLimit:  # what comes ahead of time must not be in the way of what is read now
                self.limiter.spill.forget()
                self.put_out(nbytes, there, self.limiter.limit)
        except OverLimit as error:
            raise ExplainedMemoryError(self.explain(error, tensors)) from None
        except OSError as error:
            raise ExplainedMemoryError(
                f"memory is full, and values cannot be put out to {self.limiter.spill.where}: {error}. "
                f"Held, in memory and out: {self.who()}"
            ) from None
        for key in missing:
            try:
                self.limiter.bring(books, key, self.stores, slots)
            except MemoryError:  # what is free is in pieces, with small values in between
                if not self.alone(tensors):
                    raise
                self.limiter.bring(books, key, self.stores, slots)

    def put_out(self, nbytes: int, there: Collection[Hashable], limit: int) -> None:
        """Have room for so many bytes more within a limit. Raises `OverLimit`, `OSError`."""
        for key in self.books.victims(nbytes, there, self.wanted, limit):
            self.limiter.put_out(self.books, key, self.stores, self.slots, self.wanted)

    def done(self, made: int, dead: Iterable[int]) -> None:
        """The next step or move is over: it has left a value in a slot, and emptied those of what is dead."""
        limiter = self.limiter
        limiter.enter(self.books, made, self.slots[made])
        limiter.most = max(limiter.most, self.books.used)
        for slot in dead:
            self.books.clear(slot)
        self.at += 1

    def end(self) -> None:
        """The plan is over, and what it leaves is in store."""
        self.limiter.bound = self.books.used

    def alone(self, tensors: Iterable[int]) -> bool:
        """Put out all but the values of these slots, so that what a kernel uses beside them, or they themselves, may find room;
        whether there was any."""
        there = {key for slot in tensors if (key := self.books.keys.get(slot)) is not None}
        others = [key for _, key in self.books.last_first(DEVICE_TIER, there, self.wanted)]
        begun = self.limiter.spill.begun()
        self.limiter.spill.forget()
        try:
            for key in others:
                self.limiter.put_out(self.books, key, self.stores, self.slots, self.wanted)
        except OSError:
            return False
        return bool(others or begun)

    def explain(self, error: OverLimit, tensors: Iterable[int]) -> str:
        """What is needed, what there is, and who has it, largest first."""
        operands = sum(1 for slot in tensors if not isinstance(self.slots[slot], SpilledValue))
        return (
            f"out of memory: this instruction alone needs {error.wanted + error.fixed:,} bytes at once, with its {operands} "
            f"operands, and this worker may use {error.limit:,} (memory_pool_size); there is nothing left to put out. "
            f"Held, in memory and out: {self.who()}. Cut the tensor over more workers, or start workers with a larger pool"
        )

    def who(self) -> str:
        """Who holds what, counted once in a run."""
        if not self.held:
            buffers = self.limiter.buffers
            made = unstored_memory(self.program, self.slots, self.stores, buffers)
            self.held = who_holds([*memory_by_signal(self.stores, self.limiter.origins, buffers), *made])
        return self.held


def _positions(program: Program, reads: dict[int, list[int]]) -> list[tuple[int, ...]]:
    """By position which slots are read there; and by slot at which positions it is."""
    order: list[tuple[int, ...]] = []
    for number, block in enumerate(program.blocks):
        order += [tuple(step.tensors) for step in block]
        if number < len(program.moves):
            order.append((program.moves[number].source,))
    for at, slots in enumerate(order):
        for slot in slots:
            reads.setdefault(slot, []).append(at)
    return order
