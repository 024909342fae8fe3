"""The segment under way: the instructions that one thread has emitted since its last flush, and how one more is appended.

The per-op path is a plain call, `emit`. What becomes of a segment at the flush is in `builder.py`. This module is one of those
that `make native` compiles; what is declared for that is in `open_segment.pxd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from gt.bounds import MAX_ALL_OPERANDS, MAX_INPUTS, MAX_INSTRUCTIONS, MAX_OPERANDS, MAX_SCALARS
from gt.errors import SessionError
from gt.ir.dtypes import Scalar
from gt.ir.instruction import ID_BITS
from gt.ir.spec import Spec

from .definition_cache import Definitions
from .early_fetch import EarlyFetches
from .loop_period import LoopPeriods
from .signature import Signature
from .value import TensorValue

FLUSH_INPUTS: Final = MAX_INPUTS - MAX_OPERANDS
"""Inputs after which a segment is flushed by itself, so that one more instruction keeps it within its bound."""
FLUSH_SCALARS: Final = MAX_SCALARS - MAX_OPERANDS
"""The same of run-time scalars."""
FEW_OPERANDS: Final = 4
FLUSH_OPERANDS: Final = MAX_ALL_OPERANDS - FEW_OPERANDS * MAX_INSTRUCTIONS - MAX_OPERANDS
"""The same of the operands of instructions with more than `FEW_OPERANDS`."""
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

    def expect(self, tensor: int, known: Spec) -> tuple[int, Any] | None:
        """Note that a tensor is asked for with the run that makes it. The number of the request and the future; None after the
        session's end."""


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


class OpenSegment:
    """The segment that one thread gathers for `session`; `Builder` derives from it and sends it.

    The owning thread emits without a lock. It raises `busy` while an instruction is half in; another thread that wants to
    flush takes `lock`, raises `claimed`, and goes away again when it finds `busy` raised; the owner, finding `claimed`
    raised, lowers `busy` and waits for the lock. As each side raises its own flag before it looks at the other's, at most
    one goes on. Of an emission that is interrupted half way nothing is left but, at worst, a result that nobody holds.
    """

    __slots__ = (
        "base", "busy", "capture", "claimed", "dead", "early", "foreign", "inputs", "length", "lock", "many", "periods",
        "puts", "record", "scalars", "session", "thread", "values",
    )  # fmt: skip

    def __init__(self, session: BuilderSession, number: int, lock: Lock) -> None:
        self.session = session
        self.puts = number << ID_BITS
        self.base = self.puts + PUT_IDS
        self.length = session.flush_length
        self.periods: LoopPeriods | None = None
        self.early = EarlyFetches()
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

    def emit_one(self, signature: Signature, a: TensorValue, numbers: tuple[Scalar, ...] = ()) -> TensorValue:
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
            value = TensorValue(self, base + len(record), signature.result)
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
            value = TensorValue(self, base + len(record), signature.result)
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

    def flush(self) -> None:
        """Send what was gathered."""
        raise NotImplementedError("a builder sends")

    def flush_from_outside(self) -> bool:
        """`flush`, called by another thread; False when this one is in the middle of an instruction."""
        raise NotImplementedError("a builder sends")
