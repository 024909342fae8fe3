"""The segment builder: gathers instructions between two flushes and turns them into definitions and runs.

It uses no socket, clock or thread. A builder belongs to one client thread, but another thread may flush it. The per-op path
is a plain call, `emit`. Output n of the segment being gathered is tensor `base + n`, so a flush renames nothing. A value
that is created and dies between two flushes is never mentioned elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import compress
from sys import getrefcount
from typing import Any, Final, Protocol

from gt.bounds import MAX_ALL_OPERANDS, MAX_IDS, MAX_INPUTS, MAX_INSTRUCTIONS, MAX_OPERANDS, MAX_SCALARS
from gt.errors import SessionError
from gt.ir.dtypes import Scalar
from gt.ir.instruction import ID_BITS
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import Spec
from gt.wire.messages import Define, Drop, Free, Run

from .definition_cache import Definitions
from .loop_period import LoopPeriods
from .signature import Signature, TracedSegment, segment_of
from .value import UNSHARED_REFERENCES, SentValue, TensorValue

FLUSH_LENGTH: Final = 512
"""Instructions after which a segment is flushed by itself."""
FLUSH_INPUTS: Final = MAX_INPUTS - MAX_OPERANDS
"""Inputs after which a segment is flushed by itself, so that one more instruction keeps it within its bound."""
FLUSH_SCALARS: Final = MAX_SCALARS - MAX_OPERANDS
"""The same of run-time scalars."""
FEW_OPERANDS: Final = 4
FLUSH_OPERANDS: Final = MAX_ALL_OPERANDS - FEW_OPERANDS * MAX_INSTRUCTIONS - MAX_OPERANDS
"""The same of the operands of instructions with more than `FEW_OPERANDS`."""
_new: Final = object.__new__
PUT_IDS: Final = 1 << ID_BITS - 1
"""How many of a builder's ids, the first ones, are for puts: what is not in the segment under way has an id before its base."""


class BuilderSession(Protocol):
    """What a builder needs of its session."""

    definitions: Definitions
    flush_length: int
    """Instructions after which a new builder flushes by itself."""
    orphans: list[int]
    """Dead tensors of builders that are gone themselves; whoever flushes next frees them."""

    def exclusive(self) -> AbstractContextManager[Any]:
        """While it lasts no other thread sends, and Ctrl-C is put off: what is sent and what is remembered agree."""

    def sink(self, messages: list[Any]) -> None:
        """Take the messages of one flush, in order. Never waits."""

    def pace(self) -> None:
        """Wait while too much is under way. Called when nothing is half done, so it may be interrupted."""


class Lock(Protocol):
    """A re-entrant lock."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock."""

    def release(self) -> None:
        """Give it back."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *details: Any) -> Any: ...


class SegmentCapture(Protocol):
    """What a builder tells of its instructions while a whole call of a function is captured (`client/compile/capture.py`)."""

    def interrupt(self, reason: str) -> None:
        """End the capture: something needs what was gathered."""

    def backward_reached(self, oldest: int) -> None:
        """A backward pass came as far as the vertex of this order."""

    def step_numbers(
        self, optimizer: Any, state: dict[str, Any], group: dict[str, Any], numbers: tuple[Any, ...]
    ) -> Any:
        """Note the numbers of an optimizer's step; returns the same ones, as objects of their own."""


class Builder:
    """Gathers one thread's instructions for `session`.

    The owning thread emits without a lock. It raises `busy` while an instruction is half in; another thread that wants to
    flush takes `lock`, raises `claimed`, and goes away again when it finds `busy` raised; the owner, finding `claimed`
    raised, lowers `busy` and waits for the lock. As each side raises its own flag before it looks at the other's, at most
    one goes on. Of an emission that is interrupted half way nothing is left but, at worst, a result that nobody holds.
    """

    __slots__ = (
        "__weakref__", "base", "busy", "capture", "claimed", "dead", "foreign", "inputs", "length", "lock", "many", "periods",
        "puts", "record", "scalars", "session", "thread", "values",
    )  # fmt: skip

    def __init__(self, session: BuilderSession, number: int, lock: Lock) -> None:
        self.session = session
        self.puts = number << ID_BITS
        self.base = self.puts + PUT_IDS
        self.limit(session.flush_length)
        self.dead: list[int] = []
        self.record: list[tuple[Any, ...]] = []
        """For each instruction its signature and, for each tensor operand, the output that it is (or ~slot of an input)."""
        self.inputs: dict[int, int] = {}
        """By the ids of tensors from outside ~slot, as the record has it; slots are in order."""
        self.foreign: list[TensorValue] = []
        """Inputs that other threads own, kept alive until the run that reads them is on its way."""
        self.scalars: list[Scalar] = []
        self.many = 0
        """The operands of instructions that have many."""
        self.values: list[TensorValue] = []
        """The result of each instruction, which nobody else need know any more."""
        self.thread = 0
        """The thread whose builder for the default session this is now; 0: it is that of none."""
        self.lock = lock
        self.busy = False
        self.claimed = False
        self.capture: SegmentCapture | None = None
        """While it is set, nothing is sent before the captured call ends."""

    def __del__(self) -> None:
        self.session.orphans += self.dead

    def limit(self, length: int) -> None:
        """Cut segments after `length` instructions or, where that is the usual length, where the stream repeats."""
        self.length = length
        self.periods = LoopPeriods(length) if length == FLUSH_LENGTH else None

    def emit(self, signature: Signature, operands: Sequence[Any]) -> TensorValue:
        """Append one instruction; `operands` are `TensorValue`s and Python scalars. The result's value (ops have one result)."""
        for operand in operands:
            if isinstance(operand, TensorValue) and operand.owner is not self:
                self._adopt(operand)
        self.busy = True
        try:
            if self.claimed:
                self.give_way()
            base = self.base
            entry: list[Any] = [signature]
            for operand in operands:
                if isinstance(operand, TensorValue):
                    at = operand.id - base
                    if at < 0 or operand.owner is not self:
                        at = self.inputs.get(operand.id) or self.slot(operand.id)
                    entry.append(at)
                else:
                    self.scalars.append(operand)
            if len(operands) > FEW_OPERANDS:
                self.many += len(operands)
            if self.many > FLUSH_OPERANDS or len(self.scalars) > FLUSH_SCALARS:
                self.length = 0  # flush after this instruction
            record = self.record
            value = TensorValue(self, base + len(record), signature.result)
            record.append(tuple(entry))
            self.values.append(value)
        except BaseException:
            self.undo()
            raise
        finally:
            self.busy = False
        if len(record) >= self.length:
            self.flush()
        return value

    def emit_one(self, signature: Signature, a: TensorValue, *numbers: Scalar) -> TensorValue:
        """`emit` for one tensor, followed by any numbers: the same steps without the loops."""
        if a.owner is not self:
            return self.emit(signature, (a, *numbers))
        self.busy = True
        try:
            if self.claimed:
                self.give_way()
            base, record = self.base, self.record
            at = a.id
            if at < base:
                at = self.inputs[at] if at in self.inputs else self.slot(at)
            else:
                at -= base
            if numbers:
                self.scalars += numbers
                if len(self.scalars) > FLUSH_SCALARS:
                    self.length = 0
            value = _new(TensorValue)
            value.owner = self
            value.id = base + len(record)
            value.spec = signature.result
            record.append((signature, at))
            self.values.append(value)
        except BaseException:
            self.undo()
            raise
        finally:
            self.busy = False
        if len(record) >= self.length:
            self.flush()
        return value

    def emit_two(self, signature: Signature, a: TensorValue, b: TensorValue) -> TensorValue:
        """`emit` for two tensors, in the same way."""
        if a.owner is not self or b.owner is not self:
            return self.emit(signature, (a, b))
        self.busy = True
        try:
            if self.claimed:
                self.give_way()
            base, record, inputs = self.base, self.record, self.inputs
            first = a.id
            if first < base:
                first = inputs[first] if first in inputs else self.slot(first)
            else:
                first -= base
            second = b.id
            if second < base:
                second = inputs[second] if second in inputs else self.slot(second)
            else:
                second -= base
            value = _new(TensorValue)
            value.owner = self
            value.id = base + len(record)
            value.spec = signature.result
            record.append((signature, first, second))
            self.values.append(value)
        except BaseException:
            self.undo()
            raise
        finally:
            self.busy = False
        if len(record) >= self.length:
            self.flush()
        return value

    def slot(self, number: int) -> int:
        """Give a tensor from outside a new input slot; returns ~slot, as the record has it."""
        at = self.inputs[number] = ~len(self.inputs)
        if len(self.inputs) >= FLUSH_INPUTS:
            self.length = 0  # flush after this instruction
        return at

    def give_way(self) -> None:
        """Wait for another thread's flush to end."""
        self.busy = False
        with self.lock:
            self.busy = True

    def undo(self) -> None:
        """Forget what an interrupted emission left: an instruction without a result, scalars and input slots that none reads."""
        del self.record[len(self.values) :]
        wanted = sum(isinstance(operand, str) for entry in self.record for operand in entry[0].operands)
        del self.scalars[wanted:]
        used = {at for entry in self.record for at in entry[1:]}
        self.inputs = {number: at for number, at in self.inputs.items() if at in used}

    def _adopt(self, value: TensorValue) -> None:
        """Make sure that another thread's value is on its way to the dispatcher, and stays while this segment reads it."""
        owner = value.owner
        if owner.session is not self.session:
            raise SessionError(
                "this tensor belongs to a session that has ended: fetch what you need before gt.disconnect()"
            )
        while value.id >= owner.base and not owner.flush_from_outside():
            pass  # its thread is in the middle of one instruction
        self.foreign.append(value)

    def flush_from_outside(self) -> bool:
        """`flush`, called by another thread; False when this builder's thread is in the middle of an instruction."""
        with self.lock:
            self.claimed = True
            try:
                if self.busy:
                    return False
                if self.capture is not None:
                    self.capture.interrupt("another thread needs what was computed here")
                self._send()
            finally:
                self.claimed = False
        return True

    def allocate(self, spec: Spec) -> TensorValue:
        """The value of a tensor that comes from outside (a put). Its id lies before those of all results."""
        value = SentValue(self, self.puts, spec)
        self.puts += 1
        return value

    def release(self) -> None:
        """Send the deaths that no instruction that was gathered still reads, and nothing else."""
        if self.dead:
            with self.lock, self.session.exclusive():
                dying, freed = self._deaths(self.inputs)
                slots = list(self.inputs)
                self.dead += [slots[slot] for slot in dying]
                if freed:
                    self.session.sink(_free_messages(freed, 0))

    def flush(self) -> None:
        """Send what was gathered: at most one definition, one run, and the deaths since the last flush."""
        if self.capture is not None:
            if len(self.record) < self.length:
                return
            self.capture.interrupt(f"it has more than {self.length or len(self.record)} instructions")
        if self.record or self.dead:
            self._send()
            self.session.pace()

    def _send(self) -> None:
        with self.lock, self.session.exclusive():
            messages = self._messages()
            if messages:
                self.session.sink(messages)

    def _messages(self) -> list[Any]:
        inputs = self.inputs
        dying, freed = self._deaths(inputs)
        record = self.record
        if not record:
            return _free_messages(freed, 0)
        base, alive, scalars = self.base, self._alive(), self.scalars
        self.record, self.values, self.scalars, self.inputs, self.foreign = [], [], [], {}, []
        self.many = 0
        self.base = base + len(record)
        messages = _free_messages(freed, MAX_IDS)
        made = self.session.definitions.made
        known = self._definition((tuple(record), alive), record, alive, len(inputs), messages)
        periods = self.periods
        if periods is not None:
            if made == self.session.definitions.made:
                periods.known()
            else:
                periods.new(record, alive)
            self.length = periods.length
        else:
            self.length = self.session.flush_length
        messages.append(Run(known, base, list(inputs), scalars, dying, freed))
        return messages

    def _deaths(self, inputs: dict[int, int]) -> tuple[list[int], list[int]]:
        """(which of a run's inputs nobody needs after it, the ids of all others that died)."""
        dead = self.dead[:]
        del self.dead[: len(dead)]
        freed, self.session.orphans = self.session.orphans, []
        dying: list[int] = []
        for number in dead:
            if number in inputs:
                dying.append(~inputs[number])
            else:
                freed.append(number)
        return dying, freed

    def _alive(self) -> bytes:
        """One byte for each result, 1 if anything refers to it; from now on the builder hears of their deaths."""
        values = self.values
        alive = bytes(map(UNSHARED_REFERENCES.__lt__, map(getrefcount, values)))
        for value in compress(values, alive):
            value.__class__ = SentValue
        return alive

    def _definition(
        self, key: Any, record: list[tuple[Any, ...]], alive: bytes, inputs: int, messages: list[Any]
    ) -> int:
        """The number of a definition; appends the messages that make it known, if it is new."""
        definitions = self.session.definitions
        known = definitions.find(key)
        if known is None:
            known, dropped = definitions.add(key, len(record))
            definitions.recent[known].record = record
            messages += map(Drop, dropped)
            messages.append(Define(known, pack_segment(segment_of(record, alive, inputs))))
        return known

    def finish(self) -> tuple[list[tuple[Any, ...]], bytes]:
        """`flush`, and what was sent: the record, and which of its results were alive."""
        record = self.record
        with self.lock, self.session.exclusive():
            base = self.base
            values = self.values
            self.session.sink(self._messages())
            alive = bytes([type(value) is SentValue for value in values])
        assert self.base == base + len(record), "nobody else flushed"
        del values
        self.session.pace()
        return record, alive

    def run(
        self,
        key: Any,
        traced: TracedSegment,
        inputs: list[TensorValue],
        scalars: list[Scalar],
        bind: Callable[[list[TensorValue]], None],
    ) -> None:
        """Send a run of `traced`, which is known by `key`, behind what was gathered.

        `bind` is given the survivors' values before the run leaves. Empties `inputs`: those to which then nobody refers
        die with the run.
        """
        for value in inputs:
            if value.owner is not self:
                self._adopt(value)
        if self.record:
            self._send()
        with self.lock, self.session.exclusive():
            base = self.base
            self.base = base + len(traced.record)
            numbers = [value.id for value in inputs]
            bind([SentValue(self, base + at, spec) for at, spec in traced.results])
            foreign, self.foreign = self.foreign, []
            inputs.clear()
            dying, freed = self._deaths({number: ~slot for slot, number in enumerate(numbers)})
            messages = _free_messages(freed, MAX_IDS)
            known = self._definition(key, traced.record, traced.alive, traced.inputs, messages)
            messages.append(Run(known, base, numbers, scalars, dying, freed))
            self.session.sink(messages)
            del foreign
        self.session.pace()

    def check(self) -> None:
        """The invariants of a builder between calls."""
        scalars = sum(isinstance(operand, str) for entry in self.record for operand in entry[0].operands)
        assert scalars == len(self.scalars), "one scalar for each scalar operand"
        assert [~at for at in self.inputs.values()] == list(range(len(self.inputs))), "input slots are dense"
        assert not self.busy, "nothing is half in"
        assert [value.id - self.base for value in self.values] == list(range(len(self.record))), "one result for each"


def _free_messages(freed: list[int], limit: int) -> list[Any]:
    """`Free` messages for the dead tensors, until at most `limit` are left to go with a run."""
    messages: list[Any] = []
    while len(freed) > limit:
        messages.append(Free(freed[:MAX_IDS]))
        del freed[:MAX_IDS]
    return messages
