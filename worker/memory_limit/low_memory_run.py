"""Running a plan under which memory is short: step by step, each with only its own operands and result held to be there.

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
from gt.worker.spill.eviction import INSIDE, NEVER, Full, Place
from gt.worker.spill.memory_accounting import Stores, holdings, under_way, who_holds
from gt.worker.spill.spill_file import Spilled

from .limiter import Explained, Keeping, later

LOOKED_AT: Final = 64
"""Steps that are looked at for what to read ahead of time."""


class Careful:
    """One execution, from position `at` on. `kept`: by slot, the stored tensors that its value becomes when the plan ends."""

    def __init__(
        self, keeping: Keeping, program: Program, slots: Slots, stores: Stores, queue: Iterable[Any],
        kept: Mapping[int, Place], at: int = 0,
    ) -> None:  # fmt: skip
        self.keeping = keeping
        self.cause = keeping.cause
        self.program = program
        self.slots = slots
        self.stores = stores
        self.held = ""
        self.at = at
        """The position of the step or move that is next."""
        self.reads: dict[int, list[int]] = {}
        self.order = _positions(program, self.reads)
        self.last = len(self.order)
        soon = later(queue)
        self.later = {place: self.last + when for place, when in soon.items()}
        self.kept = {slot: soon.get(place, NEVER) + self.last for slot, place in kept.items()}
        keeping.copies.forget_slots()
        self.books = keeping.count(stores)
        for slot, value in enumerate(slots):
            if value is not None:
                keeping.enter(self.books, slot, value)
        keeping.careful_runs += 1

    def wanted(self, place: Place) -> float:
        """The position at which the value in a place is read next."""
        if not isinstance(place, int):
            return self.later.get(place, NEVER)
        positions = self.reads.get(place, ())
        found = bisect_left(positions, self.at)
        return positions[found] if found < len(positions) else self.kept.get(place, NEVER)

    def make_ready(self, step: ProgramStep) -> None:
        """Have a step's operands there, and room for its result. Raises `MemoryError`."""
        if step.instruction.op == "reshape":
            self.make_room(step.tensors, 0, step.instruction)
            if self.slots[step.reads[0]].flags.c_contiguous:
                return  # it will be a view
        needs = step.needs if step.needs >= self.keeping.small else 0  # what is small is in no books
        needs += self.scratch(step, needs)
        self.make_room(step.tensors, needs, step.instruction)
        self.look_ahead(step.tensors, needs)

    def scratch(self, step: ProgramStep, needs: int) -> int:
        """Bytes to have room for beside a step's operands and its result: what its kernel uses, unless not even alone there would
        be room for all of that. It may use less."""
        books = self.books
        there = {key for slot in step.tensors if (key := books.keys.get(slot)) is not None}
        fits = sum(books.buffers[key].nbytes for key in there) + needs + step.scratch <= self.keeping.limit
        return step.scratch if fits else 0

    def look_ahead(self, tensors: Iterable[int], needs: int) -> None:
        """Begin to read what the next steps will, while this one computes with the values of these slots and makes a result of so
        many bytes. Where there is no room, what is read later than that goes out."""
        keeping, books, slots = self.keeping, self.books, self.slots
        if not keeping.ahead or not keeping.spill.used:
            return
        soon = range(self.at + 1, min(self.at + 1 + LOOKED_AT, self.last))
        there: set[Hashable] = {key for slot in tensors if (key := books.keys.get(slot)) is not None}
        for when, outside in keeping.to_begin((at, slots[slot]) for at in soon for slot in self.order[at]):
            missing = outside.nbytes - (keeping.limit - books.used - needs - keeping.spill.begun())
            inside = keeping.spill.pinned is None
            if (
                inside
                and missing > 0
                and not keeping.give_way(missing, when, books, there, self.stores, slots, self.wanted)
            ):
                return
            keeping.begin(outside)

    def make_room(self, tensors: Iterable[int], nbytes: int, instruction: Instruction) -> None:
        """Have the values of these slots there, and room for so many bytes beside them. Raises `MemoryError`."""
        books, slots = self.books, self.slots
        if self.keeping.recording is not None:
            self.keeping.cause = self.cause._replace(tag=self.program.plan.tags[instruction.tag])
        there: set[Hashable] = {key for slot in tensors if (key := books.keys.get(slot)) is not None}
        missing = [key for key in there if not books.buffers[key].inside]
        nbytes += sum(books.buffers[key].nbytes for key in missing)
        try:
            try:
                self.put_out(nbytes, there, self.keeping.limit - self.keeping.spill.begun(missing))
            except Full:  # what comes ahead of time must not be in the way of what is read now
                self.keeping.spill.forget()
                self.put_out(nbytes, there, self.keeping.limit)
        except Full as error:
            raise Explained(self.explain(error, tensors)) from None
        except OSError as error:
            raise Explained(
                f"memory is full, and values cannot be put out to {self.keeping.spill.where}: {error}. "
                f"Held, in memory and out: {self.who()}"
            ) from None
        for key in missing:
            try:
                self.keeping.bring(books, key, self.stores, slots)
            except MemoryError:  # what is free is in pieces, with small values in between
                if not self.alone(tensors):
                    raise
                self.keeping.bring(books, key, self.stores, slots)

    def put_out(self, nbytes: int, there: Collection[Hashable], limit: int) -> None:
        """Have room for so many bytes more within a limit. Raises `Full`, `OSError`."""
        for key in self.books.victims(nbytes, there, self.wanted, limit):
            self.keeping.put_out(self.books, key, self.stores, self.slots, self.wanted)

    def done(self, made: int, dead: Iterable[int]) -> None:
        """The next step or move is over: it has left a value in a slot, and emptied those of what is dead."""
        keeping = self.keeping
        keeping.enter(self.books, made, self.slots[made])
        keeping.most = max(keeping.most, self.books.used)
        for slot in dead:
            self.books.clear(slot)
        self.at += 1

    def end(self) -> None:
        """The plan is over, and what it leaves is in store."""
        self.keeping.bound = self.books.used

    def alone(self, tensors: Iterable[int]) -> bool:
        """Put out all but the values of these slots, so that what a kernel uses beside them, or they themselves, may find room;
        whether there was any."""
        there = {key for slot in tensors if (key := self.books.keys.get(slot)) is not None}
        others = [key for _, key in self.books.last_first(INSIDE, there, self.wanted)]
        begun = self.keeping.spill.begun()
        self.keeping.spill.forget()
        try:
            for key in others:
                self.keeping.put_out(self.books, key, self.stores, self.slots, self.wanted)
        except OSError:
            return False
        return bool(others or begun)

    def explain(self, error: Full, tensors: Iterable[int]) -> str:
        """What is needed, what there is, and who has it, largest first."""
        operands = sum(1 for slot in tensors if not isinstance(self.slots[slot], Spilled))
        return (
            f"out of memory: this instruction alone needs {error.wanted + error.fixed:,} bytes at once, with its {operands} "
            f"operands, and this worker may use {error.limit:,} (memory_pool_size); there is nothing left to put out. "
            f"Held, in memory and out: {self.who()}. Cut the tensor over more workers, or start workers with a larger pool"
        )

    def who(self) -> str:
        """Who holds what, counted once in a run."""
        if not self.held:
            buffers = self.keeping.buffers
            made = under_way(self.program, self.slots, self.stores, buffers)
            self.held = who_holds([*holdings(self.stores, self.keeping.origins, buffers), *made])
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
